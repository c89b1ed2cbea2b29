"""Reading of a run's journal, ``events.jsonl``, into its history."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from flstream.errors import SimulationError
from flstream.runs.history import History
from flstream.runs.job_facts import JobFacts
from flstream.telemetry.event_log import WholeLines
from flstream.telemetry.events import (
    NO_CHECK,
    AnyEvent,
    RunStarted,
    checks_of,
    decode_event,
    is_of_unknown_kind,
    most_line_bytes,
)

_GAP = "it does not follow the line before: lines are missing, doubled or swapped there"

# Of any job, for a reader who does not know the number.
_MOST_CLIENTS = 1_000_000


def read_history(
    path: Path,
    *,
    tolerant: bool = False,
    skip_unknown: bool = False,
    keep_results: bool = True,
    keep_weights: bool = True,
    note_lines_of: Sequence[type[AnyEvent]] = (),
    assumed: JobFacts | None = None,
) -> History:
    """Read a journal.

    A last line without a line end was being written when the run was killed, and is skipped.

    Args:
        path: Path of the journal. A missing file is read as an empty journal.
        tolerant: Whether damage is counted, instead of refused. Damaged lines are skipped.
        skip_unknown: Whether events of unknown kinds, as of a later version, are skipped.
        keep_results: Whether the history keeps the results of effects.
        keep_weights: Whether the history keeps the sites' weights in each round.
        note_lines_of: Kinds of events that :func:`read_events` is to read again.
        assumed: Facts about the job until the journal's first event gives them; None for none.

    Raises:
        SimulationError: The journal cannot be read, or a line is damaged, missing, doubled or in
            another place; the message names the line.
    """
    history = History(
        assumed,
        keep_results=keep_results,
        keep_weights=keep_weights,
        note_lines_of=note_lines_of,
    )
    lines = WholeLines(path, most_line_bytes(0))
    # Check of the line before; None where that is damaged.
    before: bytes | None = NO_CHECK
    try:
        for line in lines:
            checks, after = checks_of(line), before
            before = checks.check if checks is not None else None
            try:
                event = decode_event(line)
                if checks is not None and after not in (None, checks.follows):
                    if not tolerant:
                        raise ValueError(_GAP)
                    history.gaps += 1
                history.apply(event, lines.start)
            except (ValueError, RecursionError):  # the decoder's errors are ValueErrors
                if skip_unknown and is_of_unknown_kind(line):
                    continue
                if not tolerant:
                    raise
                # A line that is too long comes in pieces, of which only the last has a line end.
                history.damaged += line.endswith(b"\n")
                before = None
                continue
            if isinstance(event, RunStarted):
                lines.most = most_line_bytes(event.clients)
    except FileNotFoundError:
        return history
    except OSError as error:
        raise SimulationError(
            f"{path} cannot be read: {error.strerror}; check its permissions"
        ) from error
    except (ValueError, RecursionError) as error:
        last = history.last_round
        until = "the beginning" if last is None else f"round {last}"
        raise SimulationError(
            f"{path}, line {lines.number}, is damaged: {error}; put the file back from a copy, or "
            f"cut it off before this line to go on from {until}"
        ) from error
    return history


def read_events(path: Path, offsets: Sequence[int]) -> Iterator[AnyEvent]:
    """Yield the events of some lines of a journal, such as :attr:`History.lines` has.

    Args:
        path: Path of the journal.
        offsets: Where the lines begin, in bytes; for none, the file need not be there.

    Raises:
        OSError: The journal cannot be read.
        SimulationError: It was changed since the offsets were taken.
    """
    if not offsets:
        return
    with path.open("rb") as file:
        for offset in offsets:
            file.seek(offset)
            try:
                event = decode_event(file.readline())
            except (ValueError, RecursionError) as error:
                raise SimulationError(f"{path} was changed while it was read: {error}") from error
            yield event


def new_events(path: Path, start: int) -> Iterator[tuple[AnyEvent, int, int]]:
    """Yield the events of a journal from a line on, each with where its line begins and ends.

    Args:
        path: Path of the journal.
        start: Where the first line begins, in bytes.

    Raises:
        OSError: The journal cannot be read.
        ValueError: A line is damaged.
    """
    lines = WholeLines(path, most_line_bytes(_MOST_CLIENTS), start)
    for line in lines:
        yield decode_event(line), lines.start, lines.end
