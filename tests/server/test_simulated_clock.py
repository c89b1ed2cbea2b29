"""Simulated times by hand: arrivals, answers, dropouts, deadlines, the order of answers."""

import math
import random
from dataclasses import dataclass
from fractions import Fraction
from types import SimpleNamespace

import pytest

from flstream.errors import SimulationError
from flstream.job.clients_section import ClientsSection
from flstream.job.device import SiteDevice, nanoseconds
from flstream.job.time_section import RoundEnd, StragglersSection, TimeSection
from flstream.server.fleet import Fleet
from flstream.server.simulated_clock import (
    AnswerQueue,
    SimulatedClock,
    SiteClock,
    SiteTime,
    late_answers,
)
from flstream.worker.messages import SiteAnswer, SiteTask, TaskDeadline

MS = 1_000_000
SITES = [f"site-{number}" for number in range(1, 11)]


@dataclass
class Hours:
    """Somebody who is there up to a time, and again later."""

    gone: int
    back: int

    def next_there(self, now):
        return self.back if self.gone <= now < self.back else now

    def next_gone(self, now):
        return self.gone if now < self.gone else None


class JobOf:
    """The facts of a job that the clock asks for."""

    def __init__(self, device, **section):
        self.time = TimeSection(clock="virtual", **section)
        self.device = device if callable(device) else lambda site: device


def clocks_of(job, sites=SITES, began=0, seconds=3600.0):
    clocks = {
        site: SiteClock(job.time, job.device, began, SiteTask(site, index, index), seconds)
        for index, site in enumerate(sites)
    }
    for clock in clocks.values():
        clock.arrive(1000)
    return clocks


def answer(clocks, site, examples, **how):
    return clocks[site].answer(SiteAnswer(site, examples, {}, nbytes=500, **how))


def test_a_task_takes_what_is_sent_down_latency_work_and_what_is_sent_up():
    # 1000 bytes at 1 Mbit/s are 8 ms, 500 at 2 Mbit/s are 2 ms; 30 examples at half speed 60 ms.
    device = SiteDevice(speed=0.5, down=1e6, up=2e6, latency=0.005)
    clocks = clocks_of(JobOf(device), began=7 * MS)
    # An answer is of one example at least.
    assert clocks["site-1"].earliest() == (7 + 8 + 5 + 2) * MS
    assert answer(clocks, "site-1", 30.0) == SiteTime((7 + 8 + 5 + 60 + 2) * MS)
    # Declared units stand in the place of examples, and the answer is expected by them.
    clocks["site-2"].declare(10.0)
    assert clocks["site-2"].earliest() == (7 + 8 + 5 + 20) * MS
    assert answer(clocks, "site-2", 30.0, units=10.0).time == (7 + 8 + 5 + 20 + 2) * MS
    assert answer(clocks, "site-3", 0.25).time == (7 + 8 + 5 + 2 + 2) * MS


def test_declared_work_may_be_none_where_each_site_has_to_declare_its_own():
    clocks = clocks_of(JobOf(SiteDevice(speed=0.5), work="declared"))
    assert clocks["site-1"].earliest() == 0
    assert answer(clocks, "site-1", 30.0, units=0.25).time == MS // 2


def test_measured_work_is_the_seconds_of_the_training_by_the_speed_of_the_device():
    clocks = clocks_of(JobOf(SiteDevice(speed=4.0), work="measured"))
    clocks["site-1"].declare(1e6)
    assert clocks["site-1"].earliest() == 0  # what it has declared counts for nothing
    assert answer(clocks, "site-1", 30.0, seconds=0.5).time == 125 * MS


def test_decimal_numbers_are_exact_whatever_their_floats_are():
    clocks = clocks_of(JobOf(SiteDevice(speed=0.1), seconds_per_example="3 ms"), seconds=1e9)
    assert answer(clocks, "site-1", 1e9).time == 3 * 10**9 * 10 * MS
    assert nanoseconds(0.1) * 3 == nanoseconds(0.3)


