"""Which checkpoints go: no more than was asked for, and nothing that is not the run's own."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.runs.model_files import OPTIMIZER, body_file
from flstream.runs.retention import Retention, stored_rounds, superseded
from flstream.runs.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create("job", tmp_path / "run")


def fill(run, *rounds, states=()):
    for number in rounds:
        run.checkpoint(number).write_text("model")
    for number in states:
        run.optimizer_state(number).write_text("state")


def there(run):
    return sorted(path.name for path in run.checkpoints.iterdir())


def names(run, *rounds, states=()):
    paths = [run.checkpoint(number) for number in rounds]
    return sorted(path.name for path in [*paths, *(run.optimizer_state(n) for n in states)])


@given(
    rounds=st.sets(st.integers(0, 40)),
    last=st.integers(0, 40),
    keep=st.integers(1, 40),
    best=st.none() | st.integers(0, 40),
)
def test_the_last_ones_the_best_and_all_later_ones_stay(rounds, last, keep, best):
    going = superseded(rounds, last, keep, best)
    staying = {n for n in rounds if n > last - keep or n == best}
    assert going == sorted(rounds - staying)
    assert superseded(rounds, last, "all", None) == []


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_a_run_never_has_more_than_the_kept_ones_the_best_and_the_next(run, keep):
    retention = Retention(run, keep)
    most, best = 0, None
    fill(run, 0)
    for number in range(1, 13):
        fill(run, number)
        most = max(most, len(there(run)))
        assert retention.settle(number, best).warnings == []
        best = 3 if number == 3 else best
    assert most == keep + 2
    assert there(run) == names(run, 3, *range(13 - keep, 13))


@pytest.mark.parametrize(
    ("rounds", "states", "keep", "settled", "own", "gone", "left"),
    [
        ((0, 1, 2), (), 2, (1, None), None, [], (0, 1, 2)),
        ((0, 1, 2), (), 2, (2, None), None, [0], (1, 2)),
        # What belongs to a checkpoint goes with it, also where a kill fell between the two.
        ((0, 1, 2, 3), (1, 2, 3), 1, (3, 2), None, [0, 1], (2, 3)),
        ((0, 1, 2), (0, 2), 1, (2, None), None, [0, 1], (2,)),
        # A round after the durable one, and one that the run has made no model in, stay.
        ((0, 1, 2, 7), (), 1, (2, None), None, [0, 1], (2, 7)),
        ((0, 1, 2, 3), (), 1, (3, None), {0, 2, 3}, [0, 2], (1, 3)),
        ((9999, 10000, 10001), (), 1, (10001, None), None, [9999, 10000], (10001,)),
    ],
)
def test_what_goes_goes_whole(run, rounds, states, keep, settled, own, gone, left):
    fill(run, *rounds, states=states)
    assert sorted(stored_rounds(run)) == sorted(rounds)
    options = {} if own is None else {"own": own}
    assert Retention(run, keep, [OPTIMIZER]).settle(*settled, **options) == (gone, [])
    assert there(run) == names(run, *left, states=set(states) & set(left))


def test_models_that_were_not_their_rounds_last_go_with_what_belongs_to_them(run):
    fill(run, 1, 2)
    steps = [run.step_checkpoint(number, step) for number in (1, 2) for step in (0, 1)]
    files = [path for step in steps for path in (body_file(step, OPTIMIZER), step)]
    for path in files:
        path.write_text("step")
    assert Retention(run, 2).settle(2, None, in_use=files[:4], steps=files) == ([], [])
    assert there(run) == sorted([*(path.name for path in files[:4]), *names(run, 1, 2)])


STRANGE = [
    "round-0001.safetensors.tmp", "round-0001.safetensors~", "round-00001.safetensors",
    "round-001.safetensors", "round-0001-mine.safetensors", "my-round-0001.safetensors",
    "round-0001.SAFETENSORS", "round-\u0660\u0660\u0660\u0661.safetensors",
    "round-99999999999999999999999.safetensors", "model.safetensors",
]  # fmt: skip


def test_files_of_other_names_links_and_folders_stay_and_what_they_lead_to(run, tmp_path):
    outside = tmp_path / "mine.safetensors"
    outside.write_text("mine")
    for name in STRANGE:
        (run.checkpoints / name).write_text("mine")
    run.checkpoint(0).symlink_to(outside)
    run.checkpoint(1).mkdir()
    fill(run, 2, 3, 4)
    run.publish(run.checkpoint(3), run.final_model)
    run.optimizer_state(2).symlink_to(outside)
    assert Retention(run, 1, [OPTIMIZER]).settle(4, None) == ([2, 3], [])
    assert outside.read_text() == "mine"
    assert run.final_model.read_text() == "model"
    assert there(run) == sorted([*STRANGE, *names(run, 0, 1, 4, states=[2])])


def test_a_folder_that_is_a_link_is_not_entered(run, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    run.checkpoints.rename(elsewhere)
    run.checkpoints.symlink_to(elsewhere)
    fill(run, 0, 1, 2)
    retention = Retention(run, 1)
    rounds, [warning] = retention.settle(2, None)
    assert rounds == []
    assert "checkpoints cannot be searched: Not a directory" in warning
    assert len(list(elsewhere.iterdir())) == 3
    assert retention.settle(2, None).warnings == []


def test_a_file_that_cannot_be_removed_is_warned_of_once_and_tried_again(run, monkeypatch):
    fill(run, 0, 1, 2, states=(0, 1, 2))
    retention = Retention(run, 1, [OPTIMIZER])

    def refuse(name, *, dir_fd):
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        rounds, warnings = retention.settle(2, None)
        assert rounds == []
        for number, warning in enumerate(warnings):
            assert f"round-000{number}.optimizer.safetensors cannot be removed: Oper" in warning
        assert len(warnings) == 2
        assert retention.settle(2, None) == ([], [])
    assert retention.settle(2, None) == ([0, 1], [])
    assert there(run) == names(run, 2, states=[2])
