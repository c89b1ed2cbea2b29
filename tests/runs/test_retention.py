"""Which checkpoints go: no more than was asked for, and nothing that is not the run's own."""

import os
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.runs.model_files import OPTIMIZER, body_file
from flstream.runs.retention import Retention, stored_rounds, superseded
from flstream.runs.run_directory import RunDirectory
from flstream.runs.small_files import temporary_of


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create("job", tmp_path / "run")


def state(run):
    return partial(run.body_file, OPTIMIZER)


def fill(run, *rounds, side_layout=None):
    for number in rounds:
        run.checkpoint(number).write_text("model")
        if side_layout:
            side_layout(number).write_text("state")


def there(run):
    return sorted(path.name for path in run.checkpoints.iterdir())


def names(run, *rounds):
    return [run.checkpoint(number).name for number in rounds]


@given(
    rounds=st.sets(st.integers(0, 40)),
    last=st.integers(0, 40),
    keep=st.integers(1, 40),
    best=st.none() | st.integers(0, 40),
)
def test_the_last_ones_the_best_and_all_later_ones_stay(rounds, last, keep, best):
    going = superseded(rounds, last, keep, best)
    staying = rounds - set(going)
    assert going == sorted(rounds - staying)
    assert staying == {n for n in rounds if n > last - keep or n == best}


@given(rounds=st.sets(st.integers(0, 40)), last=st.integers(0, 40))
def test_all_of_them_stay_where_all_are_kept(rounds, last):
    assert superseded(rounds, last, "all", None) == []


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_a_run_never_has_more_than_the_kept_ones_the_best_and_the_next(run, keep):
    retention = Retention(run, keep, 0)
    most, best = 0, None
    fill(run, 0)
    for number in range(1, 13):
        fill(run, number)
        most = max(most, len(there(run)))
        assert retention.settle(number, best).warnings == []
        best = 3 if number == 3 else best
    assert most == keep + 2
    assert there(run) == names(run, 3, *range(13 - keep, 13))


def test_the_initial_model_goes_like_any_other(run):
    fill(run, 0, 1, 2)
    assert Retention(run, 2, 0).settle(1, None).rounds == []
    assert Retention(run, 2, 0).settle(2, None).rounds == [0]
    assert there(run) == names(run, 1, 2)


def test_what_belongs_to_a_checkpoint_goes_with_it(run):
    fill(run, 0)
    fill(run, 1, 2, 3, side_layout=state(run))
    retired = Retention(run, 1, 0, [OPTIMIZER]).settle(3, 2)
    assert (retired.rounds, retired.warnings) == ([0, 1], [])
    assert there(run) == sorted([*names(run, 2, 3), state(run)(2).name, state(run)(3).name])


def test_what_may_go_becomes_the_file_that_the_next_round_writes(run):
    fill(run, 0, 1, 2, side_layout=state(run))
    was = run.checkpoint(1).stat().st_ino, state(run)(1).stat().st_ino
    assert Retention(run, 1, 3, [OPTIMIZER]).settle(2, None).rounds == [0, 1]
    space = temporary_of(run.checkpoint(3)), temporary_of(state(run)(3))
    assert tuple(path.stat().st_ino for path in space) == was
    kept = [run.checkpoint(2), state(run)(2)]
    assert there(run) == sorted(path.name for path in (*space, *kept))


def test_a_model_of_a_round_that_the_run_has_made_none_in_stays(run):
    fill(run, 0, 1, 2, 3)
    assert Retention(run, 1, 0).settle(3, None, own={0, 2, 3}).rounds == [0, 2]
    assert there(run) == names(run, 1, 3)


def test_models_that_were_not_their_rounds_last_go_with_what_belongs_to_them(run):
    fill(run, 1, 2)
    steps = [run.step_checkpoint(number, step) for number in (1, 2) for step in (0, 1)]
    files = [path for step in steps for path in (body_file(step, OPTIMIZER), step)]
    for path in files:
        path.write_text("step")
    retention = Retention(run, 2, 9)
    was = steps[3].stat().st_ino
    assert retention.settle(2, None, in_use=files[:4], steps=files) == ([], [])
    # The last of them is what the next model is written to.
    space = temporary_of(run.checkpoint(3))
    assert space.stat().st_ino == was
    kept = [*files[:4], run.checkpoint(1), run.checkpoint(2), space]
    assert there(run) == sorted(path.name for path in kept)


def test_after_the_last_round_nothing_is_left_for_a_next_one(run):
    fill(run, 0, 1, 2)
    assert Retention(run, 1, 2).settle(2, None).rounds == [0, 1]
    assert there(run) == names(run, 2)


