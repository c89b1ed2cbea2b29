"""GPUs are dealt out whole: names of them here, on a machine that need not have any."""

import pytest
from training_scripts import QUIET, plain

from flstream.engines.gpus import GpuDealer, visible_gpus
from flstream.errors import UsageError, WorkerLostError
from flstream.job import JobError

PRINTS = plain('print("GPUs:", os.environ.get("CUDA_VISIBLE_DEVICES"))')
JOB = ["clients.count=4", "rounds=1", QUIET]


def test_gpus_are_those_that_a_scheduler_has_granted_or_else_all_that_the_driver_has(tmp_path):
    for name in ("0000:01:00.0", "0000:02:00.0"):
        (tmp_path / name).mkdir()
    for listed, found in {
        "0,1": ["0", "1"],
        " 3 , GPU-8932f937 ": ["3", "GPU-8932f937"],
        "": [],
        "-1": [],
        "1,-1,2": ["1"],
        "NoDevFiles": ["NoDevFiles"],
    }.items():
        assert visible_gpus({"CUDA_VISIBLE_DEVICES": listed}, tmp_path) == found
    assert visible_gpus({}, tmp_path / "none") == []
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
    # None hides all, and no number leaves them.
    assert GpuDealer(["a"], 0).deal("site-1") == ""
    assert GpuDealer(["a"], 0).room is None
    assert GpuDealer(["a"], None).deal("site-1") is None


@pytest.mark.nightly
def test_each_worker_of_one_machine_sees_its_own(jobs_of_their_own, monkeypatch):
    def seen(*overrides):
        run = jobs_of_their_own.run(PRINTS, *JOB, *overrides).finished()
        sites = [run.directory.site_log(f"site-{number}") for number in range(1, 5)]
        return [log.read_text().removeprefix("GPUs: ").rstrip() for log in sites]

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,5,6,7")
    assert sorted(seen("engine.gpus=1")) == ["4", "5", "6", "7"]
    assert set(seen("engine.gpus=2")) == {"4,5", "6,7"}  # two workers do the work of four sites
    assert set(seen("engine.gpus=0")) == {""}
    with pytest.raises(UsageError, match=r"for 2 workers of 2 \(engine.gpus\), and the job has 4"):
        seen("engine.gpus=2", "clients.parallel=4")


def test_they_are_listed_in_one_of_two_places(jobs, processes):
    with pytest.raises(JobError, match=r"clients\.gpus"):
        jobs.make("", "engine.gpus=1", 'clients.gpus=["0"]')
