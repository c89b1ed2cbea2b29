"""Which checkpoints of a run stay on disk, and the removal of those that need not."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple

from flstream.simulator.files.run_directory import RunDirectory
from flstream.simulator.files.small_files import temporary_of

Keep = int | Literal["all"]

_NUMBER = re.compile(r"round-(\d{4,18})\.safetensors")


def superseded(rounds: Iterable[int], last: int, keep: Keep, best: int | None) -> list[int]:
    """Those of some rounds whose checkpoints may go, in order.

    What stays are the last ``keep`` rounds up to ``last``, and the best one. Round 0, the initial
    model, is a round like any other: the job and its seed give it again. A round after ``last``
    is none of this one's business: whoever resumes the run decides what becomes of it.

    Args:
        rounds: to choose from.
        last: the round whose checkpoint is durable, and from which a run would be resumed.
        keep: 1 or more, or ``"all"``.
        best: the round with the best key metric so far; None before there is one.
    """
    if keep == "all":
        return []
    return sorted(number for number in rounds if number <= last - keep and number != best)


def stored_rounds(run: RunDirectory) -> list[int]:
    """The rounds whose checkpoints are there, in no order: regular files of exactly their names.

    Raises:
        OSError: the folder of checkpoints cannot be read, or is a link.
    """
    rounds = []
    with _opened(run.checkpoints) as folder, os.scandir(folder) as entries:
        for entry in entries:
            match = _NUMBER.fullmatch(entry.name)
            if match and entry.is_file(follow_symlinks=False):
                number = int(match[1])
                # A number of any other spelling, such as round-00001, is not of this run.
                if entry.name == run.checkpoint(number).name:
                    rounds.append(number)
    return rounds


class Retired(NamedTuple):
    """What became of the checkpoints that may go.

    Attributes:
        rounds: those whose files were removed.
        warnings: a sentence for each file or folder that did not let them.
    """

    rounds: list[int]
    warnings: list[str]


class Retention:
    """Removes the checkpoints that a run no longer keeps.

    As long as there are rounds to come, a file that may go becomes the one that the next round's
    checkpoint is written to: its pages in memory and its blocks on disk are at hand.

    Only regular files are removed whose names are exactly those of this run's rounds. A link or
    a folder of such a name was put there by somebody else, and stays.

    Args:
        run: the run directory.
        keep: how many checkpoints stay besides the best one, or ``"all"``.
        rounds: of the job.
        companions: for a round, a file that belongs to its checkpoint and goes with it, such as
            the server optimizer's state.
    """

    def __init__(
        self,
        run: RunDirectory,
        keep: Keep,
        rounds: int,
        companions: Sequence[Callable[[int], Path]] = (),
    ) -> None:
        self._run = run
        self._keep = keep
        self._rounds = rounds
        self._companions = companions
        self._warned: set[Path] = set()

    def settle(self, last: int, best: int | None) -> Retired:
        """Remove what may go now that the checkpoint of round ``last`` is durable.

        A file that is gone already is no matter. One that cannot be removed does not fail the run:
        it is warned of once, and tried again the next time.
        """
        retired = Retired([], [])
        if self._keep == "all":
            return retired
        try:
            rounds = stored_rounds(self._run)
        except OSError as error:
            self._warn(self._run.checkpoints, "cannot be searched", error, retired.warnings)
            return retired
        for number in superseded(rounds, last, self._keep, best):
            # The checkpoint goes last: a process that is killed before that finds it again.
            kinds = (*self._companions, self._run.checkpoint)
            if all(
                self._remove(path_of(number), self._heir(path_of, last), retired.warnings)
                for path_of in kinds
            ):
                retired.rounds.append(number)
        return retired

    def _heir(self, path_of: Callable[[int], Path], last: int) -> Path | None:
        """The file that will be written next, if there is one."""
        return temporary_of(path_of(last + 1)) if last < self._rounds else None

    def _remove(self, path: Path, heir: Path | None, warnings: list[str]) -> bool:
        """Remove a file if it is this run's; return whether none of this run's is left there.

        Args:
            path: of the file.
            heir: what it becomes instead.
            warnings: takes a sentence if it cannot be removed.
        """
        try:
            with _opened(path.parent) as folder:
                info = os.lstat(path.name, dir_fd=folder)
                if not stat.S_ISREG(info.st_mode):
                    return True
                if heir is None or info.st_nlink > 1:
                    os.unlink(path.name, dir_fd=folder)
                else:
                    os.rename(path.name, heir.name, src_dir_fd=folder, dst_dir_fd=folder)
                    # Before it is written over: its old name may not come back after a power cut.
                    os.fsync(folder)
        except FileNotFoundError:
            return True
        except OSError as error:
            self._warn(path, "cannot be removed", error, warnings)
            return False
        return True

    def _warn(self, path: Path, what: str, error: OSError, warnings: list[str]) -> None:
        if path not in self._warned:
            self._warned.add(path)
            where = os.path.relpath(path, self._run.path)
            warnings.append(
                f"{where} {what}: {error.strerror}; checkpoints.keep = {self._keep} frees no more "
                "disk until it can be"
            )


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """A folder's descriptor, for work that no link can lead elsewhere, also not a moment later."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
