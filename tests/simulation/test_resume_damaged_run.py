"""A run that was damaged ends in the bits of one that was not, or says why it cannot go on."""

import json
import os
import shutil
from pathlib import Path

import pytest
from journal_support import flip
from nightly_cases import first_and_nightly
from training_scripts import QUIET, events_of, noisy, of_kind, results, trained

from flstream.errors import ResumeRefusedError
from flstream.runs.resume import plan_resume
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.events import EffectDone, RunResumed, Warned

NEEDS = "needs states of its sites that cannot be used"
TWO = ["clients.count=2", QUIET]


@pytest.fixture(scope="module")
def expected(tmp_path_factory, jobs_in):
    """What comes of two sites in seven rounds that nobody disturbs."""
    return results(jobs_in(tmp_path_factory.mktemp("undisturbed")).run(noisy(), *TWO, "rounds=7"))


@pytest.fixture
def six(six_rounds, jobs):
    """A run of six rounds, of this test alone; the job has seven."""
    shutil.copytree(six_rounds, jobs.folder / "run-0", symlinks=True)
    return RunDirectory(jobs.folder / "run-0")


@pytest.fixture(scope="module")
def six_rounds(tmp_path_factory, jobs_in) -> Path:
    run = jobs_in(tmp_path_factory.mktemp("six")).run(noisy(), *TWO, "rounds=6")
    assert run.summary.status == "finished", run.summary.error
    return run.directory.path


def content(folder: Path) -> dict[str, bytes | str]:
    """All files and links of a folder, but for the one that is locked."""
    found: dict[str, bytes | str] = {}
    for path in folder.rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink():
            found[name] = os.readlink(path)
        elif path.is_file() and name != "memory.jsonl":
            found[name] = path.read_bytes()
    return found


def states(run: RunDirectory, site: str) -> list[Path]:
    """The versions of a site's state, oldest first."""
    return sorted((run.site(site) / "state").iterdir())


@pytest.mark.nightly
@pytest.mark.parametrize("back", [1, 2, 3])
def test_a_resume_that_falls_back_some_rounds_comes_to_the_same_bits(jobs, six, expected, back):
    for number in range(7 - back, 7):
        flip(six.checkpoint(number))
    resumed = jobs.go_on(six.path, noisy(), *TWO, "rounds=7")
    assert results(resumed) == expected
    assert trained(resumed, "site-1") == [*range(1, 7), *range(7 - back, 8)]
    [warning] = resumed.summary.warnings
    assert f"went on from round {6 - back} instead of 6" in warning


@pytest.mark.nightly
def test_a_resume_that_falls_back_further_than_the_states_reach_is_refused(jobs, six):
    for number in range(2, 7):
        flip(six.checkpoint(number))
    before = content(six.path)
    with pytest.raises(ResumeRefusedError) as caught:
        jobs.go_on(six.path, noisy(), *TWO, "rounds=7")
    assert f"{NEEDS} (that of site-1 after" in str(caught.value)
    assert "put them back from a copy, or leave out --resume" in str(caught.value)
    assert content(six.path) == before


@pytest.mark.nightly
@first_and_nightly("harm", [Path.unlink, flip])
@first_and_nightly("name", ["global.safetensors", "best.safetensors"])
def test_a_finished_run_makes_a_model_that_it_names_again(jobs, harm, name):
    finished = jobs.run(noisy())
    path = finished.directory.path / name
    before = path.read_bytes()
    path.unlink()  # it was a second name of a checkpoint
    path.write_bytes(before)
    harm(path)
    resumed = jobs.go_on(finished, noisy())
    assert resumed.summary.status == "finished"
    assert path.read_bytes() == before
    assert trained(resumed, "site-1") == [1, 2]


def alter(path: Path) -> None:
    (path / "momentum.json").write_text("7.5")


@pytest.mark.nightly
@first_and_nightly("harm", [shutil.rmtree, alter], ids=["deleted", "altered"])
def test_a_state_that_is_gone_or_altered_is_refused_and_taken_once_it_is_back(
    jobs, six, expected, harm
):
    newest = states(six, "site-2")[-1]
    shutil.copytree(newest, jobs.folder / "copy")
    harm(newest)
    before = content(six.path)
    with pytest.raises(ResumeRefusedError, match="that of site-2 after effect"):
        jobs.go_on(six.path, noisy(), *TWO, "rounds=7")
    assert content(six.path) == before
    shutil.rmtree(newest, ignore_errors=True)
    shutil.copytree(jobs.folder / "copy", newest)
    assert results(jobs.go_on(six.path, noisy(), *TWO, "rounds=7")) == expected


def test_a_void_state_that_was_altered_is_not_in_the_way_of_the_same_one(jobs, six, expected):
    flip(six.checkpoint(6))
    flip(six.checkpoint(5))
    newest = states(six, "site-2")[-1]
    alter(newest)
    resumed = jobs.go_on(six.path, noisy(), *TWO, "rounds=7")
    assert results(resumed) == expected
    [moved] = (six.site("site-2") / "state").glob("*.found-1*")
    assert (moved / "momentum.json").read_text() == "7.5"
    assert resumed.summary.warnings[-1] == (
        f"{newest} is not what site-2 left; it is {moved.name} now"
    )


