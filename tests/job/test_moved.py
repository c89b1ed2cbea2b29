"""A job for a machine that has a copy of its folder."""

import pickle
import shutil

import pytest

OWN = """
class Net: ...
def program(run, args): ...
"""


@pytest.fixture
def copy(folder, tmp_path_factory):
    """A copy of the job's folder."""
    (folder / "own.py").write_text(OWN)
    (folder / "my file.txt").write_text("x")
    copy = tmp_path_factory.mktemp("node") / "copy"
    shutil.copytree(folder, copy)
    return copy


def test_paths_of_the_job_become_those_of_the_copy(load, folder, copy):
    for before, after in {
        f"{folder}": f"{copy}",
        f"{folder}/own.py:Net": f"{copy}/own.py:Net",
        f"{folder}/my file.txt": f"{copy}/my file.txt",
        f"--data={folder}/own.py --to {folder}": f"--data={copy}/own.py --to {copy}",
        f"{folder}/large.bin": f"{folder}/large.bin",  # it stayed behind
        f"{folder}s/own.py": f"{folder}s/own.py",
        f"/other{folder}/own.py": f"/other{folder}/own.py",
        "own.py": "own.py",
    }.items():
        job = load(f'train.args {{ data = "{before}", nested {{ list = ["{before}", 1] }} }}')
        moved = job.moved(copy)
        assert moved.train.args == {"data": after, "nested": {"list": [after, 1]}}
        assert (job.folder, moved.folder) == (folder, copy)


def test_code_of_ones_own_is_that_of_the_copy(load, folder, copy):
    job = load(
        """
        filters.up = [{ type = "own.py:Net", args { a = 1 } }]
        workflow { type = "own.py:program", args { b = 2 } }
        """
    )
    moved = pickle.loads(pickle.dumps(job)).moved(copy)
    assert moved.train.script == copy / "client.py"
    assert moved.model.factory == f"{copy}/model.py:build"
    [spec] = moved.filters.up
    assert (spec.type, dict(spec.args)) == (f"{copy}/own.py:Net", {"a": 1})
    assert moved.stages[0].type == f"{copy}/own.py:program"
    assert moved.stages[0].args.model_dump()["b"] == 2
    assert moved.moved(folder) == job
