"""Where a run goes on whose models were damaged or lost: from the newest that is sound."""

import os
from pathlib import Path

import pytest
from journals import DIGESTS, a_job, a_run, flip, model

from flstream.errors import SimulationError
from flstream.model.checkpoint import write_checkpoint
from flstream.simulator.files.resume import plan_resume, take_up
from flstream.simulator.files.run_directory import RunDirectory


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (flip, "has the digest"),
        (lambda path: os.truncate(path, path.stat().st_size - 1), "truncated or damaged"),
        (lambda path: os.truncate(path, 5), "fetch the file again"),
        (Path.unlink, "No such file"),
        (lambda path: write_checkpoint(path, model(7)), DIGESTS[7]),
    ],
)
def test_a_damaged_model_is_passed_over_with_a_warning(tmp_path, harm, words):
    run = a_run(tmp_path / "run", completed=3)
    harm(run.checkpoint(3))
    point = plan_resume(a_job(), run)
    assert (point.round, point.evaluated) == (2, True)
    [warning] = point.warnings
    assert warning.startswith("the run went on from round 2 instead of 3: ")
    assert str(run.checkpoint(3)) in warning
    assert words in warning
    assert [scores.round for scores in point.evaluations] == [1, 2]
    tally = take_up(a_job(), run, point)
    assert tally.summary.rounds_completed == 2
    assert tally.summary.warnings[-1] == warning
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


@pytest.mark.parametrize(
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
    with pytest.raises(SimulationError, match="no model of the 3 completed rounds") as caught:
        plan_resume(a_job(5), run)
    assert str(run.optimizer_state(3)) in str(caught.value)


def test_rounds_are_not_thrown_away_when_no_model_is_left(tmp_path):
    run = a_run(tmp_path / "run", completed=3)
    for path in run.checkpoints.iterdir():
        flip(path)
    before = run.events.read_bytes()
    with pytest.raises(SimulationError, match="no model of the 3 completed rounds") as caught:
        plan_resume(a_job(), run)
    assert str(run.checkpoint(3)) in str(caught.value)
    assert run.events.read_bytes() == before
    assert len(list(run.checkpoints.iterdir())) == 4


def test_models_without_their_journal_are_not_written_over(tmp_path):
    run = a_run(tmp_path / "run")
    run.events.unlink()
    again = RunDirectory.reopen("job", run.path)
    with pytest.raises(SimulationError, match="put that back from a copy"):
        plan_resume(a_job(), again)
