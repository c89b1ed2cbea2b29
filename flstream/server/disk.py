"""Disk space that a run needs, checked against the free space before a round begins."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flstream.errors import SimulationError
from flstream.runs.retention import Keep
from flstream.runs.run_directory import RunDirectory
from flstream.units import format_bytes

FreeBytes = Callable[[Path], int | None]
"""Function that returns a folder's free space in bytes for an ordinary user; None if unknown."""


def free_bytes(folder: Path) -> int | None:
    """Free space of a folder's file system in bytes, without the part reserved for root.

    Returns:
        The free space; None if the file system does not report it. A full disk is then detected
        when a file is created, because each file allocates its space at once.

    Raises:
        SimulationError: The folder does not exist, or its file system cannot be queried.
    """
    try:
        usage = os.statvfs(folder)
    except OSError as error:
        raise SimulationError(
            f"how much disk is free in {folder} cannot be told: {error.strerror}; see to it that "
            "the run directory is there, then go on with --resume"
        ) from error
    return usage.f_bavail * usage.f_frsize if usage.f_blocks else None


@dataclass(frozen=True)
class DiskPlan:
    """Disk space that a run needs.

    Attributes:
        rounds: Number of rounds of the job.
        keep: Number of checkpoints kept besides the best one, or ``"all"``.
        model: Size of one checkpoint in bytes.
        beside: Bytes of what lies beside each checkpoint, by name.
        passing: Bytes of what else a round writes before its model is durable, by name.
    """

    rounds: int
    keep: Keep
    model: int
    beside: Mapping[str, int]
    passing: Mapping[str, int]

    @property
    def checkpoint(self) -> int:
        """Size of a checkpoint with what lies beside it, in bytes."""
        return self.model + sum(self.beside.values())

    @property
    def passing_bytes(self) -> int:
        """Size of all that a round writes beside the next checkpoint, in bytes."""
        return sum(self.passing.values())

    @property
    def of_a_round(self) -> dict[str, int]:
        """Bytes by what a round writes before its model is durable and old files may be removed.

        Their sum is an upper bound: they are counted as if all existed at the same time.
        """
        sizes = {"the next model": self.model, **self.beside, **self.passing}
        return {what: size for what, size in sizes.items() if size}

    def lasts(self, room: int) -> int:
        """Number of rounds that fit into ``room`` bytes if each keeps its checkpoint."""
        return max(0, room - self.passing_bytes) // self.checkpoint

    def more_checkpoints(self, done: int, stored: int) -> int:
        """Most checkpoints that will exist at one time beyond those stored now.

        Unless all are kept, these are the last ``keep``, the best one and the one being written.
        """
        to_come = self.rounds - done
        return to_come if self.keep == "all" else min(to_come, max(1, self.keep + 2 - stored))

    def first_short(self, done: int, lasts: int) -> int:
        """Number of the first round that may not fit, where not all do."""
        # The initial model, which is never the best, gives its place to one round more.
        has_gone = self.keep != "all" and done < self.keep <= done + lasts
        return min(done + lasts + 1 + has_gone, self.rounds)


def check_round(
    plan: DiskPlan,
    folder: Path,
    round_number: int,
    *,
    present: int = 0,
    free: FreeBytes = free_bytes,
) -> None:
    """Check that the disk has room for a round, before any site trains for it."""
    room = free(folder)
    parts = plan.of_a_round
    need = sum(parts.values())
    if room is None or need - present <= room:
        return
    spelt = ", ".join(f"{what} {format_bytes(size)}" for what, size in parts.items())
    present_words = f"; {format_bytes(present)} of it are there already" if present else ""
    raise SimulationError(
        f"round {round_number} needs {format_bytes(need)} of disk ({spelt}{present_words}), and "
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
    states: int = 0,
    free: FreeBytes = free_bytes,
) -> str | None:
    """Check that the disk has room for the next round, and warn if it lacks room for later ones.

    A run that cannot keep all its checkpoints may still be stopped early, or be given more space
    while it goes on. So only a run whose next round does not fit is refused.

    Args:
        plan: Disk space that the run needs.
        folder: The run directory.
        done: Number of the last completed round; 0 if there is only the initial model.
        stored: Number of checkpoints on disk now, with the initial model; see
            :attr:`flstream.runs.run_directory.RunDirectory.stored_rounds`.
        present: Size in bytes of the next round's files that exist already; see
            :func:`check_round`.
        states: Bytes that the sites' own states may still take; see
            :func:`flstream.runs.site_states.state_bytes`.
        free: Function that returns a folder's free space.

    Returns:
        A sentence of warning, with a fitting ``checkpoints.keep``, if not all the rounds to come
        fit; None if they do.
    """
    room = free(folder)
    if room is None or done >= plan.rounds:
        return None
    check_round(plan, folder, done + 1, present=present, free=lambda _: room)
    lasts, more = plan.lasts(room + present - states), plan.more_checkpoints(done, stored)
    if more <= lasts:
        return None
    need = more * plan.checkpoint
    state_words = f" and {format_bytes(states)} for states of the sites" if states else ""
    # Two more than keep exist at one time: the best one, and the one that is being written.
    fitting = lasts + stored - 2
    advice = "as even keep = 1 takes more"
    if fitting > 0:
        advice = f"or set checkpoints.keep = {fitting}"
    return (
        f"{counted(plan.rounds - done, 'round')} to come with checkpoints.keep = {plan.keep} "
        f"take up to {format_bytes(need)} of disk for {counted(more, 'more checkpoint')}"
        f"{state_words}, "
        f"{format_bytes(room)} are free in {folder}, and round {plan.first_short(done, lasts)} may "
        f"be the first that does not fit; make room, {advice}"
    )


def counted(count: int, what: str) -> str:
    """Return a number of things, such as ``2 updates``."""
    return f"{count} {what}{'s' if count != 1 else ''}"


def present_bytes(run: RunDirectory, round_number: int) -> int:
    """Bytes on disk of an attempt at the next model of a round, which gives way to another."""
    parts = run.checkpoints.glob(f"round-{round_number:04d}.*.tmp")
    return sum(part.stat().st_size for part in parts if part.is_file())