def test_a_site_drops_out_by_its_seed_once_it_has_the_model():
    clocks = clocks_of(JobOf(SiteDevice(name="phone", dropout=0.5, latency=0.001)))
    drawn = {site: random.Random(f"flstream/dropout/{n}").random() for n, site in enumerate(SITES)}
    dropped = {site for site, number in drawn.items() if number < 0.5}
    assert {site for site, clock in clocks.items() if clock.end is not None} == dropped
    assert 0 < len(dropped) < 10
    for site in dropped:
        assert clocks[site].end == SiteTime(MS, "it dropped out (devices.phone.dropout)", True)
        assert clocks[site].earliest() == MS


def test_who_goes_away_or_takes_too_long_has_failed_then():
    job = JobOf(SiteDevice(name="phone", latency=0.01, availability=Hours(30 * MS, 90 * MS)))
    clocks = clocks_of(job, seconds=0.05)
    assert answer(clocks, "site-1", 20.0) == SiteTime(30 * MS)
    gone = answer(clocks, "site-2", 21.0)
    assert gone == SiteTime(30 * MS, "it went away (devices.phone.available)", True)
    # One that is gone before it has the model never trains.
    late = clocks_of(job, began=25 * MS)
    assert {clock.end for clock in late.values()} == {gone}
    assert late["site-3"].arrive(1000) == gone
    slow = clocks_of(JobOf(SiteDevice(latency=0.01)), seconds=0.05)
    assert answer(slow, "site-1", 41.0) == SiteTime(
        50 * MS, "it took more than 0.05 s (clients.round_timeout)"
    )
    slow["site-2"].fail("it raised")
    assert slow["site-2"].end == SiteTime(11 * MS, "it raised")
    # One that has declared work has done it, or what others have answered by then would matter.
    slow["site-3"].declare(7.0)
    slow["site-3"].fail("it raised")
    assert slow["site-3"].end == SiteTime(17 * MS, "it raised")
    slow["site-3"].arrive_late(5 * MS, 1000)
    assert slow["site-3"].end.time == 17 * MS
    slow["site-3"].arrive_late(12 * MS, 1000)
    assert slow["site-3"].end == SiteTime(22 * MS, "it raised")


# Ten sites whose answers come after 10, 20, ..., 100 ms.
@pytest.mark.parametrize(
    ("section", "min_updates", "wait", "close", "first_late"),
    [
        ({}, None, None, 100, 11),
        ({}, 4, 0.025, 65, 7),
        ({"policy": "cutoff_time", "straggler_cutoff_time": 0.035}, None, None, 35, 4),
        ({"policy": "cutoff_time", "straggler_cutoff_time": 0.040}, 2, None, 40, 5),
        ({"policy": "cutoff_time", "straggler_cutoff_time": 0.035}, 8, None, 80, 9),
        ({"policy": "cutoff_time", "straggler_cutoff_time": 5.0}, 2, None, 100, 11),
        ({"policy": "deadline", "deadline": 0.055}, None, None, 55, 6),
        ({"policy": "percentage", "percent_collaborators_needed": 0.35}, None, None, 40, 5),
        ({"policy": "percentage", "percent_collaborators_needed": 0.35}, 6, None, 60, 7),
        ({"policy": "over_selection", "extra": 3}, None, None, 70, 8),
    ],
)
def test_a_policy_ends_a_round_of_ten_sites_when_it_should(
    section, min_updates, wait, close, first_late
):
    stragglers = StragglersSection(**section)
    clocks = clocks_of(JobOf(SiteDevice()), began=3 * MS)
    for number in (7, 2, 10, 1, 3, 9, 4, 8, 6, 5):  # whatever order they really come in
        answer(clocks, f"site-{number}", 10.0 * number)
    clients = ClientsSection(count=10, per_round=7, min_updates=min_updates, wait_after_min=wait)
    least = stragglers.least(clients, 10)
    ended, late = late_answers(clocks, SITES, stragglers.end(clients, least, 10))
    assert ended == (3 + close) * MS
    assert list(late) == SITES[first_late - 1 :]


