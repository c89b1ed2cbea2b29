"""What goes to the nodes of a Ray cluster, and where workers find it there; without Ray."""

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import BaseModel

from flstream.engines.job_package import runtime_env_of
from flstream.engines.ray_node import PathMover
from flstream.errors import UsageError


@pytest.fixture
def job(tmp_path):
    """A job's folder with a large file, a run, an environment, caches and links."""
    folder, elsewhere = tmp_path / "a job", tmp_path / "elsewhere"
    for name in (
        *("client.py", "data/small.csv", ".hidden", ".git/config", "__pycache__/x.pyc"),
        *("runs/old/x", "other/events.jsonl", "venv/pyvenv.cfg", "package/runs/code.py"),
        *("../elsewhere/x", "now/x", "odd [name]?/x"),
    ):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    with (folder / "data" / "large.bin").open("wb") as file:
        file.truncate(17 << 20)
    (folder / "out").symlink_to(elsewhere)
    (folder / "circle").symlink_to(folder)
    (folder / "same").symlink_to(folder / "data")
    os.mkfifo(folder / "pipe")
    return folder


def test_what_stays_behind(job):
    env, large = runtime_env_of(job, job / "now", {"pip": ["x"], "excludes": ["*.csv"]})
    excludes = env.pop("excludes")
    assert env == {"working_dir": str(job), "pip": ["x"]}
    assert large == ["data/large.bin"]
    assert excludes[-1] == "*.csv"
    assert sorted(excludes[:-1]) == [
        "/.git",
        "/__pycache__",
        "/circle",
        "/data/large.bin",
        "/now",
        "/other",
        "/out",
        "/pipe",
        "/runs",
        "/venv",
    ]


def test_an_odd_name_stands_for_itself_alone(job):
    env, _ = runtime_env_of(job, job / "odd [name]?", {})
    assert r"/odd\ \[name\]\?" in env["excludes"]


def test_a_folder_that_ray_does_not_take_is_a_sentence(job):
    for number in range(34):
        with (job / f"part{number}").open("wb") as file:
            file.truncate(15 << 20)
    with pytest.raises(UsageError, match=r"more than 500 MiB, which Ray does not take"):
        runtime_env_of(job, job / "now", {})
    (job / ".rayignore").write_text("part*\n")
    runtime_env_of(job, job / "now", {})


class Code(BaseModel):
    path: Path
    words: list[str]


@dataclass(frozen=True)
class Spec:
    type: str


def test_paths_of_the_job_become_those_of_the_copy(tmp_path):
    (tmp_path / "copy").mkdir()
    for name in "client.py", "my file.txt":
        (tmp_path / "copy" / name).write_text("x")
    moved = PathMover("/home/job", str(tmp_path / "copy"))
    copy = f"{tmp_path}/copy"
    for before, after in {
        "/home/job": copy,
        "/home/job/client.py:Net": f"{copy}/client.py:Net",
        "/home/job/my file.txt": f"{copy}/my file.txt",
        "--data=/home/job/client.py --other /home/job": f"--data={copy}/client.py --other {copy}",
        "/home/job/large.bin": "/home/job/large.bin",  # it stayed behind
        "/home/jobs/client.py": "/home/jobs/client.py",
        "/other/home/job/client.py": "/other/home/job/client.py",
        "client.py": "client.py",
    }.items():
        assert moved(before) == after
    code = Code(path=Path("/home/job/client.py"), words=["python", "/home/job/client.py"])
    assert moved({"a": [code], "b": (1, None, Spec("/home/job/client.py:Net"))}) == {
        "a": [Code(path=Path(f"{copy}/client.py"), words=["python", f"{copy}/client.py"])],
        "b": (1, None, Spec(f"{copy}/client.py:Net")),
    }
