"""The journal of a run: ``events.jsonl``, read for what counts.

A run may be cut off at any instant and go on later, any number of times. Every such *sitting* but
the first begins with :class:`~flstream.telemetry.events.RunResumed`. What the one before had
written of a round that it did not complete stays in the file, but it is void: it is done again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flstream.errors import SimulationError
from flstream.simulator.files.summary import TALLIED
from flstream.telemetry.event_log import WholeLines
from flstream.telemetry.events import (
    AnyEvent,
    Evaluated,
    ModelReady,
    RoundFinished,
    RunFinished,
    RunResumed,
    RunStarted,
    decode_event,
    most_line_bytes,
)


@dataclass
class _Completed:
    """A completed round, or the initial model.

    Attributes:
        digest: of its model.
        optimizer_state: digest of what the server's optimizer remembered; empty without one.
        end: how many of the events are of this round or an earlier one.
        scored_end: the same with its evaluation.
    """

    digest: str
    optimizer_state: str
    end: int
    scored_end: int


class Journal:
    """The events of a run that count, folded one at a time in the order of the file.

    Events that belong to no summary are passed over: they are for whoever reads the file.
    """

    def __init__(self) -> None:
        self._events: list[AnyEvent] = []
        self._rounds: list[_Completed] = []  # by number; 0 is the initial model
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
        return len(self._rounds) - 1 if self._rounds else None

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
        return self._rounds[round_number].digest

    def optimizer_state(self, round_number: int) -> str:
        """The digest of what the server's optimizer remembered after it; empty without one."""
        return self._rounds[round_number].optimizer_state

    def events(self) -> Sequence[AnyEvent]:
        """All events that count."""
        return tuple(self._events)

    def events_until(
        self, round_number: int | None, *, evaluated: bool = True
    ) -> Sequence[AnyEvent]:
        """The events that count if the run goes on from the model of a round.

        Args:
            round_number: a completed round; None for a run that begins anew.
            evaluated: whether that round's evaluation counts, if there is one.
        """
        kept = 0
        if round_number is not None:
            completed = self._rounds[round_number]
            kept = completed.scored_end if evaluated else completed.end
        # What was said when the run was resumed stays said.
        later = [event for event in self._events[kept:] if isinstance(event, RunResumed)]
        return (*self._events[:kept], *later)

    def apply(self, event: AnyEvent) -> None:
        """Take one event.

        Raises:
            ValueError: it does not follow from those before.
        """
        match event:
            case ModelReady() if self._rounds:
                # The model is there: a sitting that goes on from it may say so once more.
                same = event.digest == self._rounds[0].digest
                self._check(same, "the initial model is another one")
            case ModelReady():
                self._complete(event)
            case RoundFinished():
                self._check(event.round == len(self._rounds), f"round {event.round} ended")
                self._complete(event, event.optimizer_state)
            case Evaluated():
                self._check(event.round < len(self._rounds), f"round {event.round} was evaluated")
                self._events.append(event)
                if event.round == self.last_round:
                    self._rounds[-1].scored_end = len(self._events)
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
        known = number is None or 0 <= number < len(self._rounds)
        self._check(known, f"the run went on from round {number}")
        self._events = [*self.events_until(number, evaluated=event.evaluated), event]
        del self._rounds[0 if number is None else number + 1 :]
        if self._rounds and not event.evaluated:
            self._rounds[-1].scored_end = self._rounds[-1].end
        self._seconds = self.seconds
        self._began = self._last = event.time

    def _complete(self, event: ModelReady | RoundFinished, optimizer_state: str = "") -> None:
        self._events.append(event)
        end = len(self._events)
        self._rounds.append(_Completed(event.digest, optimizer_state, end, end))

    def _check(self, holds: bool, what: str) -> None:
        if not holds:
            after = (
                "before there was a model" if not self._rounds else f"after round {self.last_round}"
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
    lines = WholeLines(path, most_line_bytes(0))
    try:
        for line in lines:
            event = decode_event(line)
            journal.apply(event)
            if isinstance(event, RunStarted):
                lines.most = most_line_bytes(event.clients)
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
            f"{path}, line {lines.number}, is damaged: {error}; put the file back from a copy, or "
            f"cut it off before this line to go on from {until}"
        ) from error
    return journal
