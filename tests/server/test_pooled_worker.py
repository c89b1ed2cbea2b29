"""A worker that never gets ready costs no run that others can do the work of."""

import math
import os
import time
from functools import partial
from types import SimpleNamespace

import pytest
from workers_support import ThreadEngine

from flstream.errors import DeadlineError, WorkerLostError
from flstream.server.collector import SiteLost
from flstream.server.site_queue import SiteQueue
from flstream.server.worker_handle import WorkerHandle
from flstream.server.worker_pool import WorkerPool
from flstream.streaming.service import DownloadService
from flstream.telemetry.events import Warned
from flstream.transport.channel import Signal

SITES = [f"site-{number}" for number in range(1, 10)]
NEVER = math.inf


class Outfit:
    """A pool, and those it hires."""

    def __init__(self, names, own=False, vain=None):
        self.abort = Signal()
        self.engine = ThreadEngine(vain or {})
        self.service = DownloadService()
        self.events = []

        def emit(*events):
            self.events += events

        def start(name):
            process, how = self.engine.start(name), {"is_linked": False, "is_direct": False}
            return WorkerHandle(name, process, self.service, self.abort, emit, **how)

        self.pool = WorkerPool(names, own, start, self.abort, 20.0, emit)

    def warned(self, of):
        """The workers of which the run was warned."""
        messages = [event.message for event in self.events if isinstance(event, Warned)]
        return [message.split()[0] for message in messages if of in message]

    def perform(self, perform=None, sites=SITES, workers=None, size=2, own=None):
        """What comes of a task for sites."""
        batches, said = SiteQueue(sites, size, own=own), []

        def performed(worker, batch, report):
            say = lambda *settled: report(partial(said.append, batch), *settled)  # noqa: E731
            (perform or do_all)(worker, batch, say)

        task = SimpleNamespace(perform=performed, lose=said.append)
        for _ in self.pool.perform(batches, task, workers or self.pool.names):
            pass
        return said

    def close(self):
        self.pool.close()
        self.service.close()
        self.engine.close()
        self.abort.close()


def do_all(worker, batch, say):
    say(*batch)


def done(said):
    return sorted(site for each in said if type(each) is tuple for site in each)


@pytest.fixture
def outfit():
    outfits = []

    def make(*args, **kwargs):
        outfits.append(Outfit(*args, **kwargs))
        return outfits[-1]

    yield make
    for each in outfits:
        each.close()


THREE = ["worker-1", "worker-2", "worker-3"]


@pytest.mark.parametrize(
    ("vain", "size", "workers"),
    [
        # The one that is ready may have done all of it before another has failed three times.
        (["worker-1", "worker-3"], 1, THREE),
        # Where all who take part are retired, others take their place.
        (["worker-1", "worker-2"], 2, ["worker-1", "worker-2"]),
    ],
)
def test_the_sites_of_a_worker_that_is_retired_go_to_the_others(outfit, vain, size, workers):
    team = outfit(THREE, vain=dict.fromkeys(vain, NEVER))
    said = team.perform(size=size, workers=workers)
    assert done(said) == SITES
    retired = set(team.warned("go on without it"))
    assert retired <= set(vain)
    # From then on nobody tries again.
    assert max(team.engine.started.values()) <= 3
    assert retired == set(vain) or workers == THREE
    assert not [each for each in said if isinstance(each, SiteLost)]


def test_one_that_gets_ready_in_the_end_is_not_retired(outfit):
    team = outfit(["worker-1"], vain={"worker-1": 2})
    assert done(team.perform()) == SITES
    assert team.engine.started == {"worker-1": 3}


@pytest.mark.parametrize("size", [2, 5, 9])
def test_a_site_that_stalls_in_a_batch_is_the_only_one_that_is_lost(outfit, size):
    team = outfit(["worker-1", "worker-2"])

    def stall(worker, batch, say):
        if "site-4" in batch:
            error = WorkerLostError("it did not answer in the time it was given", "site-4")
            raise error from DeadlineError("20 s")
        say(*batch)

    said = team.perform(stall, size=size)
    assert [each.site for each in said if isinstance(each, SiteLost)] == ["site-4"]
    assert done(said) == [site for site in SITES if site != "site-4"]


def test_workers_that_are_replaced_leave_nothing_behind_in_the_server(outfit):
    team = outfit(["worker-1"])
    sites = [f"site-{number}" for number in range(120)]

    def die(worker, batch, say):
        error = WorkerLostError("it was killed")
        error.is_acknowledged = True
        raise error

    assert done(team.perform()) == SITES
    before = len(os.listdir("/proc/self/fd"))
    said = team.perform(die, sites, size=1)
    assert [each.site for each in said if isinstance(each, SiteLost)] == sites
    assert done(team.perform()) == SITES
    *replaced, there = team.engine.workers
    assert len(replaced) == 120
    for hand in replaced:
        assert hand.was_let_go()
        hand.close()
    until = time.monotonic() + 30  # the thread of each connection ends by itself
    while len(os.listdir("/proc/self/fd")) > before and time.monotonic() < until:
        time.sleep(0.01)
    assert len(os.listdir("/proc/self/fd")) <= before  # others may be closed meanwhile
    # Nor is anything kept of their names, of which there is one for each that was ever started.
    team.pool.close()
    assert there.was_let_go()
    team.service.close()
    assert team.service._lost == {}


@pytest.mark.parametrize("own", [True, False])
def test_workers_that_are_lost_before_they_acknowledge_a_task_fail_nobody_until_the_third(
    outfit, own
):
    names = ["site-1"] if own else ["worker-1"]
    team = outfit(names, own=own)
    losses = {"site-1": 2, "site-2": 3}
    left = dict(losses)

    def lose(worker, batch, say):
        (site,) = batch
        if left.get(site, 0):
            left[site] -= 1
            raise WorkerLostError("it was killed")
        say(*batch)

    sites = ["site-1"] if own else ["site-1", "site-2", "site-3"]
    events = team.perform(lose, sites, size=1, own={"site-1": "site-1"} if own else None)
    assert done(events) == [site for site in sites if site != "site-2"]
    assert [each.site for each in events if isinstance(each, SiteLost)] == sites[1:2]
    assert len(team.warned("was started again")) == (2 if own else 4)
