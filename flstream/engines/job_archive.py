"""The job's folder as it is sent to nodes that do not see it: one archive, named by its content."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO

import xxhash

from flstream.client.folder_archive import pack_folder
from flstream.client.folder_content import entries
from flstream.client.state_versions import error_text
from flstream.engines.node_messages import PIECE_BYTES, JobArchived, Piece
from flstream.errors import SimulationError
from flstream.units import format_bytes

MOST_JOB_BYTES = 100 << 20
"""Most bytes of the files of a job that are sent to a node."""

# Folders that are no part of a job; so are virtual environments of other names.
_LEFT_OUT = frozenset({"runs", ".venv", ".git", "__pycache__"})
_ENVIRONMENT = "pyvenv.cfg"


class JobArchive:
    """The archive of a job's folder. Threads share it, one for each node.

    It is made once, when it is first asked for, so that all nodes of a run have the same.

    Args:
        folder: The job's folder.
        run: The run directory, which may be in it, and is left out.
        needed: Files that workers need, which have to be in it.
    """

    def __init__(self, folder: Path, run: Path, needed: Collection[Path] = ()) -> None:
        self._folder = folder
        self._run = str(run)
        self._needed = needed
        self._making = threading.Lock()
        self._made: tuple[IO[bytes], JobArchived] | None = None

    def messages(self) -> Iterator[JobArchived | Piece]:
        """Yield the archive's digest and length, and then its pieces.

        Raises:
            SimulationError: The folder cannot be sent; the message says why.
        """
        with self._making:
            if self._made is None:
                self._made = self._make()
            file, archived = self._made
        yield archived
        for start in range(0, archived.bytes, PIECE_BYTES):
            yield Piece(os.pread(file.fileno(), PIECE_BYTES, start))

    def close(self) -> None:
        """Remove the archive."""
        with self._making:
            if self._made is not None:
                self._made[0].close()

    def _make(self) -> tuple[IO[bytes], JobArchived]:
        for path in self._needed:
            if not path.is_relative_to(self._folder):
                raise SimulationError(
                    f"it does not see the run directory, and {path} is not in the job's folder "
                    f"{self._folder}, which is all that is sent to it; put it there"
                )
        try:
            self._expect_small()
            file = tempfile.TemporaryFile()  # noqa: SIM115 (it lasts as long as the run)
            pack_folder(str(self._folder), file, self._is_left_out)
            file.seek(0)
            digest = xxhash.xxh3_128()
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
            return file, JobArchived(digest.hexdigest(), file.tell())
        except OSError as error:
            raise SimulationError(
                "it does not see the run directory, and the job's folder cannot be sent to it: "
                f"{error_text(error)}"
            ) from error

    def _expect_small(self) -> None:
        sizes: dict[str, int] = {}
        for entry in entries(str(self._folder), self._is_left_out):
            if entry.kind == b"f":
                top = entry.name.partition("/")[0]
                sizes[top] = sizes.get(top, 0) + entry.info.st_size
        total = sum(sizes.values())
        if total > MOST_JOB_BYTES:
            largest = max(sizes, key=sizes.__getitem__)
            raise SimulationError(
                f"it does not see the run directory, and the job's folder {self._folder} has "
                f"{format_bytes(total)}, most of it in {largest}, where "
                f"{format_bytes(MOST_JOB_BYTES)} at most are sent; put the job and the run where "
                "all nodes see them (--run-dir), or the data on each node, under another path"
            )

    def _is_left_out(self, path: str) -> bool:
        is_named = os.path.basename(path) in _LEFT_OUT or path == self._run
        return is_named or os.path.isfile(f"{path}/{_ENVIRONMENT}")
