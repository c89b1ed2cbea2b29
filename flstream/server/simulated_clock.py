"""Simulated time: how long each site's part of a task takes, and whose answer is the next."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from flstream.job import Job
from flstream.job.device import NANOSECONDS, SiteDevice, exact, nanoseconds
from flstream.job.time_section import RoundEnd, TimeSection
from flstream.runs.simulated_times import DROPPED_OUT, WENT_AWAY
from flstream.server.fleet import Fleet
from flstream.units import format_seconds
from flstream.worker.messages import SiteAnswer, SiteTask, TaskDeadline

if TYPE_CHECKING:
    from flstream.server.training import SiteTraining

ResultT = TypeVar("ResultT")


class SiteTime(NamedTuple):
    """Simulated end of a site's part of a task.

    Attributes:
        time: Nanoseconds since the run began.
        failure: Why it has failed then; empty where it has answered.
        is_absence: Whether the device, not the site's code, is the reason.
    """

    time: int
    failure: str = ""
    is_absence: bool = False


class SimulatedClock:
    """The virtual clock of a run; it goes on with the results of trainings.

    Attributes:
        now: Nanoseconds since the run began.
    """

    def __init__(self, job: Job, fleet: Fleet) -> None:
        self._job = job
        self._fleet = fleet
        self.now = 0

    def go_on(self, time: int) -> None:
        """Go on to a time, unless it is past."""
        if time > self.now:
            self.now = time
            self._fleet.go_on(time)

    def wait_for(self, least: int) -> None:
        """Go on until so many sites may be asked."""
        self.now = self._fleet.wait_for(least, self.now)

    def wait_until(self, limit: float, take: Callable[[float], ResultT | None]) -> ResultT | None:
        """Wait for an answer up to a time, or without a limit until a site comes back.

        Args:
            limit: The time, in nanoseconds since the run began; infinity for none.
            take: Takes the answer that comes up to a time; returns None where none does.

        Returns:
            The answer, up to whose time the clock is yet to go on; or None.
        """
        arrivals = self._fleet.arrivals
        while True:
            change = self._fleet.next_change()
            stop = limit if change is None else min(limit, change)
            if (taken := take(stop)) is not None or stop == math.inf:
                return taken
            self.go_on(int(stop))
            if stop == limit or (limit == math.inf and self._fleet.arrivals > arrivals):
                return None

    def task(self, tasks: Mapping[str, SiteTask], seconds: float) -> TaskTimes:
        """The times of a task's sites, which begin now.

        Args:
            tasks: Each site's part.
            seconds: Simulated seconds that a site may take.
        """
        return TaskTimes(self._job.time, self._fleet.device, self.now, tasks, seconds)


class TaskTimes:
    """Simulated times of the sites of one task.

    Args:
        section: How work is counted.
        device: Returns the device of a site.
        began: When the task began.
        tasks: Each site's part.
        seconds: Simulated seconds that a site may take.

    Attributes:
        began: As given.
        ends: By site, when it has answered or failed, where that is known.
    """

    def __init__(
        self,
        section: TimeSection,
        device: Callable[[str], SiteDevice],
        began: int,
        tasks: Mapping[str, SiteTask],
        seconds: float,
    ) -> None:
        self.began = began
        self.ends: dict[str, SiteTime] = {}
        self._section = section
        self._device = device
        self._seconds = seconds
        self._tasks = tasks
        self._arrivals: dict[str, int] = {}
        self._late_arrivals: dict[str, int] = {}
        self._declared: dict[str, float] = {}
        # When the devices of sites are away next after the beginning; None for never.
        self._gone: dict[str, int | None] = {}

    def arrive(self, site: str, nbytes: int) -> SiteTime | None:
        """Take in how many bytes a site is sent; return why it never trains, or None."""
        if site in self._arrivals:
            return self.ends.get(site)
        device, task = self._device(site), self._tasks[site]
        arrival = self.began + device.before_work(nbytes)
        self._arrivals[site] = arrival
        end = self._before(site, arrival)
        drawn = random.Random(f"flstream/dropout/{task.seed}").random() if device.dropout else 1.0
        if drawn < device.dropout and not end.failure:
            reason = f"{DROPPED_OUT} (devices.{device.name}.dropout)"
            end = SiteTime(arrival, reason, is_absence=True)
        if not end.failure:
            return None
        self.ends[site] = end
        return end

    def arrive_late(self, site: str, now: int, nbytes: int) -> None:
        """Take in that so many bytes are sent to a site from now on, while it trains."""
        arrival = self._late_arrivals[site] = now + self._device(site).before_work(nbytes)
        if (end := self.ends.get(site)) is not None and not end.is_absence:
            self.ends[site] = self._before(site, max(end.time, arrival), end.failure)

    def declare(self, site: str, units: float) -> None:
        """Take in how much work a site has declared."""
        self._declared[site] = units

    def bound(self, site: str) -> int:
        """The earliest time at which a site can have answered, as far as that is known."""
        if site in self.ends:
            return self.ends[site].time
        work = 0
        if site in self._declared and self._section.work != "measured":
            work = self._device(site).work(self._section.seconds_of(self._declared[site]))
        return self._before(site, self._trained(site, work)).time

    def _trained(self, site: str, work: int) -> int:
        """When a site has trained for so long, and received all that it was sent."""
        return max(self._arrivals[site] + work, self._late_arrivals.get(site, 0))

    def answer(self, answer: SiteAnswer) -> SiteTime:
        """Take in a site's answer; return when it comes, or that the site has failed before."""
        site, device, section = answer.site, self._device(answer.site), self._section
        if section.work == "declared" and answer.units is None:
            reason = "its code has not called flare.work(units) (time.work = declared)"
            self.ends[site] = SiteTime(self._arrivals[site], reason)
            return self.ends[site]
        if section.work == "measured":
            work = Fraction(answer.seconds)
        elif answer.units is not None:
            work = section.seconds_of(answer.units)
        else:
            work = section.seconds_of(answer.weight)
        time = self._trained(site, device.work(work)) + device.after_work(answer.nbytes)
        self.ends[site] = self._before(site, time)
        return self.ends[site]

    def fail(self, site: str, reason: str) -> SiteTime:
        """Take in that a site's code has failed: noticed once it had the model, and its work.

        An earlier time would depend on whether others have answered in the meantime.
        """
        if site not in self.ends or not self.ends[site].failure:
            time = self.bound(site) if site in self._arrivals else self.began
            self.ends[site] = self._before(site, time, reason)
        return self.ends[site]

    def late(self, answered: Sequence[str], end: RoundEnd | None) -> tuple[int, Sequence[str]]:
        """When a training ends, and whose answers come after that.

        Args:
            answered: Sites with an answer, in the order in which updates are folded.
            end: When it ends early; None for never.
        """
        last = max((end.time for end in self.ends.values()), default=self.began)
        if end is None or len(answered) < end.answers:
            return last, ()
        ranked = sorted(answered, key=lambda site: self.ends[site].time)
        decisive = self.ends[ranked[end.answers - 1]].time
        close = max(decisive + nanoseconds(end.grace), self.began + nanoseconds(end.earliest))
        if close == decisive:  # several may come at once, of which the first so many count
            return close, ranked[end.answers :]
        late = [site for site in ranked if self.ends[site].time > close]
        return min(close, last), late

    def plain(self) -> dict[str, int]:
        """By site, nanoseconds from the task's beginning until it has answered or failed."""
        return {
            site: self.ends[site].time - self.began for site in self._tasks if site in self.ends
        }

    def deadline(self, site: str, seconds: float, nbytes: int) -> TaskDeadline:
        """How long a site may train, so that its answer of so many bytes is there in time."""
        device = self._device(site)
        spent = self._arrivals[site] - self.began + device.after_work(nbytes)
        left = max(nanoseconds(seconds) - spent, 0)
        unit = self._section.seconds_of(1) * NANOSECONDS / exact(device.speed)
        return TaskDeadline(left / NANOSECONDS, float(left // unit) if unit else None)

    def _before(self, site: str, time: int, failure: str = "") -> SiteTime:
        """A time, or an earlier one at which the site goes away or has taken too long."""
        device = self._device(site)
        limit = self.began + nanoseconds(self._seconds)
        if device.availability is not None:
            if site not in self._gone:
                self._gone[site] = device.availability.next_gone(self.began)
            gone = self._gone[site]
            if gone is not None and gone < min(time, limit):
                reason = f"{WENT_AWAY} (devices.{device.name}.available)"
                return SiteTime(gone, reason, is_absence=True)
        if limit < time:
            taken = format_seconds(self._seconds)
            return SiteTime(limit, f"it took more than {taken} (clients.round_timeout)")
        return SiteTime(time, failure)


class GroupTimes(NamedTuple):
    """Simulated times of trainings that were started one by one, and are given as one task.

    Attributes:
        by_site: Those of each.
    """

    by_site: Mapping[str, TaskTimes]

    @classmethod
    def of(cls, group: Sequence[SiteTraining]) -> GroupTimes | None:
        """The times of a group; None on the wall clock."""
        times = {
            site: training.times
            for training in group
            for site in training.tasks
            if training.times is not None
        }
        return cls(times) if times else None

    def arrive(self, site: str, nbytes: int) -> SiteTime | None:
        """See :meth:`TaskTimes.arrive`."""
        return self.by_site[site].arrive(site, nbytes)

    def answer(self, answer: SiteAnswer) -> SiteTime:
        """See :meth:`TaskTimes.answer`."""
        return self.by_site[answer.site].answer(answer)

    def fail(self, site: str, reason: str) -> SiteTime:
        """See :meth:`TaskTimes.fail`."""
        return self.by_site[site].fail(site, reason)


class AnswerQueue:
    """Sites whose trainings are in flight, by the time of their answers, then the order of starts.

    The first of them is due once no other answer can come before it.
    """

    def __init__(self) -> None:
        self._answers: list[tuple[int, int, str]] = []
        # Earliest times of answers that are to come, some of which are out of date.
        self._bounds: list[tuple[int, int]] = []
        self._current: dict[int, int] = {}

    def begin(self, number: int, bound: int | None) -> None:
        """Expect the answer to a start, by its number.

        Args:
            number: Number of the effect that started the training.
            bound: The earliest time of its answer; None for one that no answer waits for.
        """
        self._current.pop(number, None)
        if bound is not None:
            self._current[number] = bound
            heapq.heappush(self._bounds, (bound, number))

    def settle(self, number: int, time: int, site: str) -> None:
        """Take in when the answer to a start comes."""
        self._current.pop(number, None)
        heapq.heappush(self._answers, (time, number, site))

    def take(self, limit: float = math.inf) -> str | None:
        """Take the site of the next answer; None while another one may come before it.

        Args:
            limit: Time up to which it may come.
        """
        answers, bound = self._answers, self._earliest()
        if not answers or answers[0][0] > limit or (bound and bound < answers[0][:2]):
            return None
        return heapq.heappop(answers)[2]

    def is_over(self, limit: float) -> bool:
        """Whether no answer that is not taken yet can come up to a time."""
        bound = self._earliest()
        times = [time for time, *_ in (*self._answers[:1], *([bound] if bound else ()))]
        return all(time > limit for time in times)

    def _earliest(self) -> tuple[int, int] | None:
        """Return the earliest time of an answer that is to come, and the number of its start."""
        bounds = self._bounds
        while bounds and self._current.get(bounds[0][1]) != bounds[0][0]:
            heapq.heappop(bounds)
        return bounds[0] if bounds else None
