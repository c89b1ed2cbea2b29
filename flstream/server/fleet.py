"""The sites of a run: who is still asked, who is there, who is idle, and what each is given."""

from __future__ import annotations

import heapq
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, overload

from msgspec.structs import replace

from flstream.errors import SimulationError
from flstream.job import Job
from flstream.job.device import SiteDevice
from flstream.runs.results import StateVersion
from flstream.runs.site_states import check_states
from flstream.server.sampling import site_seed
from flstream.worker.messages import SiteTask

if TYPE_CHECKING:
    from flstream.runs.run_directory import RunDirectory

SeedKind = Literal["train", "evaluate", "submit_model"]
"""Kind of a task, as far as its random numbers go."""


class SiteSet(Sequence[str]):
    """A set of sites in an order that its history decides: each step costs the same in any fleet.

    To iterate is to go over a copy, so that a workflow may start the sites that it goes over. A
    site takes eight bytes.

    Args:
        sites: All sites there are, by name, each with its number, from 0.
        is_full: Whether all of them are in the set at first.
    """

    def __init__(self, sites: Mapping[str, int], *, is_full: bool) -> None:
        self._sites = sites
        self._names = list(sites)
        self._order = array("i", range(len(sites)) if is_full else [])
        # By number, the place of each site in that order; -1 for one that is not in the set.
        self._places = array("i", self._order if is_full else [-1] * len(sites))

    def add(self, name: str) -> None:
        """Add a site at the end."""
        number = self._sites[name]
        if self._places[number] < 0:
            self._places[number] = len(self._order)
            self._order.append(number)

    def discard(self, name: str) -> None:
        """Remove a site; the last one takes its place."""
        number = self._sites[name]
        place = self._places[number]
        if place < 0:
            return
        last = self._order.pop()
        if last != number:
            self._order[place] = last
            self._places[last] = place
        self._places[number] = -1

    @overload
    def __getitem__(self, place: int) -> str: ...
    @overload
    def __getitem__(self, place: slice) -> list[str]: ...
    def __getitem__(self, place: int | slice) -> str | list[str]:
        if isinstance(place, slice):
            return [self._names[number] for number in self._order[place]]
        return self._names[self._order[place]]

    def __len__(self) -> int:
        return len(self._order)

    def __iter__(self) -> Iterator[str]:
        return iter(self[:])

    def __contains__(self, name: object) -> bool:
        number = self._sites.get(name) if isinstance(name, str) else None
        return number is not None and self._places[number] >= 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self[:] == list(other)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(self[:])


