"""`flstream simulate --memory-limit`: real groups around real processes, and what happens at it."""

import fcntl
import json
import os
import signal
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from cli_support import started
from nightly_cases import first_and_nightly

from flstream.telemetry import MEMORY_GROUP
from flstream.telemetry.memory_limit import _places, limited

MORE = "2GiB"
# Where the kernel has the group of each process between a site and the launcher.
NOTES_GROUPS = """\
import os, re
    groups, pid = [], os.getpid()
    while "FLSTREAM_MEMORY_GROUP" in os.environ:
        status = open(f"/proc/{pid}/status").read()
        groups.append(open(f"/proc/{pid}/cgroup").read())
        if pid == int(os.environ["FLSTREAM_MEMORY_GROUP"].split()[0]):
            break
        pid = int(re.search(r"PPid:\\s*(\\d+)", status)[1])
    open("groups", "w").write("|".join([*groups, open("/proc/self/oom_score_adj").read()]))
"""
TAKES = """\
if model.current_round == 1 and flare.get_site_name() == "site-2":
        bytearray(os.urandom(1 << 20) * 600)
"""
# A process of the site's own is killed at the limit, and the site later, by somebody.
KILLED = """\
if flare.get_site_name() == "site-2":
        import signal, subprocess, sys
        if model.current_round == 1:
            code = "import os; bytearray(os.urandom(1 << 20) * 2000)"
            assert subprocess.run([sys.executable, "-c", code]).returncode == -signal.SIGKILL
        else:
            os.kill(os.getpid(), signal.SIGKILL)
"""
WAITS = """\
if model.current_round == 1 and flare.get_site_name() == "site-1":
        import time
        open({begun!r}, "w").close()
        time.sleep(600 if not os.path.exists({over!r}) else 0)
"""


def own_groups() -> set[Path]:
    """Groups that runs of this process have made, or have left."""
    parents = {place[2] for place in _places(Path("/proc/self"))}
    return {path for parent in parents for path in parent.glob("flstream-*")}


