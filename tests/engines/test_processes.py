"""Processes are forked by a fork server, and none outlives it or its owner."""

import gc
import os
import resource
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
import pytest

from flstream.engines.fork_server import temporary_prefix
from flstream.engines.gpus import GpuDealer
from flstream.engines.local import LocalEngine
from flstream.engines.processes import ProcessHost
from flstream.errors import WorkerLostError

SECONDS = 20.0


@pytest.fixture(scope="module", autouse=True)
def bare():
    """Fork servers that import no torch, which no process here needs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flstream.engines.processes._PRELOAD", "bare_preload")
        yield


@pytest.fixture(scope="module")
def host(bare):
    """A host of this module."""
    with ProcessHost({"FLSTREAM_TEST": "given"}) as host:
        yield host


def say(answers, *values):
    """Send what a process of the host finds."""
    answers.sendall(" ".join(map(str, values)).encode())


def say_what_is_there(answers):
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    descriptors = len(os.listdir("/proc/self/fd")) - 1  # without that of the list
    say(answers, os.environ.get("FLSTREAM_TEST"), soft == most, descriptors)


def sleep_with_a_child(answers):
    say(answers, subprocess.Popen(["sleep", "100"], start_new_session=True).pid)
    time.sleep(100)


def leave_a_child(answers):
    say(answers, subprocess.Popen(["sleep", "100"], start_new_session=True).pid)
    os._exit(0)


def end_its_group(answers):
    say(answers, os.getpid())
    os.killpg(0, signal.SIGTERM)
    time.sleep(100)


def host_of_its_own(answers):
    """Do as a server: fork a fork server, and start a worker by it."""
    host = ProcessHost.forked(answers)
    worker = host.start("worker", "time:sleep", 100)
    folder = tempfile.mkdtemp(prefix=temporary_prefix(host.fork_server_pid))
    say(answers, host.fork_server_pid, worker.pid, folder)
    time.sleep(100)


def ask(host, target, *args):
    """Start a function of this module, and return its process and what it sends."""
    ours, theirs = socket.socketpair()
    with ours:
        with theirs:
            process = host.start("test", f"{__name__}:{target.__name__}", theirs, *args)
        ours.settimeout(SECONDS)
        return process, ours.recv(1000).decode().split()


def are_gone(*pids):
    processes = [psutil.Process(pid) for pid in map(int, pids) if psutil.pid_exists(pid)]
    return psutil.wait_procs(processes, SECONDS)[1] == []


@pytest.mark.parametrize(
    ("target", "args", "code"),
    [
        ("time:sleep", (0,), 0),
        ("sys:exit", (3,), 3),
        ("sys:exit", ("said on stderr",), 1),
        ("os:_exit", (7,), 7),
        ("signal:raise_signal", (signal.SIGTERM,), -signal.SIGTERM),
        ("nowhere:to_be_found", (), 1),
    ],
)
def test_a_process_ends_with_the_exit_code_of_its_function(host, target, args, code):
    process = host.start("test", target, *args)
    assert process.exit_code(SECONDS) == code
    process.kill()  # of which nothing is left to be killed
    assert process.exit_code() == code


def test_a_process_has_the_variables_and_its_sockets_and_no_others(host):
    others = [host.start("other", "time:sleep", 100) for _ in range(3)]
    process, (variable, may_open_all, descriptors) = ask(host, say_what_is_there)
    assert (variable, may_open_all) == ("given", "True")
    assert int(descriptors) == 4  # the standard streams, and the socket
    assert [other.exit_code() for other in others] == [None] * 3
    for other in others:
        other.kill()
    assert [other.exit_code(SECONDS) for other in others] == [-signal.SIGKILL] * 3
    assert process.exit_code(SECONDS) == 0


def test_what_a_killed_process_has_started_is_killed_with_it(host):
    process, (child,) = ask(host, sleep_with_a_child)
    process.kill()
    assert process.exit_code(SECONDS) == -signal.SIGKILL
    assert are_gone(child)


def test_what_a_process_leaves_behind_in_a_session_of_its_own_ends_with_the_host():
    with ProcessHost() as host:
        process, (child,) = ask(host, leave_a_child)
        assert process.exit_code(SECONDS) == 0
        assert psutil.Process(int(child)).ppid() == host.fork_server_pid
    assert are_gone(child)


def test_a_signal_of_a_process_to_its_group_ends_nobody_else(host):
    other = host.start("other", "time:sleep", 100)
    process, _ = ask(host, end_its_group)
    assert process.exit_code(SECONDS) == -signal.SIGTERM
    assert other.exit_code() is None
    other.kill()
    assert other.exit_code(SECONDS) == -signal.SIGKILL


def test_a_worker_that_cannot_be_forked_is_lost_and_its_sockets_are_closed(host, monkeypatch):
    def refuse(*_):
        raise OSError(11, "Resource temporarily unavailable")

    started = {}
    engine, host.on_started = LocalEngine(host, "time:sleep", ()), started.__setitem__
    before = len(os.listdir("/proc/self/fd"))
    with monkeypatch.context() as patch:
        patch.setattr(host, "start", refuse)
        with pytest.raises(WorkerLostError, match=r"could not be started: .*Resource temporarily"):
            engine.start("worker-1")
    assert len(os.listdir("/proc/self/fd")) == before
    worker = engine.start("worker-1")  # as it takes no sockets, it fails at once
    assert started == {"worker-1": worker.pid}
    # When a worker ends, its sockets do: nobody else holds on to them.
    assert worker.exit_code(SECONDS) == 1
    assert worker.ends.control.recv(1) == b""
    worker.ends.close()
    engine.close(SECONDS)


def test_the_loss_of_a_fork_server_s_owner_ends_all_that_it_has_forked(host):
    owner, (fork_server, worker, folder) = ask(host, host_of_its_own)
    assert psutil.Process(int(worker)).ppid() == int(fork_server)
    assert psutil.Process(int(fork_server)).ppid() == owner.pid
    owner.send(signal.SIGKILL)
    assert owner.exit_code(SECONDS) == -signal.SIGKILL
    assert are_gone(worker, fork_server)
    assert not Path(folder).exists()


def test_a_fork_server_that_is_killed_ends_what_it_has_forked_and_is_replaced():
    with ProcessHost({"FLSTREAM_TEST": "given"}) as host:
        process = host.start("test", "time:sleep", 100)
        first = host.fork_server_pid
        os.kill(first, signal.SIGKILL)
        assert process.exit_code(SECONDS) is None
        assert are_gone(process.pid)
        assert ask(host, say_what_is_there)[1][0] == "given"
        assert host.fork_server_pid != first


def test_a_host_that_is_closed_leaves_no_process_and_no_descriptor():
    gc.collect()  # of the hosts before, whose processes know them
    before = len(os.listdir("/proc/self/fd"))
    early, host = ProcessHost(), ProcessHost()
    pids = []
    for begun in early, host:
        begun.begin()
        pids.append(begun.fork_server_pid)
    early.close()  # in the middle of its imports
    with host:
        assert host.fork_server_pid == pids[1]  # it is the same one
        process = host.start("test", "time:sleep", 100)
    host.close()
    assert are_gone(*pids, process.pid)
    ProcessHost().prepare({"FLSTREAM_TEST": "for nobody"})
    del process
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.nightly
def test_a_fork_server_that_was_stopped_is_waited_for_no_longer_than_it_takes():
    with ProcessHost() as host:
        process = host.start("test", "time:sleep", 100)
        stopped = host.fork_server_pid
        os.kill(stopped, signal.SIGSTOP)
        process.kill()
        assert process.exit_code(SECONDS) is None  # nobody knows
    assert are_gone(stopped, process.pid)


def test_what_a_launcher_inherits_does_not_disturb_its_processes(tmp_path):
    # Neither modules of the working directory, nor that ends of children are to be ignored.
    (tmp_path / "json.py").write_text("raise SystemExit('imported from the working directory')")
    script = """
from flstream.engines.processes import ProcessHost
with ProcessHost() as host:
    print(host.start("test", "os:_exit", 7).exit_code(20))
"""
    done = subprocess.run(
        [sys.executable, "-P", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN),
    )
    assert (done.stdout, done.stderr) == ("7\n", "")


class EndsWhileOthersStart:
    """A worker whose end is waited for while another one is started."""

    def __init__(self, workers):
        self.workers = workers
        self.was_awaited = False

    def exit_code(self, seconds):
        """Have another worker start meanwhile."""
        self.was_awaited = True
        self.workers[f"worker-{len(self.workers) + 1}"] = None


def test_a_start_under_way_does_not_disturb_the_wait_for_the_others():
    engine = LocalEngine(None, "main", (), GpuDealer([], 1))
    worker = engine._workers["worker-1"] = EndsWhileOthersStart(engine._workers)
    engine.close()
    assert worker.was_awaited
    assert len(engine._workers) == 2