def test_what_was_removed_half_is_removed_the_rest_of_the_way(run):
    # As after a kill between the two.
    fill(run, 0, 1, 2, side_layout=state(run))
    state(run)(1).unlink()
    assert Retention(run, 1, 0, [OPTIMIZER]).settle(2, None).rounds == [0, 1]
    assert there(run) == sorted([*names(run, 2), state(run)(2).name])


def test_a_round_after_the_durable_one_is_left_alone(run):
    fill(run, 0, 1, 2, 7)
    Retention(run, 1, 0).settle(2, None)
    assert there(run) == names(run, 2, 7)


@pytest.mark.parametrize(
    "name",
    [
        "round-0001.safetensors.tmp",
        "round-0001.safetensors~",
        "round-00001.safetensors",
        "round-001.safetensors",
        "round-0001-mine.safetensors",
        "my-round-0001.safetensors",
        "round-0001.SAFETENSORS",
        "round-\u0660\u0660\u0660\u0661.safetensors",
        "round-99999999999999999999999.safetensors",
        "model.safetensors",
    ],
)
def test_a_file_of_any_other_name_stays(run, name):
    fill(run, 9)
    (run.checkpoints / name).write_text("mine")
    assert Retention(run, 1, 0).settle(9, None) == ([], [])
    assert (run.checkpoints / name).read_text() == "mine"


def test_more_than_four_digits_are_a_round_too(run):
    fill(run, 9999, 10000, 10001)
    assert sorted(stored_rounds(run)) == [9999, 10000, 10001]
    assert Retention(run, 1, 0).settle(10001, None).rounds == [9999, 10000]
    assert there(run) == ["round-10001.safetensors"]


def test_links_and_folders_of_such_a_name_stay_and_so_does_what_they_lead_to(run, tmp_path):
    outside = tmp_path / "mine.safetensors"
    outside.write_text("mine")
    run.checkpoint(0).symlink_to(outside)
    run.checkpoint(1).mkdir()
    fill(run, 2, 3, 4)
    state(run)(2).symlink_to(outside)
    retired = Retention(run, 1, 0, [OPTIMIZER]).settle(4, None)
    assert (retired.rounds, retired.warnings) == ([2, 3], [])
    assert outside.read_text() == "mine"
    assert there(run) == sorted([*names(run, 0, 1, 4), state(run)(2).name])


def test_a_folder_that_is_a_link_is_not_entered(run, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    run.checkpoints.rename(elsewhere)
    run.checkpoints.symlink_to(elsewhere)
    fill(run, 0, 1, 2)
    retention = Retention(run, 1, 0)
    retired = retention.settle(2, None)
    assert retired.rounds == []
    assert retired.warnings == [
        "checkpoints cannot be searched: Not a directory; checkpoints.keep = 1 frees no more disk "
        "until it can be"
    ]
    assert len(list(elsewhere.iterdir())) == 3
    assert retention.settle(2, None).warnings == []


def test_a_file_that_is_gone_already_is_no_matter(run, monkeypatch):
    fill(run, 0, 1, 2)
    real = os.unlink

    def gone_meanwhile(name, *, dir_fd):
        real(name, dir_fd=dir_fd)
        real(name, dir_fd=dir_fd)

    monkeypatch.setattr(os, "unlink", gone_meanwhile)
    assert Retention(run, 1, 0).settle(2, None) == ([0, 1], [])
    assert there(run) == names(run, 2)


def test_a_file_that_cannot_be_removed_is_warned_of_once_and_tried_again(run, monkeypatch):
    fill(run, 0, 1, 2, side_layout=state(run))
    retention = Retention(run, 1, 0, [OPTIMIZER])

    def refuse(name, *, dir_fd):
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        retired = retention.settle(2, None)
        assert retired.rounds == []
        assert retired.warnings == [
            f"checkpoints/round-{number:04d}.optimizer.safetensors cannot be removed: Operation "
            "not permitted; checkpoints.keep = 1 frees no more disk until it can be"
            for number in (0, 1)
        ]
        assert retention.settle(2, None) == ([], [])
    assert retention.settle(2, None) == ([0, 1], [])
    assert there(run) == sorted([*names(run, 2), state(run)(2).name])


def test_the_final_model_outlives_the_checkpoint_it_is_a_link_to(run):
    fill(run, 0, 1, 2)
    run.publish(run.checkpoint(1), run.final_model)
    Retention(run, 1, 0).settle(2, None)
    assert run.final_model.read_text() == "model"
