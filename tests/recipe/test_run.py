"""A job file run from Python, and a sweep of one."""

import pytest
from rate_job import write_job
from run_fixtures import share_host_in_sweeps

import flstream
from flstream.errors import UsageError
from flstream.job import JobError
from flstream.recipe import RunFailedError, SimEnv, sweep


@pytest.fixture
def job(tmp_path, monkeypatch, fork_server):
    write_job(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_job_file_runs_and_resumes_with_other_values(job):
    run = flstream.run(job, set={"rounds": 1, "train.args.lr": 2}, run_dir="one", quiet=True)
    assert run.load()["w"].tolist() == [2, 3, 4, 5, 6, 7]
    more = flstream.run(
        "job.conf", set={"rounds": 3, "train.args.lr": 2}, run_dir="one", resume=True, quiet=True
    )
    assert more.summary.rounds_completed == 3
    assert more.load()["w"].tolist() == [6, 7, 8, 9, 10, 11]


def test_mistakes_of_a_call_are_sentences(job):
    with pytest.raises(JobError, match="rounds"):
        flstream.run("job.conf", set={"rounds": "many"})
    with pytest.raises(UsageError, match="job"):
        flstream.run(3)
    with pytest.raises(JobError, match="no such job file"):
        flstream.run("nowhere.conf")
    (job / "client.py").write_text("1 / 0")
    with pytest.raises(RunFailedError, match="ZeroDivisionError"):
        flstream.run(job, quiet=True)
    with pytest.raises(AttributeError, match="has no attribute 'walk'"):
        flstream.walk  # noqa: B018


def test_a_sweep_returns_its_runs_and_its_settings(job, monkeypatch):
    share_host_in_sweeps(monkeypatch)
    runs = sweep(job, {"train.args.lr": [1, 2]}, env=SimEnv(quiet=True), run_dir="swept")
    assert [run.load()["w"][0].item() for run in runs] == [2, 4]
    assert runs.best == {"train.args.lr": 2}
    assert len(runs) == 2
    assert runs.failures == {}
    variants = [{"workflow.type": "cyclic", "rounds": 1}, {"rounds": 3}]
    runs = sweep(job, variants=variants, env=SimEnv(quiet=True), run_dir="varied")
    assert [run.summary.rounds_completed for run in runs] == [1, 3]
    with pytest.raises(JobError, match=r"clients\.count"):
        sweep(job, {"clients.count": [2, "none"]}, run_dir="other")
    with pytest.raises(UsageError, match="vary"):
        sweep(job, {"train.args.lr": "12"}, run_dir="other")
