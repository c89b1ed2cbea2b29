"""Simulated time: how long each site's part of a task takes, and whose answer is the next."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from typing import NamedTuple, TypeVar

from flstream.job import Job
from flstream.job.device import NANOSECONDS, SiteDevice, exact, nanoseconds
from flstream.job.time_section import RoundEnd, TimeSection
from flstream.runs.simulated_times import DROPPED_OUT, WENT_AWAY
from flstream.server.fleet import Fleet
from flstream.units import format_seconds
from flstream.worker.messages import SiteAnswer, SiteTask, TaskDeadline

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

    def begin(self, tasks: Mapping[str, SiteTask], seconds: float) -> dict[str, SiteClock]:
        """Begin a task now; return the clock of each of its sites, by name.

        Args:
            tasks: Each site's part.
            seconds: Simulated seconds that a site may take.
        """
        section, device = self._job.time, self._fleet.device
        return {
            site: SiteClock(section, device, self.now, task, seconds)
            for site, task in tasks.items()
        }


class SiteClock:
    """Simulated time of a site's part of a task.

    Args:
        section: How work is counted.
        device: Returns the device of a site.
        began: When the task began.
        task: The site's part.
        seconds: Simulated seconds that the site may take.

    Attributes:
        began: As given.
        end: When it has answered or failed; None before that is known.
    """

    def __init__(
        self,
        section: TimeSection,
        device: Callable[[str], SiteDevice],
        began: int,
        task: SiteTask,
        seconds: float,
    ) -> None:
        self.began = began
        self.end: SiteTime | None = None
        self._section = section
        self._device_of = device
        self._task = task
        self._seconds = seconds
        self._arrival = self._late_arrival = 0
        self._gone = False
        self._declared: float | None = None
        # When it is over at the latest; None before the site is sent anything.
        self._last: int | None = None

    @property
    def _device(self) -> SiteDevice:
        return self._device_of(self._task.site)

    def arrive(self, nbytes: int) -> SiteTime | None:
        """Record how many bytes the site is sent; return why it never trains, or None."""
        if self._last is not None:
            return self.end
        device = self._device
        self._last, self._gone = self._over()
        self._arrival = self.began + device.before_work(nbytes)
        end, seed = self._before(self._arrival), self._task.seed
        drawn = random.Random(f"flstream/dropout/{seed}").random() if device.dropout else 1.0
        if drawn < device.dropout and not end.failure:
            reason = f"{DROPPED_OUT} (devices.{device.name}.dropout)"
            end = SiteTime(self._arrival, reason, is_absence=True)
        if end.failure:
            self.end = end
        return self.end

    def arrive_late(self, now: int, nbytes: int) -> None:
        """Record that so many bytes are sent to the site from now on, while it trains."""
        self._late_arrival = now + self._device.before_work(nbytes)
        if self.end is not None and not self.end.is_absence:
            self.end = self._before(max(self.end.time, self._late_arrival), self.end.failure)

    def declare(self, units: float) -> None:
        """Record how much work the site has declared."""
        self._declared = units

    def earliest(self) -> int:
        """The earliest time at which the site can have answered, as far as that is known."""
        if self.end is not None:
            return self.end.time
        declared = 0.0 if self._declared is None else self._declared
        return self._before(self._trained(self._work(declared))).time

    def _work(self, units: float) -> int:
        """How long the site trains for so many units of work, where that is not measured."""
        if self._section.work == "measured":
            return 0
        units = max(units, self._section.least_units)
        return self._device.work(self._section.seconds_of(units))

    def _trained(self, work: int) -> int:
        """When the site has trained for so long, and received all that it was sent."""
        return max(self._arrival + work, self._late_arrival)

    def answer(self, answer: SiteAnswer) -> SiteTime:
        """Record the site's answer; return when it comes, or that the site has failed before."""
        section, device = self._section, self._device
        if section.work == "declared" and answer.units is None:
            reason = "its code has not called flare.work(units) (time.work = declared)"
            self.end = SiteTime(self._arrival, reason)
            return self.end
        if section.work == "measured":
            work = device.work(Fraction(answer.seconds))
        else:
            work = self._work(answer.weight if answer.units is None else answer.units)
        self.end = self._before(self._trained(work) + device.after_work(answer.nbytes))
        return self.end

    def fail(self, reason: str) -> None:
        """Record that the site's code has failed: noticed once it had the model, and its work.

        An earlier time would depend on whether others have answered in the meantime.
        """
        if self.end is None or not self.end.failure:
            time = self.began if self._last is None else self.earliest()
            self.end = self._before(time, reason)

    def deadline(self, seconds: float, nbytes: int) -> TaskDeadline:
        """How long the site may train, so that its answer of so many bytes is there in time."""
        spent = self._arrival - self.began + self._device.after_work(nbytes)
        remaining = max(nanoseconds(seconds) - spent, 0)
        unit = self._section.seconds_of(1) * NANOSECONDS / exact(self._device.speed)
        return TaskDeadline(remaining / NANOSECONDS, float(remaining // unit) if unit else None)

    def _before(self, time: int, failure: str = "") -> SiteTime:
        """A time, or an earlier one at which the site goes away or has taken too long."""
        if self._last is None or time <= self._last:
            return SiteTime(time, failure)
        if self._gone:
            reason = f"{WENT_AWAY} (devices.{self._device.name}.available)"
            return SiteTime(self._last, reason, is_absence=True)
        taken = format_seconds(self._seconds)
        return SiteTime(self._last, f"it took more than {taken} (clients.round_timeout)")

    def _over(self) -> tuple[int, bool]:
        """When the site's part is over at the latest, and whether its device goes away then."""
        device, limit = self._device, self.began + nanoseconds(self._seconds)
        if device.availability is not None:
            gone = device.availability.next_gone(self.began)
            if gone is not None and gone < limit:
                return gone, True
        return limit, False


def late_answers(
    clocks: Mapping[str, SiteClock], answered: Sequence[str], end: RoundEnd | None
) -> tuple[int, Sequence[str]]:
    """Return when a task ends, and the sites whose answers come after that.

    Args:
        clocks: The clocks of its sites, at least one, all of which have answered or failed.
        answered: Sites with an answer, in the order in which updates are folded.
        end: When it ends early; None for never.
    """
    times = {site: clock.end.time for site, clock in clocks.items() if clock.end is not None}
    began = next(iter(clocks.values())).began
    last = max(times.values(), default=began)
    if end is None or len(answered) < end.answers:
        return last, ()
    ranked = sorted(answered, key=times.__getitem__)
    decisive = times[ranked[end.answers - 1]]
    close = max(decisive + nanoseconds(end.grace), began + nanoseconds(end.earliest))
    if close == decisive:  # several may come at once, of which the first so many count
        return close, ranked[end.answers :]
    late = [site for site in ranked if times[site] > close]
    return min(close, last), late


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
        """Record when the answer to a start comes."""
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
