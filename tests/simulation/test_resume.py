"""A run that was cut off or damaged ends in the bits of one that was not, or says why it cannot."""

import shutil
from pathlib import Path

import pytest
from journal_support import flip
from training_scripts import QUIET, adding, noisy, results, trained

from flstream.runs.journal import read_history
from flstream.runs.run_directory import RunDirectory

NEEDS = "needs states of its sites that cannot be used"
TWO = ["clients.count=2", "clients.names=[ward-1, lab-2]", QUIET]
SEVEN = [*TWO, "rounds=7"]


@pytest.fixture(scope="module")
def expected(tmp_path_factory, jobs_in):
    """The results of two sites in seven rounds that nobody disturbs."""
    return results(jobs_in(tmp_path_factory.mktemp("undisturbed")).run(noisy(), *SEVEN))


@pytest.fixture(scope="module")
def six_rounds(tmp_path_factory, jobs_in) -> Path:
    run = jobs_in(tmp_path_factory.mktemp("six")).run(noisy(), *TWO, "rounds=6").finished()
    return run.directory.path


@pytest.fixture
def six(six_rounds, jobs):
    """A run of six rounds, of this test alone; the job has seven."""
    shutil.copytree(six_rounds, jobs.folder / "run-0", symlinks=True)
    return RunDirectory(jobs.folder / "run-0")


def newest_state(run: RunDirectory, site: str) -> Path:
    return max((run.site(site) / "state").iterdir())


def alter(path: Path) -> None:
    (path / "momentum.json").write_text("7.5")


def test_what_others_have_put_into_a_run_survives_it(jobs, six, expected):
    theirs = [
        six.sites / "site-9",
        six.site("ward-1") / "state" / "notes.txt",
        six.site("ward-1") / "state" / "effect-0099.tmp",
        six.checkpoints / "round-0009.safetensors",
        six.checkpoints / "mine.safetensors",
    ]
    for path in theirs:
        path.write_text("theirs")
    shutil.copytree(six.site("ward-1"), six.sites / "ward-copy")
    # The run comes to this round, and needs the name; and to this effect, whose state is void.
    (six.checkpoints / "round-0007.safetensors").write_text("theirs too")
    flip(six.checkpoint(6))
    flip(six.checkpoint(5))
    newest = newest_state(six, "lab-2")
    alter(newest)
    resumed = jobs.go_on(six.path, noisy(), *SEVEN, from_round=4)
    assert results(resumed) == expected
    assert [path.read_text() for path in theirs] == ["theirs"] * len(theirs)
    assert (six.sites / "ward-copy" / "state").is_dir()
    moved = six.checkpoints / "round-0007.found-1.safetensors"
    assert moved.read_text() == "theirs too"
    [state] = (six.site("lab-2") / "state").glob("*.found-1*")
    assert (state / "momentum.json").read_text() == "7.5"
    warnings = resumed.summary.warnings
    assert any("round-0007.safetensors was not made by this run" in each for each in warnings)
    assert f"{newest} is not what lab-2 left; it is {state.name} now" in warnings


def test_a_finished_run_makes_a_model_that_it_names_again(jobs):
    finished = jobs.run(noisy())
    path = finished.directory.best_model
    before = path.read_bytes()
    path.unlink()  # it was a second name of a checkpoint
    path.write_bytes(before)
    flip(path)
    finished.directory.final_model.unlink()
    earlier = read_history(finished.directory.events).seconds
    summary = jobs.go_on(finished, noisy()).summary
    assert summary.status == "finished"
    assert summary.wall_seconds > earlier  # of all sittings
    assert path.read_bytes() == before
    assert finished.directory.final_model.samefile(finished.directory.checkpoint(2))
    assert trained(finished, "site-1") == [1, 2]


@pytest.mark.nightly
def test_a_best_model_that_is_lost_costs_its_second_name_and_nothing_else(jobs):
    falling = adding({}, "1.0 / number")
    run = jobs.run(falling, "rounds=3")
    assert run.summary.best.round == 1
    assert run.directory.best_model.samefile(run.directory.checkpoint(1))
    flip(run.directory.checkpoint(1))
    resumed = jobs.go_on(run, falling, "rounds=4")
    assert results(resumed) == results(jobs.run(falling, "rounds=4"))
    assert not resumed.directory.best_model.exists()
    assert "no best.safetensors: " in resumed.summary.warnings[0]


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


@pytest.mark.nightly
def test_a_training_that_was_asked_first_and_done_last_leaves_the_state_that_counts(jobs):
    (jobs.folder / "late.py").write_text(
        "def late(run):\n"
        "    model = run.initial_model()\n"
        "    for _ in run.rounds():\n"
        "        late = run.train(model, ['site-1'])\n"
        "        run.fold(model, run.train(model, ['site-1', 'site-2']))\n"
        "        model = run.fold(model, late)\n"
        "    return model\n"
    )
    settings = [QUIET, 'workflow.type="late.py:late"']
    expected = jobs.run(noisy(), *settings, "rounds=3")
    run = jobs.run(noisy(), *settings, "rounds=2")
    assert results(jobs.go_on(run, noisy(), *settings, "rounds=3")) == results(expected)
