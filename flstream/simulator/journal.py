"""The journal of a run: ``events.jsonl``, read for what counts.

A run may be cut off at any instant and go on later, any number of times. Every such *sitting* but
the first begins with :class:`~flstream.telemetry.events.RunResumed`. What the one before had
written of a round that it did not complete stays in the file, but it is void: it is done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flstream.errors import SimulationError
from flstream.simulator.summary import TALLIED
from flstream.telemetry.events import (
    AnyEvent,
    Evaluated,
    ModelReady,
    RoundFinished,
    RunFinished,
    RunResumed,
    RunStarted,
    decode_event,
)

# A round's event has an entry a site, of which there may be a million.
_MOST_LINE_BYTES = 64 << 20


class Journal:
    """The events of a run that count, folded one at a time in the order of the file.

    Events that belong to no summary are passed over: they are for whoever reads the file.
    """

    def __init__(self) -> None:
        self._events: list[AnyEvent] = []
        # Of each completed round, 0 being the initial model: the digest of its model, and how many
        # of the events are of that round or an earlier one.
        self._digests: list[str] = []
        self._ends: list[int] = []
        self._seconds = 0.0
        self._began: float | None = None
        self._last = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written yet."""
        return self._began is None

    @property
    def last_round(self) -> int | None:
        """The last completed round; 0 if only the initial model is there, None without that."""
        return len(self._ends) - 1 if self._ends else None

    @property
    def seconds(self) -> float:
        """How long the run has been going on, from the first event to the last of each sitting."""
        return self._seconds + (self._last - self._began if self._began is not None else 0.0)

    @property
    def is_finished(self) -> bool:
        """Whether the run has come to its end, with every round that it was to have."""
        last = self._events[-1] if self._events else None
        return isinstance(last, RunFinished) and last.status == "finished"

    @property
    def planned_rounds(self) -> int:
        """How many rounds the last sitting was to come to; 0 if it did not get to say so."""
        planned = (
            event.rounds for event in reversed(self._events) if isinstance(event, RunStarted)
        )
        return next(planned, 0)

    def digest(self, round_number: int) -> str:
        """The digest of the model that a completed round ended with."""
        return self._digests[round_number]

    def events(self) -> Sequence[AnyEvent]:
        """All events that count."""
        return tuple(self._events)

    def events_until(self, round_number: int | None) -> Sequence[AnyEvent]:
        """The events that count if the run goes on from the model of a round.

        Args:
            round_number: a completed round; None for a run that begins anew.
        """
        kept = self._kept(round_number)
        # What was said when the run was resumed stays said.
        later = [event for event in self._events[kept:] if isinstance(event, RunResumed)]
        return (*self._events[:kept], *later)

    def apply(self, event: AnyEvent) -> None:
        """Take one event.

        Raises:
            ValueError: it does not follow from those before.
        """
        match event:
            case ModelReady() if self._ends:
                # The model is there: a sitting that goes on from it may say so once more.
                self._check(event.digest == self._digests[0], "the initial model is another one")
            case ModelReady():
                self._events.append(event)
                self._complete(event.digest)
            case RoundFinished():
                self._check(event.round == len(self._ends), f"round {event.round} ended")
                self._events.append(event)
                self._complete(event.digest)
            case Evaluated():
                self._check(event.round < len(self._ends), f"round {event.round} was evaluated")
                self._events.append(event)
                if event.round == self.last_round:
                    self._ends[-1] = len(self._events)
            case RunResumed():
                self._resume(event)
            case _ if isinstance(event, TALLIED):
                self._events.append(event)
        if self._began is None:
            self._began = self._last = event.time
        # A clock that was set back in between must not make a sitting shorter.
        self._last = max(self._last, event.time)

    def _resume(self, event: RunResumed) -> None:
        number = event.round
        known = number is None or 0 <= number < len(self._ends)
        self._check(known, f"the run went on from round {number}")
        self._events = [*self.events_until(number), event]
        del self._ends[self._completed(number) :], self._digests[self._completed(number) :]
        self._seconds = self.seconds
        self._began = self._last = event.time

    def _complete(self, digest: str) -> None:
        self._digests.append(digest)
        self._ends.append(len(self._events))

    def _kept(self, round_number: int | None) -> int:
        return 0 if round_number is None else self._ends[round_number]

    def _completed(self, round_number: int | None) -> int:
        return 0 if round_number is None else round_number + 1

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            after = (
                "before there was a model" if not self._ends else f"after round {self.last_round}"
            )
            raise ValueError(f"{what} {after}")


def read_journal(path: Path) -> Journal:
    """Read a journal.

    A last line without an end was being written when the run was cut off, and is passed over.

    Args:
        path: of the file. If it is not there, nothing has happened yet.

    Raises:
        SimulationError: it cannot be read, or another line is damaged; the message names the line.
    """
    journal = Journal()
    number = 0
    try:
        with path.open("rb") as file:
            while line := file.readline(_MOST_LINE_BYTES):
                number += 1
                if not line.endswith(b"\n") and len(line) < _MOST_LINE_BYTES:
                    break
                journal.apply(decode_event(line))
    except FileNotFoundError:
        return journal
    except OSError as error:
        raise SimulationError(
            f"{path} cannot be read: {error.strerror}; check its permissions"
        ) from error
    except (ValueError, RecursionError) as error:  # the decoder's own are ValueErrors, too
        last = journal.last_round
        until = "the beginning" if last is None else f"round {last}"
        raise SimulationError(
            f"{path}, line {number}, is damaged: {error}; put the file back from a copy, or cut it "
            f"off before this line to go on from {until}"
        ) from error
    return journal
