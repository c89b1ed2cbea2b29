"""A run goes on with the job and the files that it began with, wherever they lie by now."""

import json
import shutil

import pytest

from flstream.errors import UsageError
from flstream.job import load_job, render_job
from flstream.runs.job_match import check_same_job, files_of, render_files
from flstream.runs.run_directory import RunDirectory

JOB = """
name = test, rounds = 3, clients.count = 2
model.factory = "model:build"
train.script = client.py
workflow { type = "relay.py:relay", args.hops = 3 }
filters.up = [{ type = "mine.py:Mine", args { size = 1 } }, percentile_privacy]
"""
RELAY = '{ type = "relay.py:relay", args.hops = 3 }'
FILES = {
    "job.conf": JOB,
    "client.py": "import os\n\ndef late():\n    from parts.data import load\n",
    "model.py": "import sizes\n\ndef build(): ...\n",
    "sizes.py": "SIZE = 3\n",
    "relay.py": "def relay(run, args): ...\ndef other(run, args): ...\n",
    "mine.py": "class Mine:\n  def __init__(self, size): ...\n  def __call__(self, v, b): ...\n",
    "parts/__init__.py": "",
    "parts/data.py": "from . import more\nfrom .more import that\n",
    "parts/more.py": "that = 1\n",
    "unused.py": "1 / 0\n",
}


@pytest.fixture
def folder(tmp_path):
    """The folder of a job."""
    folder = tmp_path / "job"
    for name, text in FILES.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def begun(folder, path, *overrides):
    """A run of a job, as its launcher begins it."""
    job = load_job(folder / "job.conf", overrides)
    run = RunDirectory.create(job.name, path)
    run.write(run.job_file, render_job(job))
    run.write(run.job_files, render_files(job))
    return run


@pytest.fixture
def run(folder, tmp_path):
    return begun(folder, tmp_path / "run")


def check(folder, run, *overrides):
    check_same_job(load_job(folder / "job.conf", overrides), run)


def refusal(folder, run, *overrides):
    with pytest.raises(UsageError) as caught:
        check(folder, run, *overrides)
    return str(caught.value).replace(f"{folder}/", "")


def append(folder, name, text="# changed\n"):
    with (folder / name).open("a") as file:
        file.write(text)


def test_what_the_code_imports_from_beside_itself_is_noted(run):
    notes = json.loads(run.job_files.read_text())["files"]
    names = {key: [file["name"] for file in files] for key, files in notes.items()}
    assert names == {
        "train.script": ["client.py", "parts/__init__.py", "parts/data.py", "parts/more.py"],
        "model.factory": ["model.py", "sizes.py"],
        "workflow.type": ["relay.py"],
        "filters.up[0].type": ["mine.py"],
    }


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: [],
        lambda folder: append(folder, "unused.py"),
        lambda folder: (folder / "job.conf").write_text("# as before\n" + JOB),
        lambda folder: (folder / "client.py").rename(folder / "x.py") and ["train.script=x.py"],
        lambda folder: ["checkpoints.keep=7", "tracking.type=tensorboard", "memory_limit=1 GiB"],
    ],
)
def test_the_same_job_goes_on_without_a_word(folder, run, change):
    overrides = change(folder)
    check(folder, run, *(overrides if isinstance(overrides, list) else []))


def test_a_job_goes_on_where_it_was_moved_or_is_reached_through_a_link(folder, run, tmp_path):
    (tmp_path / "link").symlink_to(folder)
    check(tmp_path / "link", run)
    through_a_link = begun(tmp_path / "link", tmp_path / "other")
    check(folder, through_a_link)
    moved = tmp_path / "elsewhere" / "moved"
    shutil.copytree(folder, moved)
    shutil.rmtree(folder)
    check(moved, run)
    append(moved, "mine.py")
    assert "mine.py was changed since the run began" in refusal(moved, run)