def test_all_states_of_a_site_deleted_is_refused_and_never_taken_for_empty(jobs, six):
    shutil.rmtree(six.site("site-2") / "state")
    with pytest.raises(ResumeRefusedError, match="is missing"):
        jobs.go_on(six.path, noisy(), *TWO, "rounds=7")


def test_a_journal_that_has_lost_its_last_rounds_costs_rounds_and_no_bit(jobs, six, expected):
    # As a file system may leave it that was cut off from power: whole lines, and a part of one.
    lines = six.events.read_bytes().splitlines(keepends=True)
    ends = [n for n, line in enumerate(lines) if b'"kind":"round_finished"' in line]
    six.events.write_bytes(b"".join([*lines[: ends[3] + 1], lines[ends[3] + 1][:9]]))
    resumed = jobs.go_on(six.path, noisy(), *TWO, "rounds=7")
    assert results(resumed) == expected
    # What the journal does not know is not taken for the run's own.
    names = {path.name for path in six.checkpoints.iterdir()}
    assert {"round-0005.found-1.safetensors", "round-0006.found-1.safetensors"} <= names
    assert len([each for each in of_kind(resumed, Warned) if "found-1" in each.message]) == 2


def test_a_journal_that_has_lost_more_than_the_states_reach_is_refused(jobs, six):
    lines = six.events.read_bytes().splitlines(keepends=True)
    end = next(n for n, line in enumerate(lines) if b'"kind":"round_finished"' in line)
    six.events.write_bytes(b"".join(lines[: end + 1]))
    before = content(six.path)
    with pytest.raises(ResumeRefusedError):
        jobs.go_on(six.path, noisy(), *TWO, "rounds=7")
    assert content(six.path) == before


def test_what_others_have_put_into_a_run_survives_it(jobs, six, expected):
    theirs = [
        six.sites / "site-9",
        six.site("site-1") / "state" / "notes.txt",
        six.site("site-1") / "state" / "effect-0099.tmp",
        six.checkpoints / "round-0009.safetensors",
        six.checkpoints / "mine.safetensors",
    ]
    for path in theirs:
        path.write_text("theirs")
    # The run comes to this round, and needs the name.
    (six.checkpoints / "round-0007.safetensors").write_text("theirs too")
    flip(six.checkpoint(6))
    resumed = jobs.go_on(six.path, noisy(), *TWO, "rounds=7")
    assert results(resumed) == expected
    assert [path.read_text() for path in theirs] == ["theirs"] * len(theirs)
    moved = six.checkpoints / "round-0007.found-1.safetensors"
    assert moved.read_text() == "theirs too"
    assert any(
        "round-0007.safetensors was not made by this run" in warning
        and "round-0007.found-1.safetensors now" in warning
        for warning in resumed.summary.warnings
    )


@pytest.mark.nightly
@first_and_nightly("harm", [flip, Path.unlink], ids=["damaged", "deleted"])
def test_a_best_model_that_is_lost_costs_its_second_name_and_nothing_else(jobs, harm):
    falling = noisy().replace('params["w"].double().mean().item()', "1.0 / number")
    falling = falling.replace("def score(params):", "def score(params, number):")
    falling = falling.replace("metrics=score(params)", "metrics=score(params, number)")
    two = ["clients.count=2"]
    expected = jobs.run(falling, *two, "rounds=4")
    assert expected.summary.best.round == 1
    assert expected.directory.best_model.samefile(expected.directory.checkpoint(1))
    run = jobs.run(falling, *two, "rounds=3")
    harm(run.directory.checkpoint(1))
    resumed = jobs.go_on(run, falling, *two, "rounds=4")
    assert results(resumed) == results(expected)
    assert not resumed.directory.best_model.exists()
    [warning] = resumed.summary.warnings
    assert warning.startswith("no best.safetensors: ")
    assert "round-0001.safetensors" in warning


# A program that ends with the model of round 3, and so needs that again at the end.
RETURNS_THIRD = """
def third(run):
    model = third = run.initial_model()
    for number in run.rounds():
        model = run.fold(model, run.train(model, run.sites))
        if number == 3:
            third = model
    return third
"""