def test_over_selection_needs_no_more_than_there_are():
    stragglers = StragglersSection(policy="over_selection", extra=5)
    clients = ClientsSection(count=10, per_round=2)
    for cohort, needed in ((7, 2), (2, 2), (1, 1)):
        least = stragglers.least(clients, cohort)
        assert (least, stragglers.end(clients, least, cohort).answers) == (needed, needed)


def test_of_answers_that_come_at_once_the_first_sites_count():
    clocks = clocks_of(JobOf(SiteDevice()))
    for site in SITES:
        answer(clocks, site, 10.0)
    assert late_answers(clocks, SITES, RoundEnd(7)) == (10 * MS, SITES[7:])
    assert late_answers(clocks, SITES, RoundEnd(7, grace=0.001)) == (10 * MS, [])


def test_a_round_of_too_few_answers_waits_for_all_that_may_come():
    clocks = clocks_of(JobOf(SiteDevice()))
    answer(clocks, "site-1", 10.0)
    answer(clocks, "site-2", 30.0)
    clocks["site-3"].fail("it raised")
    assert late_answers(clocks, ["site-1", "site-2"], RoundEnd(3)) == (30 * MS, ())


def test_a_site_knows_how_much_it_can_do_before_the_deadline():
    device = SiteDevice(speed=0.5, down=1e6, up=2e6, latency=0.005)
    clocks = clocks_of(JobOf(device))
    # 100 ms but for 8 + 5 ms before and 2 ms after it: 85 ms, at 2 ms an example.
    assert clocks["site-1"].deadline(0.1, 500) == TaskDeadline(0.085, 42.0)
    assert clocks["site-1"].deadline(0.01, 500) == TaskDeadline(0.0, 0.0)
    # A third of a millisecond each is no whole number of nanoseconds.
    [whole] = [clocks_of(JobOf(SiteDevice(speed=3.0)), ["site-1"], seconds=1e4)]
    examples = whole["site-1"].deadline(3600.0, 0).examples
    assert examples == 3 * 3600 * 1000
    assert answer(whole, "site-1", examples).time == 3_600_000 * MS


@pytest.mark.parametrize(
    ("section", "key", "words"),
    [
        ({"policy": "percentage"}, "percent_collaborators_needed", "policy = percentage"),
        ({"policy": "deadline", "deadline": 1.0, "extra": 1}, "extra", "policy = over_selection"),
        ({"extra": 2}, "extra", "policy = over_selection"),
    ],
)
def test_a_policy_has_its_own_key_and_no_other(section, key, words):
    with pytest.raises(Exception, match=words) as refused:
        StragglersSection(**section)
    assert key in str(refused.value)


def test_answers_come_by_time_then_by_start_and_not_before_others_are_known():
    queue = AnswerQueue()
    for number, bound in ((1, 5), (2, 8), (3, None)):
        queue.begin(number, bound)
    queue.settle(2, 20, "b")
    assert queue.take() is None  # the first may come before it
    queue.begin(1, 20)
    assert queue.take() is None  # and also at that time, as it was started before
    queue.begin(1, 21)
    assert queue.take() == "b"
    queue.settle(1, 40, "a")
    queue.settle(3, 40, "c")
    assert [queue.take(), queue.take(), queue.take()] == ["a", "c", None]


def test_the_order_of_answers_is_that_of_their_times_however_they_come():
    draw = random.Random(7)
    ends = {number: draw.randrange(100) for number in range(200)}
    expected = [str(number) for _, number in sorted((end, number) for number, end in ends.items())]
    for _ in range(5):
        queue, taken = AnswerQueue(), []
        for number, end in ends.items():
            queue.begin(number, draw.randrange(end + 1))
        for number in draw.sample(list(ends), len(ends)):
            if draw.random() < 0.5:
                queue.begin(number, draw.randrange(ends[number] + 1))
            queue.settle(number, ends[number], str(number))
            while (site := queue.take()) is not None:
                taken.append(site)
        assert taken == expected


