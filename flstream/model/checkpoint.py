"""Checkpoints: a body in a file, which is a valid ``.safetensors`` file that any tool opens."""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from flstream.errors import CheckpointError
from flstream.model.checkpoint_header import (
    FileHeader,
    expect_in_format,
    read_header,
    regular_size,
)
from flstream.model.copy import copy
from flstream.model.descriptors import (
    begin_writeback,
    open_to_write,
    read_at,
    sync_directory,
    write_at,
)
from flstream.model.digests import BodyDigest, ChunkDigester, ChunkDigests
from flstream.model.layout import Layout
from flstream.model.source import Extent, Scratch, Source
from flstream.telemetry.halts import halt_at
from flstream.text import quotable

# Bytes written between two requests to the disk to begin writing.
_WRITEBACK_BYTES = 16 << 20


class FileSource:
    """A safetensors file as a source. It reads with ``pread``, so threads may share it.

    Mapping the file would avoid one copy but charge every page touched to this process's RSS.

    Attributes:
        path: Path of the file.
        layout: Tensors in the file.
        metadata: Strings of the header.
        header_bytes: Length of the header in bytes: where the body begins in the file.
        digests: xxh3-64 digests of chunks that were written or sent, for sending them again.
        immutable: As given.

    Args:
        path: Path of the file.
        digests: Digests of its chunks, as far as they are known.
        header: Header of the file, if it is known; otherwise it is read and checked.
        immutable: Whether nobody writes into the file as long as the source exists, as into one
            that a :class:`FileSink` wrote; files of users are not.

    Raises:
        CheckpointError: The file cannot be read or is not a sound safetensors file.
    """

    def __init__(
        self,
        path: Path,
        digests: ChunkDigests | None = None,
        header: FileHeader | None = None,
        *,
        immutable: bool = False,
    ) -> None:
        self.path = path
        self.immutable = immutable
        self.layout, self.metadata, self.header_bytes = header or read_header(path)
        self.digests = ChunkDigests() if digests is None else digests
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
        # A service's thread may still be reading when a round drops the source. So the descriptor
        # is closed with the last reference, never under a reader.
        weakref.finalize(self, os.close, self._fd)
        self._modified = os.fstat(self._fd).st_mtime_ns

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Read the bytes ``[start, stop)``.

        Raises:
            CheckpointError: The file cannot be read there, or became shorter since it was opened.
        """
        try:
            count = read_at(self._fd, into, self.header_bytes + start)
        except OSError as error:
            raise CheckpointError(
                f"{self.path}: bytes {start} to {stop} of its tensors cannot be read: "
                f"{error.strerror}"
            ) from error
        if count < len(into):
            raise self._cut_short(start + count)

    def extent(self, start: int, stop: int) -> Extent:
        """Return where the bytes ``[start, stop)`` lie in the file, without reading them.

        Raises:
            CheckpointError: The file became shorter since it was opened.
        """
        there = os.fstat(self._fd).st_size - self.header_bytes
        if there < stop:
            raise self._cut_short(there)
        return Extent(self._fd, self.header_bytes + start, self.digests, self.immutable)

    def has_more(self, offset: int) -> bool:
        """Whether there is a byte at an offset of the file, whatever its size says."""
        return bool(os.pread(self._fd, 1, offset))

    def changed(self) -> str | None:
        """Return a sentence if the file was written to since it was opened, as its time tells."""
        status = os.fstat(self._fd)
        if status.st_mtime_ns == self._modified:
            return None
        there = status.st_size - self.header_bytes
        if there < self.layout.nbytes:
            return str(self._cut_short(there))
        return f"{self.path} was changed after it was opened; offer a file that stays as it is"

    def _cut_short(self, there: int) -> CheckpointError:
        return CheckpointError(
            f"{self.path} ends at byte {there} of its tensors; it was cut short after it was opened"
        )


def open_blob(path: Path) -> FileSource:
    """Open any file as one tensor ``blob`` of bytes (``U8``), which begins at the file's first.

    The file may be empty.

    Raises:
        CheckpointError: It cannot be read, or is a folder or anything else but a regular file.
    """
    size = regular_size(path)
    layout = Layout.of([("blob", "U8", (size,))])
    source = FileSource(path, header=FileHeader(layout, {}, 0))
    if not size and source.has_more(0):
        raise CheckpointError(f"{path} has no size, as those of the system; copy it into a file")
    return source


class FileSink:
    """A safetensors file that is being written, range by range.

    The bytes go to ``<path>.tmp``. :meth:`finish` makes them durable and moves the file to its
    name in one step; so whatever happens, the name stands for a whole file or does not exist.
    Leaving the ``with`` block without finishing removes the temporary file.

    A temporary file that exists already and that no one else has open is overwritten: its pages in
    memory and its blocks on disk are at hand, where fresh ones may take ten times as long. One that
    is being written, by whatever process, is refused.

    Args:
        path: Path of the finished file.
        layout: Tensors to be written.
        metadata: Strings for the header's ``__metadata__``, if there is a header.
        resume: Continue the temporary file of an earlier attempt, if there is one with the same
            header, and keep it if this attempt is not finished either.
        bare: Write the body alone, without a header, as :func:`open_blob` reads it. A temporary
            file of any content is then continued.
        durable: Wait in :meth:`finish` until the disk has the file. Without, the file survives the
            end of this process, but not a power cut; that is for what can be made again.
        digester: Digests the chunks that are written, which must then come from front to back.

    Attributes:
        path: Path of the finished file.
        layout: Tensors to be written.
        random_access: Whether ranges may come in any order: unless there is a digester.
        resumed: Whether an earlier attempt's temporary file is continued. The bytes in it are to
            be verified: see :meth:`written`.

    Raises:
        CheckpointError: The file cannot be made, for want of space or permission, or because
            someone else is making it; or a tensor is complex128, which the format lacks.
    """

    def __init__(
        self,
        path: Path,
        layout: Layout,
        metadata: Mapping[str, str] | None = None,
        *,
        resume: bool = False,
        bare: bool = False,
        durable: bool = True,
        digester: ChunkDigester | None = None,
    ) -> None:
        if not bare:
            expect_in_format(layout, str(path))
        self.path = path
        self.layout = layout
        self._scratch = Scratch()
        self._view = memoryview(b"")
        header = b"" if bare else layout.header(metadata)
        self._metadata = dict(metadata or {})
        self._body = len(header)
        size = self._body + layout.nbytes
        self._keep, self._durable = resume, durable
        self._digester = digester
        self.random_access = digester is None
        self._unsynced = 0
        self.resumed = False
        try:
            self._temporary = path.with_name(path.name + ".tmp")
            path.parent.mkdir(parents=True, exist_ok=True)
            if path.is_dir():
                raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
            if path.exists() and not path.is_file():  # a device, which a file would replace
                raise FileExistsError(errno.EEXIST, "it is no regular file; choose another path")
            self._fd = open_to_write(self._temporary, keep=resume)
        except (OSError, ValueError) as error:
            flaw = error.strerror if isinstance(error, OSError) else error  # a NUL in its name
            raise CheckpointError(f"{quotable(str(path))} cannot be written: {flaw}") from error
        try:
            there = os.fstat(self._fd).st_size
            self.resumed = resume and there > 0 and os.pread(self._fd, len(header), 0) == header
            # To resume later, bytes of this attempt must differ from what an older file had.
            kept = min(there, size) if self.resumed else 0
            os.ftruncate(self._fd, kept if resume else size)
            if size:
                # Claiming the space now finds a full disk before the work is done, not after.
                os.posix_fallocate(self._fd, 0, size)
            write_at(self._fd, memoryview(header), 0)
        except (OSError, OverflowError) as error:
            self._keep = self.resumed  # nothing else of use is in it
            self.close()
            flaw = error.strerror if isinstance(error, OSError) else "no file may have as many"
            raise CheckpointError(f"{path} needs {size} bytes of disk: {flaw}") from error

    def views(self, start: int, stop: int) -> list[memoryview]:
        """Return a buffer for the bytes ``[start, stop)``, valid until the next call."""
        self._view = self._scratch.take(stop - start)
        return [self._view]

    def commit(self, start: int, stop: int) -> None:
        """Write the buffer's bytes to their place in the file.

        Raises:
            CheckpointError: The disk refused them.
        """
        self.write(start, self._view)

    def write(self, start: int, view: memoryview) -> None:
        """Write bytes that begin at ``start`` of the body.

        Raises:
            CheckpointError: The disk refused them.
        """
        try:
            write_at(self._fd, view, self._body + start)
            if self._digester is not None:
                self._digester.take(start, view)
            self._unsynced += len(view)
            if self._durable and self._unsynced >= _WRITEBACK_BYTES:
                # The disk can write this part while the next ones are made.
                begin_writeback(self._fd, 0, self._body + start + len(view))
                self._unsynced = 0
        except OSError as error:
            raise CheckpointError(
                f"{self.path}: bytes {start} to {start + len(view)} cannot be written: "
                f"{error.strerror}"
            ) from error

    def written(self, start: int, stop: int) -> list[memoryview]:
        """Return what the file holds at ``[start, stop)``: zeros where nothing was written.

        Raises:
            CheckpointError: The file cannot be read.
        """
        view = self._scratch.take(stop - start)
        try:
            count = os.preadv(self._fd, [view], self._body + start)
        except OSError as error:
            raise CheckpointError(f"{self._temporary} cannot be read: {error.strerror}") from error
        return [view[:count]]

    def finish(self) -> FileSource:
        """Make the file durable, give it its name, and open it as a source.

        Returns:
            The finished file; its header need not be read again.

        Raises:
            CheckpointError: The disk refused the file.
        """
        try:
            if self._durable:
                os.fsync(self._fd)
                halt_at("rename")
            self._temporary.replace(self.path)
            if self._durable:
                sync_directory(self.path.parent)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be written: {error.strerror}") from error
        os.close(self._fd)
        self._fd = -1
        digests = self._digester.digests if self._digester is not None else None
        header = FileHeader(self.layout, self._metadata, self._body)
        return FileSource(self.path, digests, header, immutable=True)

    def close(self) -> None:
        """Remove the temporary file, unless the sink was finished or is to be resumed."""
        if self._fd >= 0:
            if not self._keep:
                # Before it is closed, and so unlocked: then it may be somebody else's.
                self._temporary.unlink(missing_ok=True)
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_checkpoint(path: Path, source: Source, metadata: Mapping[str, str] | None = None) -> str:
    """Copy a source into a new, durable checkpoint, and return the digest of its body.

    Raises:
        CheckpointError: The file cannot be written.
    """
    digest = BodyDigest(source.layout)
    with FileSink(path, source.layout, metadata) as sink:
        copy(source, sink, digest=digest)
        sink.finish()
    return digest.hexdigest()
