"""The job's folder as it is sent to nodes that do not see it: one archive, named by its content."""

from __future__ import annotations

import os
import stat
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import IO

import xxhash

from flstream.engines.node_channel import NodeChannel
from flstream.engines.node_files import digests_of
from flstream.engines.node_messages import (
    PIECE_BYTES,
    ArchivePiece,
    JobArchived,
    JobWanted,
    NodeRefused,
    ToNode,
)
from flstream.errors import ProtocolError, SimulationError
from flstream.model.folder_archive import pack_folder
from flstream.model.folder_content import entries
from flstream.text import error_text
from flstream.transport.channel import AbortSignal
from flstream.transport.messages import PATIENCE
from flstream.units import format_bytes

MOST_JOB_BYTES = 100 << 20
"""Most bytes of the files of a job that are sent to a node."""

# Folders that are no part of a job, and files of which any other folder is one of these: a virtual
# environment, and a run directory.
_LEFT_OUT = frozenset({"runs", ".venv", ".git", "__pycache__"})
_MARKS = ("pyvenv.cfg", "events.jsonl")
# How often a folder is read anew of which something vanishes meanwhile, such as an editor's file.
_MOST_TRIES = 3


class JobArchive:
    """The archive of a job's folder. Threads share it, one for each node.

    It is made once, when it is first asked for, so that all nodes of a run have the same.

    Args:
        folder: The job's folder.
        run: The run directory, which may be in it, and is left out.
        files: Digests of the files that workers need, by their paths: they have to be in it, and
            as they were when the run began.
        secret: A file that is left out; None for none.
    """

    def __init__(
        self, folder: Path, run: Path, files: Mapping[str, str], secret: Path | None = None
    ) -> None:
        self._given = folder
        self._folder = folder.resolve()
        # Under the names that they have in there, whatever links lead to it.
        self._apart = {str(each.resolve()) for each in (run, secret) if each is not None}
        self._files = files
        self._making = threading.Lock()
        self._made: tuple[IO[bytes], JobArchived] | None = None

    def messages(self) -> Iterator[JobArchived | ArchivePiece]:
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
            yield ArchivePiece(os.pread(file.fileno(), PIECE_BYTES, start))

    def close(self) -> None:
        """Remove the archive."""
        with self._making:
            if self._made is not None:
                self._made[0].close()

    def _make(self) -> tuple[IO[bytes], JobArchived]:
        for path in map(Path, self._files):
            if not self._is_sent(path):
                raise SimulationError(
                    f"it does not see the run directory, and {path} is not among what is sent to "
                    f"it of the job's folder {self._folder}; put it there, in no folder that is "
                    f"left out ({', '.join(sorted(_LEFT_OUT))})"
                )
        try:
            self._expect_unchanged()
            file = self._packed()
            digest = xxhash.xxh3_128()
            while piece := file.read(PIECE_BYTES):
                digest.update(piece)
            return file, JobArchived(digest.hexdigest(), file.tell())
        except OSError as error:
            raise SimulationError(
                "it does not see the run directory, and the job's folder cannot be sent to it: "
                f"{error_text(error)}"
            ) from error

    def _packed(self) -> IO[bytes]:
        """Return a new file with the archive, at its beginning."""
        with ExitStack() as stack:
            file = stack.enter_context(tempfile.TemporaryFile())
            for tries_left in reversed(range(_MOST_TRIES)):
                file.seek(0)
                file.truncate()
                try:
                    self._expect_small()
                    pack_folder(str(self._folder), file, self._is_left_out)
                    break
                except FileNotFoundError:  # something was removed meanwhile
                    if not tries_left:
                        raise
            file.seek(0)
            stack.pop_all()  # it lasts as long as the run
        return file

    def _expect_unchanged(self) -> None:
        now = digests_of(map(Path, self._files))
        changed = [path for path, digest in self._files.items() if now.get(path) != digest]
        if changed:
            raise SimulationError(
                f"it has another {changed[0]} than the run, which was changed after the run had "
                "begun; put that back, or go on with --resume"
            )

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
        if os.path.basename(path) in _LEFT_OUT or path in self._apart:
            return True
        mode = os.lstat(path).st_mode
        if stat.S_ISDIR(mode):
            return any(os.path.isfile(f"{path}/{name}") for name in _MARKS)
        return not (stat.S_ISREG(mode) or stat.S_ISLNK(mode))  # a pipe or a socket

    def _is_sent(self, path: Path) -> bool:
        """Whether a file is in the folder, neither by a link out of it nor in what is left out."""
        if not path.is_relative_to(self._given):
            return False
        if not path.resolve().is_relative_to(self._folder):
            return False
        inside = path.relative_to(self._given)
        parents = [self._folder / each for each in (inside, *inside.parents[:-1])]
        return not any(self._is_left_out(str(each)) for each in parents)


def receive_archive(channel: NodeChannel[ToNode], file: IO[bytes], stop: AbortSignal) -> None:
    """Ask for the archive, and write it to a file, which is at its beginning then.

    Args:
        channel: Connection to the launcher.
        file: Where to write.
        stop: Signal that ends this.

    Raises:
        SimulationError: The launcher does not send it; the message says why.
        ProtocolError: It arrived damaged, or the launcher sent something else.
        StreamingError: The launcher is gone, or the signal was set.
        OSError: The file cannot be written.
    """
    channel.send(JobWanted())
    answer = channel.receive(PATIENCE, stop)
    if isinstance(answer, NodeRefused):
        raise SimulationError(f"this node cannot join: {answer.reason}")
    if not isinstance(answer, JobArchived):
        raise ProtocolError(f"the run answered {type(answer).__name__}, out of turn")
    digest, missing = xxhash.xxh3_128(), answer.bytes
    while missing > 0:
        piece = channel.receive(PATIENCE, stop)
        if not isinstance(piece, ArchivePiece):
            raise ProtocolError(f"the run sent {type(piece).__name__}, out of turn")
        digest.update(piece.data)
        file.write(piece.data)
        missing -= len(piece.data)
    if digest.hexdigest() != answer.digest:
        raise ProtocolError("it arrived damaged")
    file.seek(0)
