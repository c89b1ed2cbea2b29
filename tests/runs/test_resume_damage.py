"""Where a run goes on whose models were damaged or lost: from the newest that is sound."""

import os
from pathlib import Path

import msgspec
import pytest
from journal_support import (
    DIGESTS,
    SITES,
    EffectScript,
    a_job,
    a_run,
    flip,
    fold_record,
    model,
    train_record,
)
from nightly_cases import first_and_nightly

from flstream.errors import ResumeRefusedError
from flstream.model.checkpoint import write_checkpoint
from flstream.runs.history import History
from flstream.runs.resume import plan_resume, take_up
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.event_log import EventLog
from flstream.telemetry.events import ModelRecord, ModelWritten


@first_and_nightly(
    ("harm", "words"),
    [
        (flip, "has the digest"),
        (lambda path: os.truncate(path, path.stat().st_size - 1), "truncated or damaged"),
        (lambda path: os.truncate(path, 5), "fetch the file again"),
        (Path.unlink, "No such file"),
        (lambda path: write_checkpoint(path, model(7)), DIGESTS[7]),
    ],
    brief=2,
)
def test_a_damaged_model_is_passed_over_with_a_warning(tmp_path, harm, words):
    run = a_run(tmp_path / "run", completed=3)
    harm(run.checkpoint(3))
    point = plan_resume(a_job(), run)
    # The training counts whose updates were in it: it is not asked anew who answers.
    assert (point.round, point.effect) == (2, EffectScript(3, 1).first_effect(3))
    [warning] = point.warnings
    assert warning.startswith("the run went on from round 2 instead of 3: ")
    assert str(run.checkpoint(3)) in warning
    assert words in warning
    assert [number for number, _ in History.of(point.events).evaluations] == [1, 2]
    running = take_up(a_job(), run, point)
    assert running.summary.rounds_completed == 2
    assert running.summary.warnings[-1] == warning
    assert not run.checkpoint(3).exists()


def test_of_many_damaged_models_some_are_named_and_the_rest_counted(tmp_path):
    run = a_run(tmp_path / "run", rounds=8, completed=6)
    for number in range(2, 7):
        flip(run.checkpoint(number))
    point = plan_resume(a_job(8), run)
    assert point.round == 1
    assert [str(run.checkpoint(n)) in point.warnings[0] for n in range(2, 7)] == [False] * 2 + [
        True
    ] * 3
    assert point.warnings[0].endswith("and 2 more")


def test_an_initial_model_that_is_damaged_is_built_anew(tmp_path):
    run = a_run(tmp_path / "run", completed=0)
    flip(run.checkpoint(0))
    point = plan_resume(a_job(), run)
    assert (point.round, point.checkpoint) == (None, None)
    assert point.warnings[0].startswith("the initial model was built anew")
    assert point.leftovers == [run.checkpoint(0)]
    assert take_up(a_job(), run, point).summary.model.bytes == 0
    assert plan_resume(a_job(), run).round is None


@first_and_nightly(
    ("harm", "words"),
    [
        (flip, "has the digest"),
        (lambda path: os.truncate(path, path.stat().st_size - 1), "truncated or damaged"),
        (Path.unlink, "No such file"),
    ],
)
def test_what_the_optimizer_remembers_is_as_much_as_the_model(tmp_path, harm, words):
    run = a_run(tmp_path / "run", rounds=5, completed=3, optimizer=True)
    assert plan_resume(a_job(5), run).round == 3
    harm(run.optimizer_state(3))
    point = plan_resume(a_job(5), run)
    assert point.round == 2
    [warning] = point.warnings
    assert warning.startswith("the run went on from round 2 instead of 3: ")
    assert str(run.optimizer_state(3)) in warning
    assert words in warning
    take_up(a_job(5), run, point)
    left = {path.name for path in run.checkpoints.iterdir()}
    assert left == {
        *(run.checkpoint(number).name for number in (0, 1, 2)),
        *(run.optimizer_state(number).name for number in (1, 2)),
    }


def test_a_round_whose_optimizer_state_is_lost_is_none_to_go_on_from(tmp_path):
    # As where only the last checkpoint is kept.
    run = a_run(tmp_path / "run", rounds=5, completed=3, optimizer=True)
    for number in (0, 1, 2):
        run.checkpoint(number).unlink()
    flip(run.optimizer_state(3))
    with pytest.raises(ResumeRefusedError, match="no model of the 3 completed rounds") as caught:
        plan_resume(a_job(5), run)
    assert str(run.optimizer_state(3)) in str(caught.value)


def test_rounds_are_not_thrown_away_when_no_model_is_left(tmp_path):
    run = a_run(tmp_path / "run", completed=3)
    for path in run.checkpoints.iterdir():
        flip(path)
    before = run.events.read_bytes()
    with pytest.raises(ResumeRefusedError, match="no model of the 3 completed rounds") as caught:
        plan_resume(a_job(), run)
    assert str(run.checkpoint(3)) in str(caught.value)
    assert run.events.read_bytes() == before
    assert len(list(run.checkpoints.iterdir())) == 4


def test_models_without_their_journal_are_not_written_over(tmp_path):
    run = a_run(tmp_path / "run")
    run.events.unlink()
    again = RunDirectory.reopen("job", run.path)
    with pytest.raises(ResumeRefusedError, match="put that back from a copy"):
        plan_resume(a_job(), again)


