"""A run goes on with the files that it began with, wherever they lie by now."""

import json
import shutil
from pathlib import Path

import pytest

from flstream.errors import UsageError
from flstream.job import Job, load_job, render_job
from flstream.runs.job_files import files_of, render_files
from flstream.runs.job_match import check_same_job
from flstream.runs.run_directory import RunDirectory

JOB = """
name = test, rounds = 3, clients.count = 2
model.factory = "model:build"
train.script = client.py
workflow { type = "relay.py:relay", args.hops = 3 }
"""

FILES = {
    "client.py": "import os\n\ndef late():\n    from parts.data import load\n",
    "model.py": "import sizes\n\ndef build(): ...\n",
    "sizes.py": "SIZE = 3\n",
    "relay.py": "def relay(run, args): ...\ndef other(run, args): ...\n",
    "parts/__init__.py": "",
    "parts/data.py": "from . import more\nfrom .more import that\n",
    "parts/more.py": "that = 1\n",
    "unused.py": "1 / 0\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of a job."""
    folder = tmp_path / "job"
    for name, text in {**FILES, "job.conf": JOB}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def begun(job: Job, path: Path) -> RunDirectory:
    """A run of a job, as its launcher begins it."""
    run = RunDirectory.create(job.name, path)
    run.write(run.job_file, render_job(job))
    run.write(run.job_files, render_files(job))
    return run


@pytest.fixture
def run(folder: Path, tmp_path: Path) -> RunDirectory:
    return begun(load_job(folder / "job.conf"), tmp_path / "run")


def refusal(folder: Path, run: RunDirectory, *overrides: str) -> str:
    with pytest.raises(UsageError) as caught:
        check_same_job(load_job(folder / "job.conf", overrides), run)
    return str(caught.value).replace(f"{folder}/", "")


def test_what_the_code_imports_from_beside_itself_is_noted(folder: Path, run: RunDirectory) -> None:
    names = {
        key: [file["name"] for file in files]
        for key, files in json.loads(run.job_files.read_text()).items()
    }
    assert names == {
        "train.script": ["client.py", "parts/__init__.py", "parts/data.py", "parts/more.py"],
        "model.factory": ["model.py", "sizes.py"],
        "workflow.type": ["relay.py"],
    }


def test_the_same_files_are_the_same_job(folder: Path, run: RunDirectory) -> None:
    check_same_job(load_job(folder / "job.conf"), run)


def test_a_job_that_was_moved_goes_on_without_a_word(
    folder: Path, run: RunDirectory, tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere" / "moved"
    moved.parent.mkdir()
    folder.rename(moved)
    check_same_job(load_job(moved / "job.conf"), run)


def test_a_job_that_is_reached_through_a_link_goes_on_without_a_word(
    folder: Path, run: RunDirectory, tmp_path: Path
) -> None:
    (tmp_path / "link").symlink_to(folder)
    check_same_job(load_job(tmp_path / "link" / "job.conf"), run)
    through_a_link = begun(load_job(tmp_path / "link" / "job.conf"), tmp_path / "other")
    check_same_job(load_job(folder / "job.conf"), through_a_link)


def test_a_file_of_another_name_that_holds_the_same_is_the_same(
    folder: Path, run: RunDirectory
) -> None:
    (folder / "client.py").rename(folder / "train.py")
    check_same_job(load_job(folder / "job.conf", ["train.script=train.py"]), run)


@pytest.mark.parametrize("name", ["client.py", "parts/more.py", "sizes.py", "relay.py"])
def test_a_file_that_was_changed_is_named_with_both_digests(
    folder: Path, run: RunDirectory, name: str
) -> None:
    with (folder / name).open("a") as file:
        file.write("# changed\n")
    said = refusal(folder, run)
    assert said.startswith(
        f"the run in {run.path} was made with other files: {name} was changed since the run began "
        "(digest "
    )
    there, here = said.partition("(digest ")[2].partition(")")[0].removesuffix(" here").split(", ")
    assert there.removesuffix(" there") != here
    assert said.endswith(
        "; put back what it was made with, or leave out --resume to start a new run"
    )


def test_files_that_came_and_went_are_named(folder: Path, run: RunDirectory) -> None:
    shutil.rmtree(folder / "parts")
    (folder / "os.py").write_text("")
    said = refusal(folder, run)
    assert "; parts/data.py, which client.py imported, is gone; " in said
    assert "os.py, which client.py imports, is new; " in said


def test_a_change_of_what_the_code_does_not_import_is_none(folder: Path, run: RunDirectory) -> None:
    (folder / "unused.py").write_text("")
    (folder / "job.conf").write_text("# as before\n" + JOB)
    check_same_job(load_job(folder / "job.conf"), run)


def test_another_function_of_the_same_file_is_another_job(folder: Path, run: RunDirectory) -> None:
    said = refusal(folder, run, "workflow.type=relay.py:other")
    assert 'workflow.type is "relay.py:relay" there and "relay.py:other" here; give the' in said


def test_keys_and_files_that_differ_are_named_together(folder: Path, run: RunDirectory) -> None:
    (folder / "client.py").write_text("")
    said = refusal(folder, run, "seed=3", "workflow.args.hops=4", "workflow.args.more=[1]")
    for words in (
        "was made by another job: seed is 0 there and 3 here; ",
        "workflow.args.hops is 3 there and 4 here; ",
        "workflow.args.more is not given there and [1] here; ",
        "client.py was changed since the run began",
        "its checkpoints.keep, tracking and engine others), or leave out --resume",
    ):
        assert words in said


def test_an_argument_that_is_no_longer_given_is_named(folder: Path, run: RunDirectory) -> None:
    (folder / "job.conf").write_text(JOB.replace("args.hops = 3", ""))
    assert "workflow.args.hops is 3 there and not given here" in refusal(folder, run)


def test_more_workflows_are_another_job(folder: Path, run: RunDirectory) -> None:
    section = '{ type = "relay.py:relay", args.hops = 3 }'
    (folder / "job.conf").write_text(JOB + f"workflow = [{section}, {section}]")
    said = refusal(folder, run)
    assert "another job: workflow is one section there and a list of 2 here; give" in said


def test_a_list_of_workflows_is_compared_one_by_one(folder: Path, tmp_path: Path) -> None:
    (folder / "job.conf").write_text(JOB + 'workflow = [{}, { type = "relay.py:relay" }]')
    run = begun(load_job(folder / "job.conf"), tmp_path / "run")
    moved = tmp_path / "moved"
    folder.rename(moved)
    check_same_job(load_job(moved / "job.conf"), run)
    assert "workflow[1].args.a is not given there and 1 here" in refusal(
        moved, run, "workflow[1].args.a=1"
    )
    (moved / "relay.py").write_text("def relay(run, args): return 1\n")
    assert "relay.py was changed since the run began" in refusal(moved, run)


def test_initial_weights_are_compared_by_what_they_hold(folder: Path, tmp_path: Path) -> None:
    weights = folder / "w.safetensors"
    weights.write_bytes(bytes(3 << 20))
    job = load_job(folder / "job.conf", ["model.initial=w.safetensors"])
    [described] = files_of(job)["model.initial"]
    assert (described.name, described.bytes) == ("w.safetensors", 3 << 20)
    run = begun(job, tmp_path / "run")
    with weights.open("r+b") as file:
        file.seek(2 << 20)
        file.write(b"1")
    said = refusal(folder, run, "model.initial=w.safetensors")
    assert "w.safetensors was changed since the run began" in said


def test_a_run_of_an_earlier_version_is_compared_by_paths(
    folder: Path, run: RunDirectory, tmp_path: Path
) -> None:
    run.job_files.unlink()
    with (folder / "client.py").open("a") as file:
        file.write("# changed\n")
    check_same_job(load_job(folder / "job.conf"), run)
    folder.rename(tmp_path / "moved")
    said = refusal(tmp_path / "moved", run)
    assert 'train.script is "' in said
    assert said.count(" there and ") == 3


@pytest.mark.parametrize("text", [b"{", b"[]", b'{"train.script": [{"name": 3}]}'])
def test_a_damaged_note_is_a_sentence(folder: Path, run: RunDirectory, text: bytes) -> None:
    run.job_files.write_bytes(text)
    assert "job.files.json cannot be read: " in refusal(folder, run)


def test_a_file_that_is_gone_by_then_is_a_sentence(folder: Path) -> None:
    job = load_job(folder / "job.conf")
    (folder / "client.py").unlink()
    with pytest.raises(UsageError, match=r"client.py cannot be read: No such file.*; put it back"):
        files_of(job)


def test_a_filter_of_ones_own_may_move_but_not_change(folder: Path, tmp_path: Path) -> None:
    filters = 'filters.up = [{ type = "mine.py:Mine", size = %d }, percentile_privacy]'
    own = "class Mine:\n  def __init__(self, size): ...\n  def __call__(self, values, block): ...\n"
    (folder / "mine.py").write_text(own)
    (folder / "job.conf").write_text(f"{JOB}\n{filters % 1}")
    run = begun(load_job(folder / "job.conf"), tmp_path / "run")
    moved = tmp_path / "elsewhere" / "moved"
    shutil.copytree(folder, moved)
    shutil.rmtree(folder)
    check_same_job(load_job(moved / "job.conf"), run)
    (moved / "mine.py").write_text(own + "\n")
    assert "mine.py was changed since the run began" in refusal(moved, run)
    (moved / "mine.py").write_text(own)
    (moved / "job.conf").write_text(f"{JOB}\n{filters % 2}")
    assert "filters.up is [" in refusal(moved, run)
