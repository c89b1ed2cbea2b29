"""A worker that never gets ready costs its slot, and no run that others can do the work of."""

import math
import os

import pytest
from hands import Office

from flstream.errors import DeadlineError, SimulationError, WorkerLostError
from flstream.simulator.crew.batches import Batches
from flstream.simulator.crew.crew import Crew, Lost, Retired
from flstream.simulator.crew.listening import Heard
from flstream.streaming.service import DownloadService
from flstream.transport.channel import Signal

SITES = [f"site-{number}" for number in range(1, 10)]
NEVER = math.inf


class Outfit:
    """A crew, and those it hires."""

    def __init__(self, names, own=False, vain=None):
        self.abort = Signal()
        self.office = Office(vain or {})
        self.service = DownloadService()
        self.crew = Crew(names, own, self.office, self.service, self.abort, 20.0)

    def perform(self, perform=None, sites=SITES, workers=None, size=2, own=None):
        """What is said of a task for sites, without who got ready."""
        batches = Batches(sites, size, own=own)
        said = self.crew.perform(batches, perform or do_all, workers or self.crew.names)
        return [each for each in said if each is not None and not isinstance(each, Heard)]

    def close(self):
        self.crew.close()
        self.service.close()
        self.office.close()
        self.abort.close()


def do_all(worker, batch, say):
    say(batch, *batch)


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


def test_a_worker_that_never_gets_ready_is_retired_and_the_others_are_prepared(outfit):
    team = outfit(THREE, vain={"worker-2": NEVER})
    said = [each for each in team.crew.prepare() if isinstance(each, Retired)]
    [retired] = said
    assert retired.worker == "worker-2"
    assert "worker-2 did not get ready 3 times in a row: " in retired.reason
    assert "its log is worker-2.log" in retired.reason
    assert team.crew.names == ["worker-1", "worker-3"]
    assert team.office.hired == {"worker-1": 1, "worker-2": 3, "worker-3": 1}
    # From then on nobody tries again.
    assert done(team.perform()) == SITES
    assert team.office.hired["worker-2"] == 3


def test_the_sites_of_a_worker_that_is_retired_in_mid_task_go_to_the_others(outfit):
    team = outfit(THREE, vain={"worker-1": NEVER, "worker-3": NEVER})
    said = team.perform(size=1)
    assert done(said) == SITES
    retired = {each.worker for each in said if isinstance(each, Retired)}
    # The one that is ready may have done all of it before another has failed three times.
    assert retired <= {"worker-1", "worker-3"}
    assert not [each for each in said if isinstance(each, Lost)]


def test_where_all_who_take_part_are_retired_others_take_their_place(outfit):
    team = outfit(THREE, vain={"worker-1": NEVER, "worker-2": NEVER})
    said = team.perform(workers=["worker-1", "worker-2"])
    assert done(said) == SITES
    assert {each.worker for each in said if isinstance(each, Retired)} == {"worker-1", "worker-2"}


@pytest.mark.parametrize("prepare", [True, False], ids=["at the beginning", "in a task"])
def test_the_run_fails_once_no_worker_is_left(outfit, prepare):
    team = outfit(THREE, vain=dict.fromkeys(THREE, NEVER))
    with pytest.raises(SimulationError, match=r"worker-\d did not get ready 3 times in a row: "):
        list(team.crew.prepare() if prepare else team.perform())
    assert max(team.office.hired.values()) == 3


def test_one_that_gets_ready_in_the_end_is_not_retired(outfit):
    team = outfit(["worker-1"], vain={"worker-1": 2})
    assert done(team.perform()) == SITES
    assert team.office.hired == {"worker-1": 3}
    assert team.crew.names == ["worker-1"]


def test_a_site_whose_own_process_never_gets_ready_fails_and_the_others_do_not(outfit):
    sites = SITES[:3]
    team = outfit(sites, own=True, vain={"site-2": NEVER})
    assert [e.site for e in team.crew.prepare() if isinstance(e, Lost)] == ["site-2"]
    for _ in range(4):
        said = team.perform(sites=sites, size=1, own={site: site for site in sites})
        assert done(said) == ["site-1", "site-3"]
        assert [each.site for each in said if isinstance(each, Lost)] == ["site-2"]
    # It is asked as long as it is not benched.
    assert team.office.hired["site-2"] == 5


@pytest.mark.parametrize("size", [2, 5, 9])
def test_a_site_that_stalls_in_a_batch_is_the_only_one_that_is_lost(outfit, size):
    team = outfit(["worker-1", "worker-2"])

    def stall(worker, batch, say):
        if "site-4" in batch:
            error = WorkerLostError("it did not answer in the time it was given", "site-4")
            raise error from DeadlineError("20 s")
        say(batch, *batch)

    said = team.perform(stall, size=size)
    assert [each.site for each in said if isinstance(each, Lost)] == ["site-4"]
    assert done(said) == [site for site in SITES if site != "site-4"]


def test_workers_that_are_replaced_leave_nothing_behind_in_the_server(outfit):
    team = outfit(["worker-1"])
    sites = [f"site-{number}" for number in range(120)]

    def die(worker, batch, say):
        raise WorkerLostError("it was killed")

    assert done(team.perform()) == SITES
    before = len(os.listdir("/proc/self/fd"))
    said = team.perform(die, sites, size=1)
    assert [each.site for each in said if isinstance(each, Lost)] == sites
    assert done(team.perform()) == SITES
    *replaced, there = team.office.hands
    assert len(replaced) == 120
    for hand in replaced:
        assert hand.was_let_go()
        hand.close()
    assert len(os.listdir("/proc/self/fd")) == before
    # Nor is anything kept of their names, of which there is one for each that was ever hired.
    team.crew.close()
    assert there.was_let_go()
    team.service.close()
    assert team.service._lost == {}