@pytest.fixture
def no_group_left(tmp_path_factory):
    """Skip where no group can be made; else check that those made are gone in the end."""
    try:
        with limited(64 << 30):
            pass
    except Exception as error:
        pytest.skip(f"no control group can be made here: {error}")
    # Groups of tests in other processes look the same, so one of them runs at a time.
    with (tmp_path_factory.getbasetemp().parent / "groups.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        before = own_groups()
        yield
        assert own_groups() <= before


def simulate(job, run, *words, status=0):
    """Run a job to its end; return its summary, if it has one, and what it printed on stderr."""
    process = started("simulate", job, "--run-dir", run, "--quiet", *words)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == status, errors
    assert "Traceback" not in errors
    path = run / "summary.json"
    return json.loads(path.read_text()) if path.exists() else {}, errors


@pytest.mark.usefixtures("no_group_left")
def test_all_processes_of_a_run_are_in_a_group_which_is_gone_in_the_end(
    flstream_here, write_job, tmp_path
):
    job = write_job(NOTES_GROUPS, "memory_limit = 1 GiB")
    summary, _ = simulate(job, tmp_path / "limited")
    for site in ("site-1", "site-2"):
        [path] = (tmp_path / "limited" / "sites" / site).rglob("groups")
        *noted, preference = path.read_text().split("|")
        assert int(preference) == 1000  # a site is killed rather than those that can tell of it
        assert len(noted) >= 5  # worker, fork server, server, fork server, launcher
        assert len(set(noted)) == 1
        assert "/flstream-" in noted[0]
    memory = summary["memory"]
    assert 50 << 20 < memory["group_peak_anonymous"] < memory["group_peak"] <= 1 << 30
    how = ("--engine", "inline", "--set", "memory_limit=null", "--run-dir", "plain", "--json")
    plain = json.loads(flstream_here("simulate", job, *how).stdout)
    assert summary["model"]["digest"] == plain["model"]["digest"]
    assert "group_peak" not in plain["memory"]


@pytest.mark.usefixtures("no_group_left")
def test_a_site_killed_at_the_limit_is_named_and_a_higher_one_resumes_the_run(write_job, tmp_path):
    job = write_job("import os\n    " + TAKES)
    run = tmp_path / "run"
    summary, errors = simulate(job, run, "--memory-limit", "700MiB", status=1)
    for part in ("site-2 was killed by SIGKILL", "memory_limit = 700 MiB", "parallel below 2"):
        assert part in errors
        assert part in summary["error"]
    assert summary["failures"][0]["signal"] == "SIGKILL"
    assert summary["memory"]["group_peak"] <= 700 << 20
    resumed, _ = simulate(job, run, "--memory-limit", MORE, "--resume", "--engine", "inline")
    assert (resumed["status"], resumed["rounds_completed"]) == ("finished", 2)


@pytest.mark.usefixtures("no_group_left")
def test_a_site_that_somebody_kills_is_not_said_to_have_reached_the_limit(write_job, tmp_path):
    job = write_job("import os\n    " + KILLED)
    summary, errors = simulate(job, tmp_path / "run", "--memory-limit", "1GiB", status=1)
    assert summary["failures"][0]["reason"].startswith("site-2 was killed by SIGKILL")
    assert "memory_limit" not in errors


def begun_run(write_job, tmp_path):
    """Start a limited run, and wait until a site is at work in its second round."""
    begun, over = tmp_path / "begun", tmp_path / "over"
    job = write_job("import os\n    " + WAITS.format(begun=str(begun), over=str(over)))
    os.mkfifo(begun)
    run = tmp_path / "run"
    process = started("simulate", job, "--run-dir", run, "--quiet", "--memory-limit", "1GiB")
    with begun.open():  # once the site opens it
        pass
    over.touch()
    return job, run, process


@pytest.mark.usefixtures("no_group_left")
@first_and_nightly("number", [signal.SIGINT, signal.SIGTERM])
def test_a_limited_run_that_is_stopped_leaves_no_group(write_job, tmp_path, number):
    _, run, process = begun_run(write_job, tmp_path)
    assert len(own_groups()) >= 1
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 130
    assert json.loads((run / "summary.json").read_text())["status"] == "stopped"


@pytest.mark.usefixtures("no_group_left")
@first_and_nightly("words", [("--memory-limit", "1GiB"), ()], ids=["limit", "none"])
def test_a_group_that_a_killed_launcher_has_left_goes_with_the_resumed_run(
    write_job, tmp_path, words
):
    before = own_groups()
    job, run, process = begun_run(write_job, tmp_path)
    left = own_groups() - before
    assert len(left) == 1
    process.kill()
    process.communicate(timeout=60)
    assert own_groups() - before == left
    (tmp_path / "begun").unlink()
    summary, _ = simulate(job, run, "--resume", "--engine", "inline", *words)
    assert summary["status"] == "finished"


@pytest.mark.usefixtures("no_group_left")
@first_and_nightly("number", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_while_a_limited_run_starts_leaves_no_group(write_job, tmp_path, number):
    process = started(
        "simulate", write_job(), "--run-dir", tmp_path / "run", "--memory-limit", MORE
    )
    launcher = psutil.Process(process.pid)
    while MEMORY_GROUP not in launcher.environ():
        pass
    process.send_signal(number)
    process.communicate(timeout=60)
    assert process.returncode == 130


@pytest.mark.usefixtures("no_group_left")
def test_mistakes_of_a_limited_job_leave_no_group_and_keep_their_exit_status(refused, write_job):
    job = write_job()
    assert "is not empty" in refused(
        "simulate", job, "--memory-limit", MORE, "--run-dir", job.parent
    )


@pytest.mark.usefixtures("no_group_left")
def test_runs_in_python_and_inline_are_limited_and_this_process_comes_back(
    flstream_here, write_job, tmp_path
):
    group = Path("/proc/self/cgroup").read_text()
    words = ("--memory-limit", "8GiB", "--engine", "inline", "--json", "--run-dir")
    done = flstream_here("simulate", write_job(NOTES_GROUPS), *words, "run")
    assert json.loads(done.stdout)["memory"]["group_peak"] > 0
    [path] = (tmp_path / "run" / "sites" / "site-1").rglob("groups")
    assert "/flstream-" in path.read_text()
    assert (Path("/proc/self/cgroup").read_text(), os.environ.get(MEMORY_GROUP)) == (group, None)


@pytest.mark.usefixtures("no_group_left")
def test_each_run_of_a_sweep_has_a_group_of_its_own(flstream_here, write_job, tmp_path):
    job = write_job(NOTES_GROUPS, "memory_limit = 1 GiB")
    flstream_here("sweep", job, "--seeds", 2, "--run-dir", "sweep", "--quiet")
    noted = {path.read_text() for path in tmp_path.glob("sweep/*/sites/site-1/**/groups")}
    assert len(noted) == 2
    assert all("/flstream-" in groups for groups in noted)


def test_limits_that_no_run_can_keep_are_refused(refused, write_job):
    job = write_job()
    errors = refused("simulate", job, "--memory-limit", "2GiB", "--engine", "ray")
    if find_spec("ray") is not None:  # without it, that alone is the mistake
        assert "must be null where engine.type is ray" in errors
    assert "at least 256 MiB" in refused("simulate", job, "--set", "memory_limit=1 MiB")