def test_files_that_were_changed_are_named_with_both_digests_beside_keys_that_differ(folder, run):
    for name in (changed := ["client.py", "parts/more.py", "sizes.py", "relay.py", "mine.py"]):
        append(folder, name)
    said = refusal(folder, run, "seed=3")
    assert "was made by another job: seed is 0 there and 3 here; " in said
    for name in changed:
        digests = said.partition(f"{name} was changed since the run began (digest ")[2]
        there, here = digests.partition(")")[0].removesuffix(" here").split(", ")
        assert there.removesuffix(" there") != here
    assert "or leave out --resume to start a new run" in said


def test_files_that_came_and_went_are_named(folder, run):
    shutil.rmtree(folder / "parts")
    (folder / "os.py").write_text("")
    said = refusal(folder, run)
    assert "; parts/data.py, which client.py imported, is gone; " in said
    assert "os.py, which client.py imports, is new; " in said


@pytest.mark.parametrize(
    ("text", "overrides", "words"),
    [
        (JOB, ["seed=9", "checkpoints.keep=1"], ["its checkpoints.keep, memory_limit, tracking"]),
        (JOB, ["workflow.type=relay.py:other"], ['"relay.py:relay" there and "relay.py:other" h']),
        (JOB, ["workflow.args.more=[1]"], ["workflow.args.more is not given there and [1] here"]),
        (JOB.replace("size = 1", "size = 2"), [], ["filters.up is ["]),
        (f"{JOB}workflow = [{RELAY}, {RELAY}]", [], ["one section there and a list of 2 here"]),
        (
            JOB,
            ["rounds=2", "clients.count=8", "clients.per_round=1.0", "train.args={ lr = 0.1 }"],
            ["rounds is 3 there and 2 here", "clients.count is 2 there and 8 here",
             "per_round is null there and 1.0", "train.args.lr is not given there and 0.1 here"],
        ),
    ],
)  # fmt: skip
def test_another_job_is_refused_with_every_key_that_differs(folder, run, text, overrides, words):
    (folder / "job.conf").write_text(text)
    said = refusal(folder, run, *overrides)
    assert f"the run in {run.path} was made by another job: " in said
    assert [each for each in words if each not in said] == []


def test_a_list_of_workflows_is_compared_one_by_one(folder, tmp_path):
    append(folder, "job.conf", f"workflow = [{{}}, {RELAY}]")
    run = begun(folder, tmp_path / "run")
    check(folder, run)
    said = refusal(folder, run, "workflow[1].args.a=1")
    assert "workflow[1].args.a is not given there and 1 here" in said
    append(folder, "relay.py")
    assert "relay.py was changed since the run began" in refusal(folder, run)


def test_initial_weights_are_compared_by_what_they_hold(folder, tmp_path):
    weights, override = folder / "w.safetensors", "model.initial=w.safetensors"
    weights.write_bytes(bytes(3 << 20))
    run = begun(folder, tmp_path / "run", override)
    with weights.open("r+b") as file:
        file.seek(2 << 20)
        file.write(b"1")
    assert "w.safetensors was changed since the run began" in refusal(folder, run, override)


def test_the_job_of_a_run_lies_in_the_folder_of_the_job_that_it_ran(folder, run, tmp_path):
    moved = tmp_path / "moved"
    run.path.rename(moved)
    assert load_job(moved).folder == load_job(folder).folder == folder


def test_what_a_run_has_noted_of_its_job_is_named_where_it_is_damaged(folder, run):
    job = load_job(folder / "job.conf")
    run.job_file.write_text("name = {")
    with pytest.raises(UsageError, match=r"run/job.conf"):
        check_same_job(job, run)
    for text in (b"{", b"[]", b'{"train.script": [{"name": 3}]}'):
        run.job_files.write_bytes(text)
        with pytest.raises(UsageError, match=r"job.files.json cannot be read: "):
            check_same_job(job, run)


def test_a_file_that_is_gone_by_then_is_a_sentence(folder):
    job = load_job(folder / "job.conf")
    (folder / "client.py").unlink()
    with pytest.raises(UsageError, match=r"client.py cannot be read: No such file.*; put it back"):
        files_of(job)
