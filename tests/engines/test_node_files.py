"""Where a node has the files of a run, and what it sends of them."""

import io
from pathlib import Path

import pytest

from flstream.engines.node_files import OwnFiles, digests_of, sees_run
from flstream.engines.node_messages import NONCE_FILE, NodeJob
from flstream.model.folder_archive import pack_folder


@pytest.fixture
def job(tmp_path):
    for name in ("run", "job"):
        (tmp_path / name).mkdir()
    (tmp_path / "run" / NONCE_FILE).write_text("number")
    script = tmp_path / "job" / "client.py"
    script.write_text("code")
    return NodeJob(
        str(tmp_path / "run"),
        str(tmp_path / "job"),
        {},
        threads=1,
        files=digests_of([script]),
        nonce="number",
        script=str(script),
        args={
            "data": f"{tmp_path}/job/data",
            "out": f"{tmp_path}/job/../other",
            "both": [f"--a={tmp_path}/run:{tmp_path}/job"],
        },
    )


@pytest.fixture
def files(job, tmp_path):
    archive = io.BytesIO()
    pack_folder(job.folder, archive)
    archive.seek(0)
    made = OwnFiles(job, archive)
    yield made
    made.close()


def test_a_node_sees_the_run_if_the_number_and_the_code_are_those_of_the_launcher(job, tmp_path):
    assert sees_run(job)
    script = tmp_path / "job" / "client.py"
    script.write_text("other code")
    assert not sees_run(job)
    script.unlink()
    assert not sees_run(job)
    script.write_text("code")
    (tmp_path / "run" / NONCE_FILE).write_bytes(b"\xff")
    assert not sees_run(job)


def test_paths_become_the_nodes_own(files, job):
    own, theirs = files.job, Path(job.folder).parent
    root = Path(own.run).parent
    assert Path(own.script) == root / "job" / "job" / "client.py"
    assert Path(own.script).read_text() == "code"
    assert own.args["data"] == f"{root}/job/job/data"
    assert own.args["both"] == [f"--a={root}/run:{root}/job/job"]
    assert own.args["out"] == f"{theirs}/job/../other"
