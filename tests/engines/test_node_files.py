"""Where a node has the files of a run, and what it sends of them."""

import io
from pathlib import Path

import pytest

from flstream.engines.node_files import OwnFiles, digests_of, sees_run
from flstream.engines.node_messages import NONCE_FILE, PIECE_BYTES, NodeJob
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


def sent(files):
    return [(each.kind, each.name, bytes(each.data)) for each in files.output()]


def site(files, name="site-1"):
    folder = Path(files.job.run) / "sites" / name
    folder.mkdir(exist_ok=True)
    return folder


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


def test_what_is_added_to_logs_is_sent_once(files):
    log = site(files) / "log.txt"
    log.write_text("one")
    (Path(files.job.run) / "worker-1.log").write_text("two")
    assert sent(files) == [("worker log", "worker-1", b"two"), ("site log", "site-1", b"one")]
    assert sent(files) == []
    with log.open("a") as file:
        file.write(" more")
    assert sent(files) == [("site log", "site-1", b" more")]
    log.write_text("cut")  # goes on from its beginning
    assert sent(files) == [("site log", "site-1", b"cut")]
    # No log keeps another from being sent, and a split is sent when it changes, and whole.
    for name in ("site-3", "site-4"):
        (site(files, name) / "log.txt").write_bytes(bytes(PIECE_BYTES + 1))
    assert [len(data) for _, _, data in sent(files)] == [PIECE_BYTES, PIECE_BYTES]
    assert [len(data) for _, _, data in sent(files)] == [1, 1]
    split = log.with_name("split.json")
    split.write_text("{}")
    assert sent(files) == [("split", "site-1", b"{}")]
    assert sent(files) == []
    split.write_bytes(bytes(PIECE_BYTES + 1))
    assert sent(files) == []


def test_the_folder_goes_and_what_was_left_in_it_is_told(files):
    root = Path(files.job.run).parent
    work = site(files) / "work" / "deep"
    work.mkdir(parents=True)
    (work / "a.txt").touch()
    left = files.close()
    assert (left.count, left.first) == (1, "sites/site-1/work/deep/a.txt")
    assert not root.exists()