def a_relay(folder: Path, rounds: int, *, cut_after: int | None = None) -> RunDirectory:
    """A run of two sites that train in turn, each on the other's model: two models a round.

    Args:
        folder: Of the run.
        rounds: Rounds that it has done.
        cut_after: Number of the last effect that it has recorded; None for all.
    """
    run = a_run(folder, rounds=9, completed=0, every=0)
    script = EffectScript(9, 0, DIGESTS)
    with EventLog(run.events) as log:
        for number in range(1, rounds + 1):
            for step, site in enumerate(SITES):
                version = 2 * (number - 1) + step + 1
                effect = 2 * version - 1
                record = ModelRecord(number, version, step, DIGESTS[version])
                if cut_after is not None and effect > cut_after + 1:
                    return run
                log.write(train_record(effect, number, sites=[site]))
                log.write(ModelWritten(round=number, step=step))
                if step:
                    run.checkpoint(number).rename(run.step_checkpoint(number, step - 1))
                write_checkpoint(run.checkpoint(number), model(version))
                if cut_after is None or effect < cut_after:
                    log.write(fold_record(effect + 1, record, effect, [site]))
            if cut_after is None or effect < cut_after:
                log.write(script.finished(number))
    return run


def there(run: RunDirectory) -> list[str]:
    return sorted(path.name for path in run.checkpoints.iterdir())


def test_of_a_round_with_several_models_the_newest_sound_one_counts(tmp_path):
    run = a_relay(tmp_path / "run", 2)
    assert plan_resume(a_job(9, every=0), run).checkpoint == run.checkpoint(2)
    flip(run.checkpoint(2))
    point = plan_resume(a_job(9, every=0), run)
    assert (point.round, point.checkpoint) == (2, run.step_checkpoint(2, 0))
    assert point.effect == 7  # the training whose update the damaged one was
    assert point.warnings[0].startswith("the run went on from model 3 of round 2 instead of 4: ")
    flip(run.step_checkpoint(2, 0))
    point = plan_resume(a_job(9, every=0), run)
    assert (point.round, point.checkpoint) == (1, run.checkpoint(1))
    assert point.warnings[0].startswith("the run went on from round 1 instead of 2: ")
    take_up(a_job(9, every=0), run, point)
    kept = [run.checkpoint(0), run.step_checkpoint(1, 0), run.checkpoint(1)]
    assert there(run) == sorted(path.name for path in kept)


def test_a_kill_between_two_renamings_loses_neither_model(tmp_path):
    # The earlier one has the name of its step by then, and the later one none at all yet.
    run = a_relay(tmp_path / "run", 2, cut_after=6)
    run.checkpoint(2).rename(run.checkpoints / "round-0002.safetensors.tmp")
    point = plan_resume(a_job(9, every=0), run)
    assert (point.round, point.effect, point.warnings) == (2, 6, [])
    assert point.checkpoint == run.step_checkpoint(2, 0)
    assert [path.name for path in point.leftovers] == ["round-0002.safetensors.tmp"]


def test_a_model_whose_effect_was_not_recorded_goes_and_the_one_before_stays(tmp_path):
    run = a_relay(tmp_path / "run", 2, cut_after=6)
    point = plan_resume(a_job(9, every=0), run)
    assert (point.round, point.effect) == (2, 6)
    assert point.leftovers == [run.checkpoint(2)]
    take_up(a_job(9, every=0), run, point)
    assert plan_resume(a_job(9, every=0), run).checkpoint == run.step_checkpoint(2, 0)


def test_files_of_rounds_that_the_journal_does_not_know_are_somebody_elses(tmp_path):
    run = a_run(tmp_path / "run", rounds=9, completed=3)
    theirs = ["round-0009.safetensors", "round-0002.step-00.optimizer.safetensors"]
    theirs += ["round-0004.optimizer.safetensors", "round-0003.found-1.safetensors"]
    for name in theirs:
        (run.checkpoints / name).write_text("theirs")
    flip(run.checkpoint(3))
    take_up(a_job(9), run, plan_resume(a_job(9), run))
    assert [(run.checkpoints / name).read_text() for name in theirs] == ["theirs"] * len(theirs)
    assert not run.checkpoint(3).exists()


def test_an_initial_model_that_was_only_evaluated_is_checked_too(tmp_path):
    run = a_run(tmp_path / "run", completed=0)
    evaluated = EffectScript(3, 1).evaluation(1)
    with EventLog(run.events) as log:
        for event in evaluated:
            log.write(msgspec.structs.replace(event, round=0))
    point = plan_resume(a_job(), run)
    assert (point.round, point.effect) == (0, 3)
    flip(run.checkpoint(0))
    point = plan_resume(a_job(), run)
    assert (point.round, point.effect, point.records) == (None, 0, [])


def test_what_a_journal_has_lost_is_done_again_and_no_file_of_it_is_removed(tmp_path):
    run = a_run(tmp_path / "run", rounds=9, completed=6)
    content = run.events.read_bytes()
    run.events.write_bytes(content[: len(content) // 2])
    before = there(run)
    point = plan_resume(a_job(9), run)
    assert 1 < point.round < 5
    take_up(a_job(9), run, point)
    left = set(there(run))
    # All but what the journal still knows to be void.
    written = {number for number, _ in point.written}
    assert left == set(before) - {
        run.checkpoint(number).name for number in written if number > point.round
    }
    assert run.checkpoint(6).name in left
