"""Reading of a run's journal, ``events.jsonl``, into its history."""

from __future__ import annotations

from pathlib import Path

from flstream.errors import SimulationError
from flstream.runs.history import History
from flstream.runs.job_facts import JobFacts
from flstream.telemetry.event_log import WholeLines
from flstream.telemetry.events import (
    RunStarted,
    decode_event,
    is_of_unknown_kind,
    most_line_bytes,
)


def read_history(
    path: Path,
    *,
    tolerant: bool = False,
    skip_unknown: bool = False,
    keep_results: bool = True,
    keep_weights: bool = True,
    assumed: JobFacts | None = None,
) -> History:
    """Read a journal.

    A last line without a line end was being written when the run was killed, and is skipped.

    Args:
        path: Path of the journal. A missing file is read as an empty journal.
        tolerant: Whether damaged lines are skipped and counted, instead of refused.
        skip_unknown: Whether events of unknown kinds, as of a later version, are skipped.
        keep_results: Whether the history keeps the results of effects.
        keep_weights: Whether the history keeps the sites' weights in each round.
        assumed: Facts about the job until the journal's first event gives them; None for none.

    Raises:
        SimulationError: The journal cannot be read, or a line is damaged; the message names the
            line.
    """
    history = History(assumed, keep_results=keep_results, keep_weights=keep_weights)
    lines = WholeLines(path, most_line_bytes(0))
    try:
        for line in lines:
            try:
                event = decode_event(line)
                history.apply(event)
            except (ValueError, RecursionError):  # the decoder's errors are ValueErrors
                if skip_unknown and is_of_unknown_kind(line):
                    continue
                if not tolerant:
                    raise
                # A line that is too long comes in pieces, of which only the last has a line end.
                history.damaged += line.endswith(b"\n")
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
