"""GPUs are dealt out whole: names of them here, on a machine that need not have any."""

import os

import pytest
from cluster_support import Cluster, finish

from flstream.engines.gpus import GpuDealer, visible_gpus
from flstream.errors import WorkerLostError

PRINTS = """
(HERE / f"{site}-{round}.gpus").write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "unset"))
"""


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path / "job", extra=PRINTS, rounds=1)
    yield made
    made.close()


def seen(cluster):
    return {each.stem[:6]: each.read_text() for each in cluster.folder.glob("*.gpus")}


@pytest.mark.parametrize(
    ("listed", "found"),
    [
        ("0,1", ["0", "1"]),
        (" 3 , GPU-8932f937 ", ["3", "GPU-8932f937"]),
        ("", []),
        ("-1", []),
        ("1,-1,2", ["1"]),
        ("NoDevFiles", ["NoDevFiles"]),
    ],
)
def test_what_a_scheduler_has_granted_is_seen(listed, found, tmp_path):
    (tmp_path / "0000:01:00.0").mkdir()
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": listed}, tmp_path) == found


def test_without_that_it_is_all_that_the_driver_has(tmp_path):
    assert visible_gpus({}, tmp_path / "none") == []
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    assert visible_gpus({}, tmp_path) == ["0", "1"]


def test_gpus_are_dealt_whole_and_come_back():
    dealer = GpuDealer(["a", "b", "c", "d", "e"], 2)
    assert dealer.room == 2
    assert dealer.deal("site-1") == "a,b"
    assert dealer.deal("site-2") == "c,d"
    assert dealer.deal("site-1") == "a,b"  # its replacement has the same
    with pytest.raises(WorkerLostError, match=r"takes 2 GPUs .* 1 of 5 are free; set clients.par"):
        dealer.deal("site-3")
    dealer.give_back("site-1")
    dealer.give_back("site-1")
    assert dealer.deal("site-3") == "e,a"


def test_none_hides_all_and_no_number_leaves_them():
    assert GpuDealer(["a"], 0).deal("site-1") == ""
    assert GpuDealer(["a"], 0).room is None
    assert GpuDealer(["a"], None).deal("site-1") is None


@pytest.mark.nightly
def test_each_worker_of_one_machine_sees_its_own(cluster, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    done = cluster.local("--set", "engine.gpus=1")
    assert done.returncode == 0, done.stderr
    assert sorted(seen(cluster).values()) == ["4", "5", "6", "7"]
    for each in cluster.folder.glob("*.gpus"):
        each.unlink()
    done = cluster.local("--set", "engine.gpus=2", run="shared")
    assert done.returncode == 0, done.stderr
    assert set(seen(cluster).values()) == {"4,5", "6,7"}  # two workers do the work of four sites
    done = cluster.local("--set", "engine.gpus=2", "--set", "clients.parallel=4", run="more")
    assert done.returncode == 2
    assert "GPUs for 2 workers of 2 (engine.gpus), and the job has 4" in done.stderr


@pytest.mark.nightly
def test_each_worker_of_a_node_sees_its_own(cluster, monkeypatch):
    sim = cluster.simulate("--set", "engine.gpus=2")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    agents = [cluster.join(sim, "--cpus", "9") for _ in range(2)]
    status, text = finish(sim)
    assert status == 0, text
    assert text.count("with room for 2 workers") == 2
    assert [finish(agent)[0] for agent in agents] == [0, 0]
    assert sorted(seen(cluster).values()) == ["0,1", "0,1", "2,3", "2,3"]


@pytest.mark.nightly
def test_a_node_without_gpus_is_refused_where_workers_take_some(cluster, monkeypatch):
    sim = cluster.simulate("--set", "engine.gpus=1", "--set", "engine.wait=15s", nodes=1)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    status, text = finish(cluster.join(sim))
    assert status == 1
    assert "has 0 GPUs, and a worker takes 1 (engine.gpus)" in text
    assert finish(sim)[0] == 1
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ""


def test_they_are_listed_in_one_of_two_places(cluster):
    done = cluster.local("--set", "engine.gpus=1", "--set", 'clients.gpus=["0"]')
    assert done.returncode == 2
    assert "engine.gpus" in done.stderr
