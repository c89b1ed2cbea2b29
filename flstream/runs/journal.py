"""Reading of a run's journal, ``events.jsonl``, into its history."""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from flstream.errors import SimulationError
from flstream.runs.history import History
from flstream.runs.void_lines import MARKERS, VoidLines
from flstream.telemetry.event_log import WholeLines
from flstream.telemetry.events import (
    NO_CHECK,
    AnyEvent,
    EffectDone,
    RunResumed,
    checks_of,
    decode_event,
)

_GAP = "it does not follow the line before: lines are missing, doubled or swapped there"

# Beginnings of the lines about phases of sites, which are most lines of a journal.
_PHASES = (b'{"kind":"site_state"', b'{"kind":"site_update"')


class JournalLine(NamedTuple):
    """An event of a journal.

    Attributes:
        event: The event.
        counts: Whether it counts; else it is void, since it was done again.
        end: Where the next line begins, in bytes.
    """

    event: AnyEvent
    counts: bool
    end: int


class Journal:
    """The lines of a journal up to its present end, each of which counts or is void.

    A last line without a line end was being written when the run was killed, and is skipped. A
    missing file is an empty journal.

    Args:
        path: Path of the journal.
        tolerant: Whether damage is counted instead of refused. Damaged lines are skipped.
        last: Event after which nothing is read; None for all.
        phases: Whether to decode the phases of sites; else their lines are only checked for order.

    Attributes:
        damaged: Lines that could not be used.
        gaps: Places where lines are missing, doubled or swapped.

    Raises:
        SimulationError: The journal cannot be read, or a line is damaged, missing, doubled or in
            another place; the message names the line. Iterating raises it.
    """

    def __init__(
        self,
        path: Path,
        *,
        tolerant: bool = False,
        last: AnyEvent | None = None,
        phases: bool = True,
    ) -> None:
        self._path = path
        self._skipped = () if phases else _PHASES
        self._tolerant = tolerant
        self._last = last
        self.damaged = 0
        self.gaps = 0

    def __iter__(self) -> Iterator[JournalLine]:
        self.damaged = self.gaps = 0
        lines = WholeLines(self._path)
        try:
            # More may be written meanwhile, which could make void what was read already.
            size = self._path.stat().st_size
            voids = self._void_lines(size)
            for event in self._events(lines, size):
                yield JournalLine(event, not voids.has(event, lines.start), lines.end)
                if event == self._last:
                    return
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

    def _events(self, lines: WholeLines, size: int) -> Iterator[AnyEvent]:
        # Check of the line before; None where that is damaged.
        before: bytes | None = NO_CHECK
        for line in lines:
            if lines.end > size:
                return
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

    def _void_lines(self, size: int) -> VoidLines:
        voids = VoidLines()
        if not _has_voiding_line(self._path, size):
            return voids
        lines = WholeLines(self._path)
        for line in lines:
            if lines.end > size:
                break
            try:
                event = decode_event(line)
            except (ValueError, RecursionError):
                continue  # the other reading refuses it, or counts it
            voids.apply(event, lines.start, lines.end)
            if event == self._last:
                break
        return voids


def read_history(
    path: Path,
    *,
    last: AnyEvent | None = None,
    phases: bool = True,
) -> History:
    """Read a journal into a history.

    Args:
        path: Path of the journal. A missing file is read as an empty journal.
        last: Event after which nothing is read; None for all.
        phases: Whether to read the phases of sites; without them, no seconds of theirs are known.

    Raises:
        SimulationError: The journal cannot be read, or is damaged; the message names the line.
    """
    history = History()
    for line in Journal(path, last=last, phases=phases):
        history.apply(line.event, counts=line.counts)
    return history


def read_effects(path: Path) -> Sequence[EffectDone]:
    """Read the effects from which a run can go on: those up to the last that was synced.

    Raises:
        SimulationError: The journal cannot be read, or is damaged; the message names the line.
    """
    effects: list[EffectDone] = []
    durable = 0
    for event, counts, _ in Journal(path):
        if counts and isinstance(event, EffectDone):
            effects.append(event)
        # Syncing a line makes all lines before it durable, too.
        if isinstance(event, RunResumed) or (isinstance(event, EffectDone) and event.is_final):
            durable = len(effects)
    return effects[:durable]


def new_events(path: Path, start: int) -> Iterator[tuple[AnyEvent, int, int]]:
    """Yield the events of a journal from a line on, each with where its line begins and ends.

    Args:
        path: Path of the journal.
        start: Where the first line begins, in bytes.

    Raises:
        OSError: The journal cannot be read.
        ValueError: A line is damaged.
    """
    lines = WholeLines(path, start)
    for line in lines:
        yield decode_event(line), lines.start, lines.end


def _has_voiding_line(path: Path, size: int) -> bool:
    if size == 0:
        return False
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, prot=mmap.PROT_READ) as content:
        return any(content.find(marker) >= 0 for marker in MARKERS)
