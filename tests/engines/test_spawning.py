"""Workers are started by the launcher, and their pipes handed to the server."""

import os
import select
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from flstream.engines.engine import worker_socket_pairs
from flstream.engines.local import LocalEngine
from flstream.engines.spawning import SpawnedWorker, SpawnService, WorkerSpawner
from flstream.errors import AbortedError, WorkerLostError
from flstream.telemetry.memory import MemorySampler
from flstream.transport.channel import Signal

# Of workers that have ended, as a process host knows them.
EXIT_CODES = {"worker-1": -9, "worker-2": 3}


def exit_code(name, seconds):
    return EXIT_CODES.get(name)


@pytest.fixture
def connect():
    """A spawn service with its server in one process, and the workers' ends by name."""
    services, sockets = [], []

    def connect_to_server(start):
        def forked(name, end):
            return start(name, end), 0  # no number: it is no thread

        spawn_service = SpawnService(LocalEngine(forked, MemorySampler(), exit_code))
        services.append(spawn_service)
        # Another process has a descriptor of its own, which closing the spawn service leaves open.
        theirs = spawn_service.theirs.dup()
        sockets.append(theirs)
        spawn_service.begin()
        return spawn_service, WorkerSpawner(theirs)

    yield connect_to_server
    for spawn_service in services:
        spawn_service.close()
    for each in sockets:
        each.close()


@pytest.fixture
def never():
    """An abort that nobody raises, unless a test does."""
    abort = Signal()
    yield abort
    abort.close()


def is_closed(end: socket.socket) -> bool:
    poll = select.poll()
    poll.register(end, select.POLLRDHUP)
    return bool(poll.poll(5000))


def test_a_worker_comes_with_its_pid_and_three_pipes_that_lead_to_it(connect, never):
    kept = {}

    def start(name, end):
        kept[name] = [each.dup() for each in end]
        return 4242

    _, spawner = connect(start)
    spawned = spawner.spawn("worker-1", never)
    assert spawned.pid == 4242
    for ours, theirs in zip(spawned.end, kept["worker-1"], strict=True):
        ours.send(b"to the worker")
        assert theirs.recv(99) == b"to the worker"
        # When the worker ends, its pipe does: nobody else holds on to it.
        theirs.close()
        assert is_closed(ours)
    spawned.end.close()


def test_a_worker_that_cannot_be_started_is_an_error_and_the_next_one_may_be_started(
    connect, never
):
    def start(name, end):
        if name == "worker-1":
            raise OSError(11, "Resource temporarily unavailable")
        return 7

    _, spawner = connect(start)
    with pytest.raises(WorkerLostError, match=r"could not be started: .*Resource temporarily"):
        spawner.spawn("worker-1", never)
    spawned = spawner.spawn("worker-2", never)
    assert spawned.pid == 7
    spawned.end.close()


def test_no_worker_is_started_once_the_launcher_is_gone(connect, never):
    spawn_service, spawner = connect(lambda name, end: 7)
    assert [spawner.exit_code(f"worker-{n}") for n in (1, 2, 3)] == [-9, 3, None]
    spawn_service.close()
    with pytest.raises(AbortedError, match="the launcher is gone"):
        spawner.spawn("worker-1", never)
    assert spawner.exit_code("worker-1") is None
    # One that never began can be closed.
    SpawnService(LocalEngine(lambda name, end: 7, MemorySampler(), exit_code)).close()


def test_a_run_that_is_stopped_starts_no_more(connect, never):
    stuck = threading.Event()
    _, spawner = connect(lambda name, end: stuck.wait(20) and 7)
    never.set()
    with pytest.raises(AbortedError, match="the run was stopped"):
        spawner.spawn("worker-1", never)
    stuck.set()


def test_a_worker_can_be_killed_more_than_once():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ours, theirs = worker_socket_pairs()
    theirs.close()
    with process, closing(ours):
        spawned = SpawnedWorker(process.pid, ours)
        spawned.kill()
        assert process.wait(20) == -signal.SIGKILL
        spawned.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
