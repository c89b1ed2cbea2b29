"""Each site is dealt with by one worker, in order, and no further ahead than is allowed."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.server.site_queue import SiteQueue

COHORT = [f"site-{number}" for number in range(1, 8)]
PATIENCE = 20.0


def drained(batches, worker="w"):
    """What one worker gets until there is no more."""
    return list(iter(lambda: batches.take(worker), None))


@pytest.fixture
def waiting():
    """Has a worker take from a thread, and returns the future once the thread is inside."""
    with ThreadPoolExecutor(8) as pool:

        def wait(batches, worker):
            entered = threading.Event()
            condition = batches._change

            class Noticed(type(condition)):
                def wait(self, timeout=None):
                    entered.set()
                    return super().wait(timeout)

            condition.__class__ = Noticed
            future = pool.submit(batches.take, worker)
            assert entered.wait(PATIENCE)
            return future

        yield wait


def test_a_worker_without_work_waits_for_those_that_may_fail(waiting):
    batches = SiteQueue(COHORT[:1])
    batches.take("a")
    idle = waiting(batches, "b")
    assert not idle.done()
    assert batches.take("a") is None
    assert idle.result(PATIENCE) is None
    batches = SiteQueue(COHORT[:2], 2)
    batches.take("a")
    idle = waiting(batches, "b")
    batches.give_back(["site-2"])
    assert idle.result(PATIENCE) == ("site-2",)


def test_sites_that_are_given_back_come_first_and_in_one_batch():
    assert drained(SiteQueue([])) == []
    batches = SiteQueue(COHORT, 3)
    assert batches.take("a") == ("site-1", "site-2", "site-3")
    assert batches.taken == {}  # it may wait until another task is over
    assert batches.begin("a")
    assert batches.taken == {"a": ("site-1", "site-2", "site-3")}
    batches.give_back(["site-2", "site-3"])
    due = [("site-2", "site-3"), ("site-4", "site-5", "site-6"), ("site-7",)]
    assert drained(batches, "a") == due


def test_no_more_than_the_window_is_taken_before_it_is_folded(waiting):
    batches = SiteQueue(COHORT, ahead=2)
    assert [batches.take("a"), batches.take("b")] == [("site-1",), ("site-2",)]
    idle = waiting(batches, "c")
    batches.fold(1)
    assert idle.result(PATIENCE) == ("site-3",)
    idle = waiting(batches, "a")
    assert not idle.done()
    batches.fold(3)
    assert idle.result(PATIENCE) == ("site-4",)
    # A batch that ends beyond the window waits whole.
    batches = SiteQueue(COHORT, 2, ahead=3)
    assert batches.take("a") == ("site-1", "site-2")
    idle = waiting(batches, "b")
    batches.fold(1)
    assert idle.result(PATIENCE) == ("site-3", "site-4")


def test_a_site_with_a_worker_of_its_own_is_dealt_with_by_no_other():
    batches = SiteQueue(COHORT[:3], own=True)
    assert batches.take("site-3") == ("site-3",)
    assert batches.take("site-1") == ("site-1",)
    # It has had its turn, and what the others deal with is none of its business.
    assert batches.take("site-1") is None
    assert batches.take("site-7") is None
    assert batches.take("site-2") == ("site-2",)
    # Given back, it goes to its own worker again.
    batches.give_back(["site-2"])
    assert batches.take("site-2") == ("site-2",)


def test_once_it_is_closed_nobody_gets_or_waits_for_any_more(waiting):
    batches = SiteQueue(COHORT, ahead=1)
    batches.take("a")
    idle = waiting(batches, "b")
    assert batches.close() == COHORT[1:]
    assert idle.result(PATIENCE) is None
    assert batches.take("c") is None
    batches.give_back(["site-1"])
    assert batches.take("a") is None


@given(
    count=st.integers(0, 40),
    size=st.integers(1, 7),
    workers=st.integers(1, 4),
    deaths=st.sets(st.integers(0, 39)),
)
def test_every_site_is_dealt_with_once_whoever_dies(count, size, workers, deaths):
    cohort = [f"site-{number}" for number in range(count)]
    batches = SiteQueue(cohort, size)
    done, fatal = [], {f"site-{number}" for number in deaths}

    def work(name):
        while (batch := batches.take(name)) is not None:
            guilty = next((place for place, site in enumerate(batch) if site in fatal), None)
            if guilty is None or len(batch) == 1:
                done.extend(batch)
            else:
                done.extend(batch[:guilty])
                for site in reversed(batch[guilty:]):
                    batches.give_back([site])

    with ThreadPoolExecutor(workers) as pool:
        for future in [pool.submit(work, f"worker-{number}") for number in range(workers)]:
            future.result(PATIENCE)
    assert sorted(done) == sorted(cohort)


@given(order=st.randoms(use_true_random=False), ahead=st.integers(1, 5))
def test_the_window_bounds_what_waits_whatever_the_order_of_folding(order, ahead):
    batches, waits, folded = SiteQueue(COHORT, ahead=ahead), [], 0
    while folded < len(COHORT):
        room = min(len(COHORT), folded + ahead) - folded - len(waits)
        if room and (not waits or order.random() < 0.5):
            waits.append(batches.take(f"w{order.random()}"))
        else:
            count = order.randint(1, len(waits))
            folded, waits = folded + count, waits[count:]
            batches.fold(folded)
        assert len(waits) <= ahead
    batches.close()


def test_an_open_queue_is_waited_at_and_what_is_taken_is_not_begun_once_it_is_closed(waiting):
    batches = SiteQueue([], is_open=True)
    idle = waiting(batches, "a")
    assert not idle.done()
    batches.put(("site-9",))
    assert idle.result(PATIENCE) == ("site-9",)
    idle = waiting(batches, "b")
    assert batches.close() == []
    assert idle.result(PATIENCE) is None
    assert not batches.begin("a")
    assert batches.taken == {}
