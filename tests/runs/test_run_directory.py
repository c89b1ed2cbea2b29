"""The folder of a run: found, made, kept to oneself, and never anybody else's."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from journal_support import DIGESTS, a_job, a_run

from flstream.errors import UsageError
from flstream.model.checkpoint import FileSource
from flstream.model.digests import body_digest
from flstream.runs.model_files import OPTIMIZER, ModelFile, body_file
from flstream.runs.resume import plan_resume
from flstream.runs.run_directory import RunDirectory


def test_one_run_at_a_time_in_a_folder(tmp_path):
    run = a_run(tmp_path / "run")
    enter = f"from {RunDirectory.__module__} import *; import sys; from pathlib import Path\n"
    enter += "with RunDirectory(Path(sys.argv[1])).in_use(): print('entered')"
    command = [sys.executable, "-c", enter, run.path]
    with run.in_use():
        with pytest.raises(UsageError, match="still going on"), run.in_use():
            pass
        other = subprocess.run(command, capture_output=True, text=True)
        assert (other.returncode, other.stdout) == (1, "")
        assert "UsageError: " in other.stderr
    # An error in a run is not taken for one of its lock.
    with pytest.raises(FileNotFoundError), run.in_use():
        raise FileNotFoundError("of the run")


def test_the_folder_is_the_one_named_or_the_newest_of_the_job(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = RunDirectory.reopen("job")
    assert first.path.parent == tmp_path / "runs"
    first.path.rename(tmp_path / "runs" / "job-20200101-000000")
    for name in ("job-20210101-000000", "job-20210101-000000-2", "job-20210101-000000-10"):
        RunDirectory.create("job", tmp_path / "runs" / name)
    for name in ("job-b-20300101-000000", "jobs", "job-20300101-000000.bak"):
        (tmp_path / "runs" / name).mkdir()
    (tmp_path / "runs" / "job-20310101-000000").touch()
    assert RunDirectory.reopen("job").path.name == "job-20210101-000000-10"
    named = RunDirectory.reopen("job", Path("new/deep"))
    assert named.path == tmp_path / "new" / "deep"
    assert named.checkpoints.is_dir()
    (tmp_path / "empty").mkdir()
    assert RunDirectory.reopen("job", tmp_path / "empty").events.exists()


def test_a_folder_that_was_cut_off_while_it_was_made_is_as_good_as_new(tmp_path):
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    run = RunDirectory.reopen("job", tmp_path / "run")
    assert run.sites.is_dir()
    assert plan_resume(a_job(), run) is None


@pytest.mark.parametrize(
    "names",
    [
        ["job.conf", "client.py"],
        ["checkpoints/round-0001.safetensors"],
        ["checkpoints/mine", "sites/mine"],
    ],
)
def test_a_folder_that_is_no_run_is_refused_and_left_alone(tmp_path, names):
    for name in names:
        path = tmp_path / "mine" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("precious")
    before = sorted((tmp_path / "mine").rglob("*"))
    with pytest.raises(UsageError, match="mine is not a run directory"):
        RunDirectory.reopen("job", tmp_path / "mine")
    assert sorted((tmp_path / "mine").rglob("*")) == before


def test_a_file_and_a_folder_that_lacks_something_are_refused_by_name(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "mine" / "checkpoints").mkdir(parents=True)
    (tmp_path / "mine" / "job.conf").touch()
    for name, words in [
        ("file", "file is not a run"),
        ("mine", "lacks sites/; name one with --ru"),
    ]:
        with pytest.raises(UsageError, match=words):
            RunDirectory.reopen("job", tmp_path / name)


@pytest.mark.parametrize("links", [True, False])
def test_a_final_model_that_is_published_again_harms_no_checkpoint(tmp_path, monkeypatch, links):
    run = a_run(tmp_path / "run", completed=3)
    if not links:
        monkeypatch.setattr(os, "link", _no_links)
    for number in (2, 3, 3):
        run.publish(run.checkpoint(number), run.final_model)
        assert body_digest(FileSource(run.final_model)) == DIGESTS[number]
    assert [body_digest(FileSource(run.checkpoint(n))) for n in range(4)] == [
        DIGESTS[n] for n in range(4)
    ]
    assert not list(run.path.glob("*.tmp"))


def _no_links(*_: object) -> None:
    raise OSError("no hard links here")


@given(
    st.builds(
        ModelFile,
        st.integers(0, 10**9),
        st.none() | st.integers(0, 10**6),
        st.sampled_from(["", "optimizer", "control"]),
        st.booleans(),
    )
)
def test_the_name_of_a_models_file_says_what_it_is(file):
    assert ModelFile.parse(file.name) == file


def test_files_of_a_model_have_the_names_that_scripts_rely_on(tmp_path):
    run = RunDirectory(tmp_path)
    models = [run.checkpoint(3), run.step_checkpoint(3, 1)]
    beside = [*models, run.step_checkpoint(12345, 100)]
    names = [*models, *(body_file(model, OPTIMIZER) for model in beside)]
    assert [path.name for path in names] == [
        "round-0003.safetensors",
        "round-0003.step-01.safetensors",
        "round-0003.optimizer.safetensors",
        "round-0003.step-01.optimizer.safetensors",
        "round-12345.step-100.optimizer.safetensors",
    ]
    assert ModelFile.parse("round-00003.safetensors") is None
    assert ModelFile.parse("round-0003.step-001.safetensors") is None


def test_updates_of_one_effect_go_alone_and_with_the_last_of_them_their_folder(tmp_path):
    run = RunDirectory.create("run", tmp_path / "run")
    for effect in (3, 4):
        run.updates(effect).mkdir(parents=True)
        (run.updates(effect) / "site-1.safetensors").write_bytes(b"")
    run.discard_updates(3)
    assert not run.updates(3).exists()
    assert os.listdir(run.updates(4)) == ["site-1.safetensors"]
    run.discard_updates(after=4)
    assert os.listdir(run.updates(4)) == ["site-1.safetensors"]
    run.discard_updates(after=3)
    assert not run.updates(4).parent.exists()
    run.discard_updates(4)
