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

from flstream.errors import AbortedError, WorkerLostError
from flstream.simulator.crew.hiring import Hired, Hiring, Recruiter
from flstream.simulator.crew.links import link
from flstream.transport.channel import Signal


@pytest.fixture
def office():
    """A recruiter with its server in one process, and the workers' ends by name."""
    recruiters, sockets = [], []

    def open_office(start):
        recruiter = Recruiter(start)
        recruiters.append(recruiter)
        # Another process has a descriptor of its own, which the recruiter's closing leaves open.
        theirs = recruiter.theirs.dup()
        sockets.append(theirs)
        recruiter.begin()
        return recruiter, Hiring(theirs)

    yield open_office
    for recruiter in recruiters:
        recruiter.close()
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


def test_a_worker_comes_with_its_pid_and_three_pipes_that_lead_to_it(office, never):
    kept = {}

    def start(name, end):
        kept[name] = [each.dup() for each in end]
        return 4242

    _, hiring = office(start)
    hired = hiring.hire("worker-1", never)
    assert hired.pid == 4242
    for ours, theirs in zip(hired.end, kept["worker-1"], strict=True):
        ours.send(b"to the worker")
        assert theirs.recv(99) == b"to the worker"
        # When the worker ends, its pipe does: nobody else holds on to it.
        theirs.close()
        assert is_closed(ours)
    hired.end.close()


def test_a_worker_that_cannot_be_started_is_an_error_and_the_next_one_may_be_started(office, never):
    def start(name, end):
        if name == "worker-1":
            raise OSError(11, "Resource temporarily unavailable")
        return 7

    _, hiring = office(start)
    with pytest.raises(WorkerLostError, match=r"could not be started: .*Resource temporarily"):
        hiring.hire("worker-1", never)
    hired = hiring.hire("worker-2", never)
    assert hired.pid == 7
    hired.end.close()


def test_threads_get_the_workers_they_asked_for(office, never):
    numbers = {f"worker-{number}": number for number in range(1, 17)}
    _, hiring = office(lambda name, end: numbers[name])
    found = {}

    def hire(name):
        with closing(hiring.hire(name, never).end):
            pass
        hired = hiring.hire(name, never)
        found[name] = hired.pid
        hired.end.close()

    threads = [threading.Thread(target=hire, args=(name,)) for name in numbers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert found == numbers


def test_no_worker_is_hired_once_the_launcher_is_gone(office, never):
    recruiter, hiring = office(lambda name, end: 7)
    recruiter.close()
    with pytest.raises(AbortedError, match="the launcher is gone"):
        hiring.hire("worker-1", never)


def test_a_run_that_is_stopped_hires_no_more(office, never):
    stuck = threading.Event()
    _, hiring = office(lambda name, end: stuck.wait(20) and 7)
    never.set()
    with pytest.raises(AbortedError, match="the run was stopped"):
        hiring.hire("worker-1", never)
    stuck.set()


def test_a_recruiter_that_never_began_can_be_closed():
    Recruiter(lambda name, end: 7).close()


def test_a_hired_worker_can_be_killed_more_than_once():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    ours, theirs = link()
    theirs.close()
    with process, closing(ours):
        hired = Hired(process.pid, ours)
        hired.kill()
        assert process.wait(20) == -signal.SIGKILL
        hired.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(process.pid, 0)
