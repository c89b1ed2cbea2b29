"""Which checkpoints go: no more than was asked for, and nothing that is not the run's own."""

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_support import optimizer_state

from flstream.runs.retention import Retention
from flstream.runs.run_directory import RunDirectory


@pytest.fixture
def run(tmp_path):
    return RunDirectory.create("job", tmp_path / "run")


def fill(run, *rounds, states=()):
    for number in rounds:
        run.checkpoint(number).write_text("model")
    for number in states:
        optimizer_state(run, number).write_text("state")


def there(run):
    return sorted(path.name for path in run.checkpoints.iterdir())


def names(run, *rounds, states=()):
    paths = [run.checkpoint(number) for number in rounds]
    return sorted(path.name for path in [*paths, *(optimizer_state(run, n) for n in states)])


@given(number=st.integers(0, 40), last=st.integers(0, 40), keep=st.integers(1, 40))
def test_the_last_ones_and_all_later_ones_stay(tmp_path_factory, number, last, keep):
    run = RunDirectory(tmp_path_factory.getbasetemp())
    assert number >= Retention(run, "all").oldest(last)
    assert (number >= Retention(run, keep).oldest(last)) == (number > last - keep)


def test_a_round_has_a_model_under_whichever_name(run):
    fill(run, 0, 2, states=(3,))
    run.step_checkpoint(1, 0).write_text("model")
    run.step_checkpoint(2, 1).write_text("model")
    assert run.stored_rounds == {0, 1, 2}


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
    optimizer_state(run, 2).symlink_to(outside)
    going = [optimizer_state(run, 2), *map(run.checkpoint, range(4))]
    assert Retention(run, 1).remove(going) == (True, [])
    assert outside.read_text() == "mine"
    assert run.final_model.read_text() == "model"
    assert there(run) == sorted([*STRANGE, *names(run, 0, 1, 4, states=[2])])


def test_a_folder_that_is_a_link_is_not_entered(run, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    run.checkpoints.rename(elsewhere)
    run.checkpoints.symlink_to(elsewhere)
    fill(run, 0, 1, 2)
    retention = Retention(run, 1)
    is_gone, [warning] = retention.remove([run.checkpoint(0)])
    assert not is_gone
    assert "round-0000.safetensors cannot be removed: Not a directory" in warning
    assert len(list(elsewhere.iterdir())) == 3
    assert retention.remove([run.checkpoint(0)]) == (False, [])


def test_a_file_that_cannot_be_removed_is_warned_of_once_and_keeps_those_after_it(run, monkeypatch):
    fill(run, 0, 1, states=(0,))
    retention, going = Retention(run, 1), [optimizer_state(run, 0), run.checkpoint(0)]

    def refuse(name, *, dir_fd):
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as patched:
        patched.setattr(os, "unlink", refuse)
        is_gone, [warning] = retention.remove(going)
        assert not is_gone
        assert "round-0000.optimizer.safetensors cannot be removed: Oper" in warning
        assert retention.remove(going) == (False, [])
    assert retention.remove(going) == (True, [])
    assert there(run) == names(run, 1)