class Fleet:
    """The sites of a run.

    Where devices come and go on a virtual clock, the fleet changes as that goes on.

    Attributes:
        idle: Sites that may be asked, and have no training in flight.
        in_flight: Sites with one.
        numbers: The number of each site in their fixed order, from 0, by its name.
        arrivals: How often a site has come back.
    """

    def __init__(self, job: Job) -> None:
        self._job = job
        self.numbers = {name: number for number, name in enumerate(job.clients.site_names)}
        self._names = list(self.numbers)
        self.idle = SiteSet(self.numbers, is_full=True)
        self.in_flight = SiteSet(self.numbers, is_full=False)
        self.arrivals = 0
        # Failures of sites in a row, by what is final in the journal; those that have failed since
        # the last model; and failures that need not be final yet.
        self._in_a_row: dict[str, int] = {}
        self._failed: set[str] = set()
        self._recent: list[str] = []
        # Why sites are asked no more, by name.
        self._benched: dict[str, str] = {}
        # Devices of the sites that were asked: each remembers where its periods were.
        self._devices: dict[str, SiteDevice] = {}
        self._away: set[str] = set()
        # The next time at which a site comes or goes, with its place.
        self._changes: list[tuple[int, int]] = []
        # The states that sites have left, and how many tasks of a kind each has had in the round.
        self._states: dict[str, StateVersion] = {}
        self._counts: dict[tuple[str, SeedKind], int] = {}
        if job.devices_come_and_go:
            for place, name in enumerate(self._names):
                self._note_change(place, name, 0)

    def device(self, site: str) -> SiteDevice:
        """Return the device of a site."""
        device = self._devices.get(site)
        if device is None:
            device = self._devices[site] = self._job.device(site)
        return device

    def begin_round(self) -> None:
        """Count the tasks of sites anew."""
        self._counts.clear()

    def tasks(self, kind: SeedKind, sites: Iterable[str], number: int) -> Mapping[str, SiteTask]:
        """Return the sites' parts of a new task of a round, by site."""
        tasks = {}
        for site in sites:
            ordinal = self._counts.get((site, kind), 0)
            self._counts[site, kind] = ordinal + 1
            seed = site_seed(self._job.seed, site, number, kind, ordinal)
            tasks[site] = SiteTask(site, self.numbers[site], seed, self._states.get(site))
        return tasks

    def up_to_date(self, tasks: Mapping[str, SiteTask]) -> Mapping[str, SiteTask]:
        """Return the parts of a task that is begun now, after others may have changed states."""
        return with_states(tasks, self._states)

    def set_states(self, states: Mapping[str, StateVersion | None]) -> None:
        """Take the versions of their states that sites have left.

        Args:
            states: The versions, by site; None for an empty state, as after a task that came to
                nothing.
        """
        for site, state in states.items():
            self._states.pop(site, None)
            if state is not None:
                self._states[site] = state

    def leave_out_small(self, nbytes: int) -> Sequence[str]:
        """Ask sites no more that have not the memory for a model; return their names."""
        if not self._job.devices_have_memory:
            return ()
        small = []
        for name in self._names:
            memory = self._job.device(name).memory
            if memory is not None and memory < nbytes:
                small.append(name)
                self.bench(name, "which has not the memory for the model (devices)")
        return small

    @property
    def sites(self) -> list[str]:
        """The sites that may be asked, in their fixed order."""
        if not self._benched and not self._away:
            return list(self._names)
        return [name for name in self._names if self.may_be_asked(name)]

    def start(self, site: str) -> None:
        """Record that a site has a training in flight, whose failure counts by itself."""
        self._failed.discard(site)
        self.idle.discard(site)
        self.in_flight.add(site)

    def end(self, site: str) -> None:
        """Record that the training of a site is over."""
        self.in_flight.discard(site)
        if self.may_be_asked(site):
            self.idle.add(site)

    def bench(self, site: str, reason: str) -> None:
        """Ask a site no more, for a reason that messages give."""
        self._benched[site] = reason
        self._away.discard(site)
        self.idle.discard(site)

    def note_failures(self, sites: Iterable[str]) -> None:
        """Note sites that had no part in a task, on a record that need not be final yet."""
        self._recent += sites

    def settle_failures(self, contributed: Iterable[str] | None = None) -> Sequence[str]:
        """Count the failures noted so far, which are final now; bench who has too many.

        A site's failures count once until the next model, but for those of trainings that were
        started one by one. Sites whose updates are part of a model begin anew, unless they have
        failed since the last one.

        Args:
            contributed: Sites whose updates are part of a model that was made; None without one.

        Returns:
            The sites that are asked no more from now on.
        """
        if not self._in_a_row and not self._recent:
            return ()
        for site in self._recent:
            if site not in self._failed:
                self._failed.add(site)
                self._in_a_row[site] = self._in_a_row.get(site, 0) + 1
        if contributed is not None:
            for site in set(contributed) - self._failed:
                self._in_a_row.pop(site, None)
            self._failed.clear()
        most, is_new = self._job.clients.suspend_after, bool(self._recent)
        self._recent.clear()
        if not most or not is_new:
            return ()
        often = [site for site, count in self._in_a_row.items() if count >= most]
        suspended = [site for site in often if site not in self._benched]
        for site in suspended:
            self.bench(site, "which failed too often (clients.suspend_after): see its log")
        return suspended

    def go_on(self, now: int) -> None:
        """Record which sites have come and gone up to a time."""
        while self._changes and self._changes[0][0] <= now:
            # At its own time, so that it makes no difference in how many steps the clock goes on.
            time, place = heapq.heappop(self._changes)
            self._note_change(place, self._names[place], time)

    def next_change(self) -> int | None:
        """Return the next time at which a site comes or goes; None for never."""
        return self._changes[0][0] if self._changes else None

    def wait_for(self, least: int, now: int) -> int:
        """Return the first time from ``now`` on at which so many sites may be asked.

        Raises:
            SimulationError: There is no such time.
        """
        able = len(self._names) - len(self._benched)
        most, steps = _MOST_CHANGES * len(self._names), 0
        # Where fewer are left at all, whoever asks for so many says why there are none.
        while able - len(self._away) < least <= able and self._changes:
            now = self._changes[0][0]
            self.go_on(now)
            steps += 1
            if steps > most:
                raise SimulationError(
                    f"{least} sites were never there at once, however long the clock went on; "
                    "lower clients.min_updates or clients.per_round, or change devices"
                )
        return now

    def may_be_asked(self, site: str) -> bool:
        """Return whether a site is there, and has not failed too often."""
        return site not in self._benched and site not in self._away

    def why_not_asked(self, site: str) -> str:
        """Return the reason, as a clause, for which a site may not be asked."""
        return self._benched.get(site) or "whose device is away (devices)"

    @property
    def first_not_asked(self) -> str | None:
        """The first site that may not be asked; None without any."""
        return next((name for name in self._names if not self.may_be_asked(name)), None)

    def _note_change(self, place: int, site: str, now: int) -> None:
        """Record whether a site is there, and when that changes next."""
        availability = self.device(site).availability
        if availability is None or site in self._benched:
            return
        back = availability.next_there(now)
        if back > now:
            self._away.add(site)
            self.idle.discard(site)
            change: int | None = back
        else:
            self.arrivals += site in self._away
            self._away.discard(site)
            if site not in self.in_flight:
                self.idle.add(site)
            change = availability.next_gone(now)
        if change is not None:
            heapq.heappush(self._changes, (change, place))


# Changes for each site after which nobody waits for more of them at once.
_MOST_CHANGES = 1000


def with_states(
    tasks: Mapping[str, SiteTask], states: Mapping[str, StateVersion]
) -> Mapping[str, SiteTask]:
    """Return the parts of a task, with the states that sites begin with; empty ones for others."""
    return {site: replace(task, state=states.get(site)) for site, task in tasks.items()}


def check_states_of(
    run: RunDirectory, tasks: Mapping[str, SiteTask], failed: Iterable[str]
) -> None:
    """Refuse to continue if the state of a site that failed is missing or damaged.

    Without that site, the model would have other bits.

    Raises:
        ResumeRefusedError: A state is missing or damaged; the message names it.
    """
    states = [(site, state) for site in failed if (state := tasks[site].state) is not None]
    check_states(run, states)
