"""The disk that a run needs, spelt out and compared with what is free before it is taken."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from flstream.errors import SimulationError
from flstream.simulator.files.retention import Keep
from flstream.units import format_bytes

# Of a folder: the bytes that an ordinary user may still take, None where they cannot be told.
FreeBytes = Callable[[Path], int | None]


def free_bytes(folder: Path) -> int | None:
    """The bytes that may still be written to a folder's file system, without what root keeps back.

    Returns:
        None where the file system does not tell. A disk that is full is then found when a file is
        made, since each claims its space at once.

    Raises:
        SimulationError: the folder is not there, or its file system cannot be asked.
    """
    try:
        usage = os.statvfs(folder)
    except OSError as error:
        raise SimulationError(
            f"how much disk is free in {folder} cannot be told: {error.strerror}; see to it that "
            "the run directory is there, then go on with --resume"
        ) from error
    return usage.f_bavail * usage.f_frsize if usage.f_blocks else None


class Part(NamedTuple):
    """One thing that takes disk.

    Attributes:
        what: in words.
        size: in bytes.
    """

    what: str
    size: int


@dataclass(frozen=True)
class DiskPlan:
    """What a run puts on disk. All sizes are in bytes.

    Attributes:
        rounds: of the job.
        keep: checkpoints that stay besides the best one, or ``"all"``.
        model: of one checkpoint.
        updates: how many updates wait in files at once; each is taken to be as large as a model.
        partial_sum: of the file with the sum of updates, 0 if there is none. Its successor is
            written beside it.
        optimizer_state: of the server optimizer's state after a round, 0 if there is none. Each
            checkpoint has one.
    """

    rounds: int
    keep: Keep
    model: int
    updates: int = 0
    partial_sum: int = 0
    optimizer_state: int = 0

    @property
    def of_a_round(self) -> list[Part]:
        """What a round writes before its model is durable and anything may be removed.

        It is counted as if all of it were there at one time, which is the most it can be.
        """
        parts = [
            Part("the next model", self.model),
            Part("the server optimizer's state", self.optimizer_state),
            Part(_counted(self.updates, "update") + " in waiting", self.updates * self.model),
            Part("the sum of updates and its successor", 2 * self.partial_sum),
        ]
        return [part for part in parts if part.size]

    def lasts(self, room: int) -> int:
        """For how many rounds ``room`` bytes are enough if each leaves its checkpoint there."""
        passing = self.updates * self.model + 2 * self.partial_sum
        return max(0, room - passing) // (self.model + self.optimizer_state)

    def more_checkpoints(self, done: int, stored: int) -> int:
        """How many more checkpoints there will be at one time, at the most.

        Where not all are kept, those are ``keep``, the best, and the one that is being written.

        Args:
            done: the last completed round.
            stored: how many checkpoints there are now.
        """
        to_come = self.rounds - done
        return to_come if self.keep == "all" else min(to_come, max(1, self.keep + 2 - stored))


def check_round(
    plan: DiskPlan,
    folder: Path,
    round_number: int,
    *,
    present: int = 0,
    free: FreeBytes = free_bytes,
) -> None:
    """See to it that a round has the disk it needs, before any site has trained for it.

    Args:
        plan: what the run puts on disk.
        folder: the run directory.
        round_number: of the round that is about to begin.
        present: bytes of the round's own files that an earlier attempt left and that are taken up
            or written over.
        free: tells how much is free in a folder.

    Raises:
        SimulationError: it has not; the message says what takes how much.
    """
    room = free(folder)
    parts = plan.of_a_round
    need = sum(part.size for part in parts)
    if room is None or need - present <= room:
        return
    spelt = ", ".join(f"{part.what} {format_bytes(part.size)}" for part in parts)
    there = f"; {format_bytes(present)} of it are there already" if present else ""
    raise SimulationError(
        f"round {round_number} needs {format_bytes(need)} of disk ({spelt}{there}), and "
        f"{format_bytes(room)} are free in {folder}; make room for "
        f"{format_bytes(need - present - room)} more, then go on with --resume"
    )


def check_run(
    plan: DiskPlan,
    folder: Path,
    *,
    done: int,
    stored: int,
    present: int = 0,
    free: FreeBytes = free_bytes,
) -> str | None:
    """See to it that the next round of a run has the disk it needs, and look further ahead.

    A run that cannot keep all its checkpoints may still be stopped early, or be given more room
    while it goes on. So only one whose next round does not fit is refused.

    Args:
        plan: what the run puts on disk.
        folder: the run directory.
        done: the last completed round; 0 where only the initial model is there.
        stored: how many checkpoints there are now, the initial model among them; see
            :func:`flstream.simulator.files.retention.stored_rounds`.
        present: see :func:`check_round`.
        free: tells how much is free in a folder.

    Returns:
        A sentence of warning where the rounds after the next will not all fit, which says what
        ``checkpoints.keep`` would do; else None.

    Raises:
        SimulationError: the next round does not fit.
    """
    room = free(folder)
    if room is None or done >= plan.rounds:
        return None
    check_round(plan, folder, done + 1, present=present, free=lambda _: room)
    lasts, more = plan.lasts(room + present), plan.more_checkpoints(done, stored)
    if more <= lasts:
        return None
    need = more * (plan.model + plan.optimizer_state)
    # With the best one, and the one that is being written.
    fitting = lasts + stored - 2
    advice = f"or set checkpoints.keep = {fitting}" if fitting else "as even keep = 1 takes more"
    return (
        f"{_counted(plan.rounds - done, 'round')} to come with checkpoints.keep = {plan.keep} "
        f"take up to {format_bytes(need)} of disk for {_counted(more, 'more checkpoint')}, "
        f"{format_bytes(room)} are free in {folder}, and round {done + lasts + 1} may be the first "
        f"that does not fit; make room, {advice}"
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' if count != 1 else ''}"
