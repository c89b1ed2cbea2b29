"""Reading of a run's journal, ``events.jsonl``, into its history."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from flstream.errors import SimulationError
from flstream.runs.history import History
from flstream.telemetry.event_log import WholeLines
from flstream.telemetry.events import (
    NO_CHECK,
    AnyEvent,
    EffectDone,
    ModelReady,
    RunResumed,
    checks_of,
    decode_event,
)

_GAP = "it does not follow the line before: lines are missing, doubled or swapped there"

# Beginnings of the lines about phases of sites, which are most lines of a journal.
_PHASES = (b'{"kind":"site_state"', b'{"kind":"site_update"')


class Journal:
    """The events of a journal, from its first line to its last.

    A last line without a line end was being written when the run was killed, and is skipped. A
    missing file is an empty journal.

    Args:
        path: Path of the journal.
        tolerant: Whether damage is counted instead of refused. Damaged lines are skipped.
        phases: Whether to decode the phases of sites; else their lines are only checked for order.

    Attributes:
        end: Length in bytes of the lines up to the last event that was read.
        damaged: Lines that could not be used.
        gaps: Places where lines are missing, doubled or swapped.

    Raises:
        SimulationError: The journal cannot be read, or a line is damaged, missing, doubled or in
            another place; the message names the line. Iterating raises it.
    """

    def __init__(self, path: Path, *, tolerant: bool = False, phases: bool = True) -> None:
        self._path = path
        self._skipped = () if phases else _PHASES
        self._tolerant = tolerant
        self.end = 0
        self.damaged = 0
        self.gaps = 0

    def __iter__(self) -> Iterator[AnyEvent]:
        self.damaged = self.gaps = 0
        lines = WholeLines(self._path)
        try:
            for event in self._events(lines):
                self.end = lines.end
                yield event
        except FileNotFoundError:
            return
        except OSError as error:
            raise SimulationError(
                f"{self._path} cannot be read: {error.strerror}; check its permissions"
            ) from error
        except (ValueError, RecursionError) as error:
            raise SimulationError(
                f"{self._path}, line {lines.number}, is damaged: {error}; put the file back from a "
                "copy, or cut it off before this line to go on from what came before"
            ) from error

    def _events(self, lines: WholeLines) -> Iterator[AnyEvent]:
        # Check of the line before; None where that is damaged.
        before: bytes | None = NO_CHECK
        for line in lines:
            checks, after = checks_of(line), before
            before = checks.check if checks is not None else None
            is_gap = checks is not None and after not in (None, checks.follows)
            if checks is not None and not is_gap and line.startswith(self._skipped):
                continue
            try:
                event = decode_event(line)
                if is_gap:
                    if not self._tolerant:
                        raise ValueError(_GAP)
                    self.gaps += 1
            except (ValueError, RecursionError):  # the decoder's errors are ValueErrors
                if not self._tolerant:
                    raise
                # A line that is too long comes in pieces, of which only the last has a line end.
                self.damaged += line.endswith(b"\n")
                before = None
                continue
            yield event


def read_history(path: Path, *, phases: bool = True) -> History:
    """Read a journal into a history.

    Args:
        path: Path of the journal. A missing file is read as an empty journal.
        phases: Whether to read the phases of sites; without them, no seconds of theirs are known.

    Raises:
        SimulationError: The journal cannot be read, or is damaged; the message names the line.
    """
    history = History()
    for event in Journal(path, phases=phases):
        history.apply(event)
    return history


class JournalContent(NamedTuple):
    """The content of a journal.

    Attributes:
        history: All of its events, added up.
        effects: The effects that are done, in order.
        ends: By number of an effect, or 0 for the initial model, where its line ends in bytes.
        resumes: Each resume, with where its line ends.
    """

    history: History
    effects: Sequence[EffectDone]
    ends: Mapping[int, int]
    resumes: Sequence[tuple[int, RunResumed]]


def read_journal(path: Path) -> JournalContent:
    """Read the journal of a run to resume.

    Raises:
        SimulationError: The journal cannot be read, or is damaged; the message names the line.
    """
    history, journal = History(), Journal(path)
    effects, ends, resumes = list[EffectDone](), dict[int, int](), []
    for event in journal:
        history.apply(event)
        match event:
            case ModelReady():
                ends[0] = journal.end
            case EffectDone():
                effects.append(event)
                ends[event.effect] = journal.end
            case RunResumed():
                resumes.append((journal.end, event))
    return JournalContent(history, effects, ends, resumes)
