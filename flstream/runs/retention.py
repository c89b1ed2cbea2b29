"""Retention of a run's checkpoints: the choice of those that stay, and the removal of others."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Callable, Collection, Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

from flstream.runs.model_files import ModelFile
from flstream.runs.run_directory import RunDirectory

Keep = int | Literal["all"]
"""Number of checkpoints to keep besides the best one, or ``"all"``."""

# Bytes of the shortest file that takes long to be freed.
_LONG_BYTES = 16 << 20


def superseded(rounds: Iterable[int], last: int, keep: Keep, best: int | None) -> list[int]:
    """Return the rounds whose checkpoints may be removed, in ascending order.

    The last ``keep`` rounds up to ``last`` and the best round stay. Round 0, the initial model, is
    treated like any other: the job and its seed reproduce it. Rounds after ``last`` stay, too:
    resuming the run decides about them.

    Args:
        rounds: Rounds to choose from.
        last: Newest round with a durable checkpoint, from which the run would be resumed.
        keep: Number of checkpoints to keep, 1 or more, or ``"all"``.
        best: Round with the best key metric so far; None before there is one.
    """
    if keep == "all":
        return []
    return sorted(number for number in rounds if number <= last - keep and number != best)


def stored_rounds(run: RunDirectory) -> list[int]:
    """Return the rounds that have a checkpoint on disk, in no order.

    Only regular files with exactly a checkpoint's name count.

    Raises:
        OSError: The folder of checkpoints cannot be read, or is a link.
    """
    return [file.round for file in stored_models(run) if file.step is None]


def stored_models(run: RunDirectory) -> list[ModelFile]:
    """Return the models on disk, in no order; only regular files with exactly such names count.

    Raises:
        OSError: The folder of checkpoints cannot be read, or is a link.
    """
    with _opened(run.checkpoints) as folder, os.scandir(folder) as entries:
        files = [
            ModelFile.parse(entry.name) for entry in entries if entry.is_file(follow_symlinks=False)
        ]
    return [file for file in files if file is not None and file.is_model]


class RemovedCheckpoints(NamedTuple):
    """Result of removing checkpoints.

    Attributes:
        rounds: Rounds whose files were removed.
        warnings: A sentence for each file or folder that prevented a removal.
    """

    rounds: list[int]
    warnings: list[str]


class Retention:
    """Removal of the checkpoints that a run no longer keeps.

    Only regular files with exactly the names of this run's rounds are removed. A link or a folder
    with such a name was not created by the run, and stays.

    Args:
        run: The run directory.
        keep: Number of checkpoints to keep besides the best one, or ``"all"``.
        bodies: Names of the bodies beside models, such as the server optimizer's state, which are
            removed together with them.

    Attributes:
        bodies: As given, with those that were added.
    """

    def __init__(
        self,
        run: RunDirectory,
        keep: Keep,
        bodies: Iterable[str] = (),
    ) -> None:
        self._run = run
        self._keep = keep
        self.bodies = list(bodies)
        self._warned: set[Path] = set()

    def add_bodies(self, names: Iterable[str]) -> None:
        """Remove further bodies together with their models."""
        self.bodies += [name for name in names if name not in self.bodies]

    def oldest(self, last: int) -> int:
        """The oldest round whose checkpoint stays once that of round ``last`` is durable."""
        return 0 if self._keep == "all" else max(last - self._keep + 1, 0)

    @property
    def _kinds(self) -> list[Callable[[int], Path]]:
        """Functions that return, for a round, the path of a file; that of the model comes last."""
        beside = [partial(self._run.body_file, body) for body in self.bodies]
        return [*beside, self._run.checkpoint]

    def settle(
        self,
        last: int,
        best: int | None,
        *,
        own: Container[int] | None = None,
        in_use: Collection[Path] = (),
        steps: Sequence[Path] = (),
    ) -> RemovedCheckpoints:
        """Remove superseded checkpoints, once the checkpoint of round ``last`` is durable.

        A missing file is ignored. A file that cannot be removed does not fail the run: there is one
        warning about it, and each later call tries again.

        Args:
            last: Newest round with a checkpoint.
            best: Round with the best key metric so far; None before there is one.
            own: Rounds that the run has made a model in; None if it has in all of them.
            in_use: Paths of checkpoints that stay in any case.
            steps: Paths of files of models that were not the last of their round, in the order in
                which they go.

        Returns:
            The rounds whose files were removed, and new warnings.
        """
        removed = RemovedCheckpoints([], [])
        if self._keep == "all":
            return removed
        try:
            stored = stored_rounds(self._run)
        except OSError as error:
            self._warn(self._run.checkpoints, "cannot be searched", error, removed.warnings)
            return removed
        rounds = stored if own is None else [number for number in stored if number in own]
        for path in steps:
            if path not in in_use:
                self._remove(path, removed.warnings)
        for number in superseded(rounds, last, self._keep, best):
            if self._run.checkpoint(number) in in_use:
                continue
            # The checkpoint is removed last: if the process is killed before, it is found again.
            if all(self._remove(path_of(number), removed.warnings) for path_of in self._kinds):
                removed.rounds.append(number)
        return removed

    def superseded_bytes(self, last: int, own: Container[int]) -> int:
        """Bytes of the checkpoints that may go, the best and those in use among them.

        Args:
            last: The newest round that has a checkpoint.
            own: Rounds that the run has made a model in.

        Raises:
            OSError: The folder of checkpoints cannot be searched.
        """
        stored = [number for number in stored_rounds(self._run) if number in own]
        going = superseded(stored, last, self._keep, None)
        paths = [path_of(number) for number in going for path_of in self._kinds]
        return sum(path.stat().st_size for path in paths if path.is_file())

    def _remove(self, path: Path, warnings: list[str]) -> bool:
        """Remove a file of this run.

        Args:
            path: Path of the file.
            warnings: List that gets a sentence if it cannot be removed.

        Returns:
            Whether no file of this run is left at the path.
        """
        try:
            with _opened(path.parent) as folder:
                fd = os.open(path.name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
                try:
                    if stat.S_ISREG(os.fstat(fd).st_mode):
                        os.unlink(path.name, dir_fd=folder)
                finally:
                    _close(fd)
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


def _close(fd: int) -> None:
    """Close a file that may have been removed; a long one in a thread.

    With the last descriptor goes what the kernel has of the file in memory, which takes 0.2 s for a
    gigabyte. The next round does not wait for that.
    """
    if os.fstat(fd).st_size < _LONG_BYTES:
        os.close(fd)
    else:
        threading.Thread(target=os.close, args=(fd,), name="frees a file").start()


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """Open a folder for work by descriptor, which no link can redirect to another folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