def test_a_wait_is_over_once_no_answer_can_come_up_to_its_limit():
    queue = AnswerQueue()
    assert queue.is_over(10)  # with nothing in flight
    queue.begin(1, 5)
    queue.begin(2, 8)
    queue.settle(2, 9, "b")
    assert not queue.is_over(5)  # the first may come at that very time
    assert (queue.take(8), queue.is_over(4)) == (None, True)
    queue.begin(1, 30)
    assert (queue.take(8), queue.is_over(8), queue.is_over(9)) == (None, True, False)
    assert (queue.take(9), queue.is_over(29), queue.is_over(30)) == ("b", True, False)


def test_the_seconds_of_an_example_are_exact():
    assert TimeSection(seconds_per_example=0.1).seconds_of(3.0) == Fraction(3, 10)


class Fleetful:
    """A job whose sites are away by turns: site n in the n-th second of each three."""

    devices_come_and_go = True
    devices_have_memory = False

    clients = SimpleNamespace(site_names=["a", "b", "c"])

    def device(self, site):
        return SiteDevice(name="phone", availability=Turns("abc".index(site)))


@dataclass
class Turns:
    place: int

    def next_there(self, now):
        return now + (1 - now % 1) if now % 3 == self.place else now

    def next_gone(self, now):
        return now + 1 + (self.place - now - 1) % 3


def test_a_wait_without_a_limit_ends_once_a_site_is_back_or_something_comes():
    fleet = Fleet(Fleetful())
    clock = SimulatedClock(SimpleNamespace(time=None), fleet)
    asked = []
    assert clock.wait_until(math.inf, lambda stop: asked.append(stop)) is None
    assert (clock.now, fleet.sites) == (1, ["a", "c"])
    assert asked == [1]
    # With one, whoever comes and goes before it.
    assert clock.wait_until(3, lambda stop: asked.append(stop)) is None
    assert (clock.now, fleet.sites, set(asked)) == (3, ["b", "c"], {1, 2, 3})
    # The clock is yet to go on to what comes.
    assert clock.wait_until(9, lambda stop: "answer" if stop >= 5 else None) == "answer"
    assert clock.now == 4


def test_a_fleet_waits_until_enough_sites_are_there_and_says_if_they_never_are():
    fleet = Fleet(Fleetful())
    assert fleet.sites == ["b", "c"]
    assert list(fleet.idle) == ["c", "b"]  # the last one has the place of the first
    assert fleet.wait_for(2, 0) == 0
    fleet.go_on(1)
    assert fleet.sites == ["a", "c"]
    with pytest.raises(SimulationError, match="3 sites were never there at once"):
        fleet.wait_for(3, 1)
    fleet.bench("a", "which is too small")
    assert fleet.wait_for(3, 1) == 1  # which fewer than three are left for


def test_it_makes_no_difference_in_how_many_steps_the_clock_goes_on():
    orders = []
    for steps in ([4], [1, 4], [1, 2, 3, 4]):
        fleet = Fleet(Fleetful())
        for time in steps:
            fleet.go_on(time)
        orders.append((list(fleet.idle), fleet.sites, fleet.next_change(), fleet.arrivals))
    assert orders[0] == orders[1] == orders[2]


def test_a_site_that_was_away_while_it_trained_is_idle_once_it_is_back():
    fleet = Fleet(Fleetful())
    fleet.start("b")
    fleet.go_on(1)
    fleet.end("b")
    assert "b" not in fleet.idle
    fleet.go_on(2)
    assert "b" in fleet.idle
    assert len(fleet.in_flight) == 0
