"""What a run tells the one that measures it: one line of JSON an event, in a file.

Needs nothing but the standard library, as every peer's own environment runs it.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

PATH_VARIABLE = "PEERS_JOURNAL"
"""Environment variable with the journal's path; every process of a run has it."""


def note_idle() -> None:
    """This process is the server; it has done its imports, and has no model yet."""
    note("idle", pid=os.getpid(), rss=own_rss())


def note_round(number: int) -> None:
    """The server begins a round."""
    note("round", number=number)


def note_result(wrong: str) -> None:
    """All rounds are done; ``wrong`` says what is wrong with the model, or is empty."""
    note("result", wrong=wrong)


def note(event: str, *, at: float | None = None, **fields: object) -> None:
    """Add a line. Lines this short are written at once, whoever else writes.

    Args:
        event: what happened.
        at: when, in seconds since the epoch; now if not given.
        fields: numbers and strings that belong to it.
    """
    line = json.dumps({"event": event, "time": time.time() if at is None else at, **fields})
    with Path(os.environ[PATH_VARIABLE]).open("a") as file:
        file.write(line + "\n")


def own_rss() -> int:
    """Resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
