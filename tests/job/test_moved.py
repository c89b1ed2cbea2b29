"""A job for a machine that has a copy of its folder."""

import shutil

import pytest


@pytest.fixture
def copy(folder, tmp_path_factory):
    """A copy of the job's folder."""
    (folder / "own.py").write_text("class Net: ...\n")
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
        assert moved.train.script == copy / "client.py"
        assert moved.model.factory == f"{copy}/model.py:build"
        assert moved.moved(folder) == job