@pytest.mark.nightly
def test_an_older_model_that_the_program_needs_again_is_made_again(jobs):
    (jobs.folder / "third.py").write_text(RETURNS_THIRD)
    how = [*TWO, 'workflow.type="third.py:third"']
    expected = jobs.run(noisy(), *how, "rounds=5")
    run = jobs.run(noisy(), *how, "rounds=4")
    flip(run.directory.checkpoint(3))
    resumed = jobs.go_on(run, noisy(), *how, "rounds=5")
    assert results(resumed) == results(expected)
    [warning] = resumed.summary.warnings
    assert "the run went back to before effect 6: " in warning
    # The journal has each effect that counts once, and can be read by the next who goes on.
    assert [event.effect for event in of_kind(resumed, RunResumed)] == [8, 5]
    assert trained(resumed, "site-1") == [1, 2, 3, 4, 5, 3, 4, 5]
    job = jobs.make(noisy(), *how, "rounds=5")
    assert plan_resume(job, resumed.directory).is_finished
    assert not list(resumed.directory.checkpoints.glob("*.found-*"))


@pytest.mark.nightly
def test_an_older_model_that_cannot_be_made_again_is_a_sentence_and_voids_nothing(jobs):
    (jobs.folder / "third.py").write_text(RETURNS_THIRD)
    how = [*TWO, 'workflow.type="third.py:third"']
    expected = jobs.run(noisy(), *how, "rounds=7")
    run = jobs.run(noisy(), *how, "rounds=6")
    whole = run.directory.checkpoint(3).read_bytes()
    flip(run.directory.checkpoint(3))
    resumed = jobs.go_on(run, noisy(), *how, "rounds=7")
    assert resumed.summary.status == "failed"
    assert NEEDS in resumed.summary.error
    # Put back from a copy, it is as if nothing had been.
    run.directory.checkpoint(3).write_bytes(whole)
    again = jobs.go_on(run, noisy(), *how, "rounds=7")
    assert results(again) == results(expected)
    assert trained(again, "site-1") == list(range(1, 8))


# The first site that trains for round 3 removes the state that the other is to begin with.
REMOVES = """
if (site, number) == ("site-1", 3):
    import shutil

    shutil.rmtree(f"{folder}/../site-2/state")
"""


def test_a_state_that_is_lost_in_mid_run_ends_it_with_the_same_sentence(jobs):
    # One worker: the sites take turns. Without site-2 there would be enough updates.
    how = ["clients.count=2", "clients.parallel=1", "clients.min_updates=1", "rounds=4", QUIET]
    run = jobs.run(noisy(REMOVES), *how)
    assert run.summary.status == "failed"
    assert run.summary.rounds_completed == 2
    assert f"{NEEDS} (that of site-2 after" in run.summary.error
    assert "is missing" in run.summary.error
    # Nothing came of the round, so it is as it was before it.
    assert max(event.effect for event in events_of(run) if isinstance(event, EffectDone)) == 4


RELAY = [
    "workflow.type=cyclic",
    "clients.count=3",
    "rounds=3",
    "checkpoints.keep=1",
]


@pytest.mark.nightly
@first_and_nightly("is_written", [False, True], ids=["not yet", "written, not recorded"])
def test_a_relay_killed_between_two_renamings_goes_on_where_it_was(jobs, is_written):
    expected = jobs.run(noisy(), *RELAY)
    run = jobs.run(noisy(), *RELAY, "checkpoints.keep=all").directory
    # All but the first model of round 3 is taken back, as far as the kill would have it.
    lines = run.events.read_bytes().splitlines(keepends=True)
    records = [json.loads(line) for line in lines]
    first = next(
        place
        for place, each in enumerate(records)
        if (each.get("model") or {}).get("round") == 3 and each["model"]["step"] == 0
    )
    second = next(
        place
        for place, each in enumerate(records)
        if each["kind"] == "model_written" and each["round"] == 3 and each["step"] == 1
    )
    assert first < second
    run.events.write_bytes(b"".join(lines[: second + 1]))
    for path in (run.final_model, run.best_model, run.summary):
        path.unlink(missing_ok=True)
    step = run.step_checkpoint(3, 1)
    step.rename(run.checkpoint(3)) if is_written else step.unlink()
    if not is_written:
        run.checkpoint(3).unlink()
    assert run.step_checkpoint(3, 0).is_file()
    resumed = jobs.go_on(run.path, noisy(), *RELAY)
    assert results(resumed) == results(expected)
    assert resumed.summary.warnings == []
    assert trained(resumed, "site-1") == [1, 2, 3]


@pytest.mark.nightly
def test_sites_with_names_resume_with_their_states(jobs):
    named = ["clients.names=[ward-1, lab-2]", "clients.count=2", QUIET, "rounds=4"]
    expected = results(jobs.run(noisy(), *named))
    short = jobs.run(noisy(), *named[:-1], "rounds=3")
    flip(short.directory.checkpoint(3))
    (short.directory.sites / "ward-1" / "notes").mkdir()
    shutil.copytree(short.directory.site("ward-1"), short.directory.sites / "ward-copy")
    resumed = jobs.go_on(short, noisy(), *named)
    assert results(resumed) == expected
    assert trained(resumed, "lab-2") == [1, 2, 3, 3, 4]
    assert (short.directory.sites / "ward-copy" / "state").is_dir()
    assert sorted(resumed.summary.memory.clients) == ["lab-2", "ward-1"]
