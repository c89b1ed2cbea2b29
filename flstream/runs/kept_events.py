"""Events that count, wherever a run goes on, and the lines of a journal that have them.

Events between two effects, such as what a site logged, are too many to be kept. Where their lines
begin is noted instead, in 16 bytes each, for a reader who reads these again.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from flstream.telemetry.events import (
    AnyEvent,
    EffectDone,
    Evaluated,
    ModelReady,
    RoundFinished,
    RoundStarted,
    RunResumed,
    SitesBeganAnew,
    UpdateTakenUp,
)


class KeptEvents:
    """Events that count, in the order in which they happened.

    Args:
        events: Events so far.

    Attributes:
        all: All of them.
    """

    def __init__(self, events: Sequence[AnyEvent] = ()) -> None:
        self.all: list[AnyEvent] = list(events)

    def until(self, end: int) -> tuple[AnyEvent, ...]:
        """The first ``end`` events, and what later resumes warned of: that stays said."""
        later = [event for event in self.all[end:] if isinstance(event, RunResumed)]
        return (*self.all[:end], *later)

    def end_of_effect(self, number: int) -> int:
        """How many events there are up to the record of an effect; 0 is the initial model.

        Raises:
            KeyError: The effect is not done.
        """
        for place, event in enumerate(self.all):
            match event:
                case ModelReady() if number == 0:
                    return place + 1
                case EffectDone(effect=effect) if effect == number:
                    return place + 1
        raise KeyError(number)

    def end_of_round(self, number: int | None, *, evaluated: bool) -> int:
        """How many events there are up to the end of a round; none without a round.

        Args:
            number: Number of a completed round; 0 is the initial model.
            evaluated: Whether its evaluation belongs to it that came after its end, if there is
                one.
        """
        end = 0
        for place, event in enumerate(self.all):
            match event:
                case ModelReady() if number == 0:
                    end = place + 1
                case RoundFinished() if event.round == number:
                    end = place + 1
                case RoundFinished() if end:
                    break
                case Evaluated() if end and evaluated and event.round == number:
                    end = place + 1
        return end


class CountedLines:
    """Lines of events of some kinds that count, each with the site that it is about.

    What came after the effect from which a run goes on is void, but for what a site told of a
    training whose update is taken up. So is what sites told of a task that they begin anew.

    Args:
        kinds: Classes of the events; none to note nothing.
    """

    def __init__(self, kinds: Sequence[type[AnyEvent]] = ()) -> None:
        self._kinds = tuple(kinds)
        self._offsets, self._sites, self._rounds = array("q"), array("i"), array("i")
        # Offsets of void lines, by site and round.
        self._void: dict[tuple[int, int], list[int]] = {}
        self._numbers: dict[str, int] = {}
        # How many lines there were when so many events counted.
        self._marks: list[tuple[int, int]] = []
        # How many there were when the task under way began.
        self._task = 0

    @property
    def offsets(self) -> Sequence[int]:
        """Where each line begins, in bytes, in rising order."""
        return sorted(self._offsets)

    @property
    def count(self) -> int:
        """How many lines there are."""
        return len(self._offsets)

    def after(self, count: int) -> Sequence[int]:
        """Offsets of the lines that came to count last, all but so many, in that order."""
        return self._offsets[count:].tolist()

    def apply(self, event: AnyEvent, offset: int) -> None:
        """Take one event, in the order of the file.

        Args:
            event: The event.
            offset: Where its line begins, in bytes.
        """
        match event:
            case UpdateTakenUp():
                whose = self._number_of(event.site), event.round
                for each in self._void.pop(whose, ()):
                    self._append(each, *whose)
            case RoundStarted():
                self._task = len(self._offsets)
            case SitesBeganAnew():
                self._forget_task(event)
        if isinstance(event, self._kinds):
            number = getattr(event, "round", None) or 0
            site = getattr(event, "site", "")
            self._append(offset, self._number_of(site), number)

    def settle(self, end: int) -> None:
        """Mark a place up to which a resume may go back.

        Args:
            end: Number of events that count by now.
        """
        if self._kinds:
            self._task = len(self._offsets)
            self._marks.append((end, self._task))

    def undo(self, end: int) -> None:
        """Set aside what came after so many events that count."""
        while self._marks and self._marks[-1][0] > end:
            self._marks.pop()
        kept = self._marks[-1][1] if self._marks else 0
        columns = self._offsets, self._sites, self._rounds
        self._void = {}
        for offset, site, number in zip(*(each[kept:] for each in columns), strict=True):
            self._void.setdefault((site, number), []).append(offset)
        for each in columns:
            del each[kept:]
        self._task = kept

    def _forget_task(self, event: SitesBeganAnew) -> None:
        """Leave out what sites told of the task under way."""
        whose = {(self._number_of(site), event.round) for site in event.sites}
        columns = self._offsets, self._sites, self._rounds
        task = list(zip(*(each[self._task :] for each in columns), strict=True))
        for each in columns:
            del each[self._task :]
        for offset, site, number in task:
            if (site, number) not in whose:
                self._append(offset, site, number)

    def _append(self, offset: int, site: int, round_number: int) -> None:
        self._offsets.append(offset)
        self._sites.append(site)
        self._rounds.append(round_number)

    def _number_of(self, site: str) -> int:
        return self._numbers.setdefault(site, len(self._numbers))
