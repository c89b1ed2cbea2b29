"""Checkpoints: a body in a file, which is a valid ``.safetensors`` file that any tool opens."""

from __future__ import annotations

import os
import weakref
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from flstream.errors import CheckpointError, LayoutError
from flstream.model.body import Scratch, Source
from flstream.model.descriptors import (
    begin_writeback,
    open_to_write,
    read_at,
    sync_directory,
    write_at,
)
from flstream.model.digests import BodyDigest, ChunkDigester, ChunkDigests
from flstream.model.header import header_length
from flstream.model.layout import Layout, parse_header

# After how many bytes the disk is told to begin writing.
_WRITEBACK_BYTES = 16 << 20


def read_layout(path: Path) -> tuple[Layout, dict[str, str], int]:
    """The layout, the metadata and the length in bytes of a safetensors file's header.

    Raises:
        CheckpointError: the file cannot be read or is not a sound safetensors file.
    """
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            length = header_length(prefix, size - len(prefix), str(path))
            layout, metadata = parse_header(file.read(length), str(path))
    except LayoutError as error:
        raise CheckpointError(f"{error}; fetch the file again or save it anew") from error
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    body = size - 8 - length
    if body != layout.nbytes:
        raise CheckpointError(
            f"{path} has {body} bytes of tensors where its header promises {layout.nbytes}; "
            "it is truncated or damaged, so fetch it again or save it anew"
        )
    return layout, metadata, 8 + length


class FileSource:
    """A safetensors file as a source. It reads with ``pread``, so threads may share it.

    Mapping the file would avoid one copy but charge every page touched to this process's RSS.

    Attributes:
        path: of the file.
        layout: what the bytes mean.
        metadata: the header's strings.
        header_bytes: where the tensors begin in the file.
        digests: of chunks that were sent, or written, for whoever sends them again.

    Args:
        path: of the file.
        digests: of its chunks, as far as they are known.

    Raises:
        CheckpointError: the file cannot be read or is not a sound safetensors file.
    """

    def __init__(self, path: Path, digests: ChunkDigests | None = None) -> None:
        self.path = path
        self.layout, self.metadata, self.header_bytes = read_layout(path)
        self.digests = ChunkDigests() if digests is None else digests
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        # A service's thread may still be reading when a round lets go of the source. So the
        # descriptor is closed with the last reference, never under a reader.
        weakref.finalize(self, os.close, self._fd)

    def views(self, start: int, stop: int, scratch: Scratch) -> list[memoryview]:
        """The bytes ``[start, stop)``, read into ``scratch``.

        Raises:
            CheckpointError: the file cannot be read there, or became shorter since it was opened.
        """
        view = scratch.take(stop - start)
        try:
            count = read_at(self._fd, view, self.header_bytes + start)
        except OSError as error:
            raise CheckpointError(
                f"{self.path}: bytes {start} to {stop} of its tensors cannot be read: "
                f"{error.strerror}"
            ) from error
        if count < len(view):
            raise self._cut_short(start + count)
        return [view]

    def require(self, stop: int) -> None:
        """Make sure, without reading it, that the body is there up to ``stop``.

        Raises:
            CheckpointError: the file became shorter since it was opened.
        """
        there = os.fstat(self._fd).st_size - self.header_bytes
        if there < stop:
            raise self._cut_short(there)

    def _cut_short(self, there: int) -> CheckpointError:
        return CheckpointError(
            f"{self.path} ends at byte {there} of its tensors; it was cut short after it was opened"
        )

    def extent(self, start: int) -> tuple[int, int]:
        """Where the body's bytes from ``start`` on lie: the file's descriptor, and the offset.

        The descriptor lives as long as this source.
        """
        return self._fd, self.header_bytes + start


class FileSink:
    """A safetensors file that is being written, range by range.

    The bytes go to ``<path>.tmp``. :meth:`finish` makes them durable and moves the file to its
    name in one step; so whatever happens, the name stands for a whole file or does not exist.
    Leaving the ``with`` block without finishing removes the temporary file.

    A temporary file that is there already and that nobody else has is written over: its pages in
    memory and its blocks on disk are at hand, where fresh ones may take ten times as long.

    Args:
        path: where the finished file will be.
        layout: the tensors to be written.
        metadata: strings for the header's ``__metadata__``.
        resume: go on with the temporary file of an earlier attempt, if there is one of the same
            header, and keep it if this attempt is not finished either.
        durable: finishing waits until the disk has it. Without, it survives the end of this
            process, but not a power cut; that is for what can be made again.
        digester: given what is written, which then has to be from front to back.

    Attributes:
        resumed: whether there was one. What it holds is to be verified: see :meth:`written`.

    Raises:
        CheckpointError: the file cannot be made, for want of space or permission.
    """

    def __init__(
        self,
        path: Path,
        layout: Layout,
        metadata: Mapping[str, str] | None = None,
        *,
        resume: bool = False,
        durable: bool = True,
        digester: ChunkDigester | None = None,
    ) -> None:
        self.path = path
        self.layout = layout
        self._temporary = path.with_name(path.name + ".tmp")
        self._scratch = Scratch()
        self._view = memoryview(b"")
        header = layout.header(metadata)
        self._body = len(header)
        self._keep, self._durable = resume, durable
        self._digester = digester
        self._unsynced = 0
        self.resumed = False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fd = open_to_write(self._temporary, keep=resume)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be written: {error.strerror}") from error
        try:
            self.resumed = resume and os.pread(self._fd, len(header), 0) == header
            if not self.resumed:
                # What is to be gone on with has to be told from what an older file had there.
                os.ftruncate(self._fd, 0 if resume else self._body + layout.nbytes)
            # Claiming the space now finds a full disk before the work is done, not after.
            os.posix_fallocate(self._fd, 0, self._body + layout.nbytes)
            write_at(self._fd, memoryview(header), 0)
        except OSError as error:
            self.close()
            raise CheckpointError(
                f"{path} needs {self._body + layout.nbytes} bytes of disk: {error.strerror}"
            ) from error

    def views(self, start: int, stop: int) -> list[memoryview]:
        """A buffer for the bytes ``[start, stop)``, reused at the next call."""
        self._view = self._scratch.take(stop - start)
        return [self._view]

    def commit(self, start: int, stop: int) -> None:
        """Write the buffer's bytes to their place in the file.

        Raises:
            CheckpointError: the disk refused them.
        """
        self.write(start, self._view)

    def write(self, start: int, view: memoryview) -> None:
        """Write bytes that begin at ``start`` of the body.

        Raises:
            CheckpointError: the disk refused them.
        """
        try:
            write_at(self._fd, view, self._body + start)
            if self._digester is not None:
                self._digester.take(start, view)
            self._unsynced += len(view)
            if self._durable and self._unsynced >= _WRITEBACK_BYTES:
                # While there is more to come, the disk may as well be at work on this.
                begin_writeback(self._fd, 0, self._body + start + len(view))
                self._unsynced = 0
        except OSError as error:
            raise CheckpointError(
                f"{self.path}: bytes {start} to {start + len(view)} cannot be written: "
                f"{error.strerror}"
            ) from error

    def written(self, start: int, stop: int) -> list[memoryview]:
        """What the file holds at ``[start, stop)``: zeros where nothing was written.

        Raises:
            CheckpointError: it cannot be read.
        """
        view = self._scratch.take(stop - start)
        try:
            count = os.preadv(self._fd, [view], self._body + start)
        except OSError as error:
            raise CheckpointError(f"{self._temporary} cannot be read: {error.strerror}") from error
        return [view[:count]]

    def finish(self) -> None:
        """Make the file durable and give it its name.

        Raises:
            CheckpointError: the disk refused it.
        """
        try:
            if self._durable:
                os.fsync(self._fd)
            self._temporary.replace(self.path)
            if self._durable:
                sync_directory(self.path.parent)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be written: {error.strerror}") from error
        os.close(self._fd)
        self._fd = -1

    def close(self) -> None:
        """Drop the temporary file, unless the sink was finished or is to be resumed."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
            if not self._keep:
                self._temporary.unlink(missing_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def write_checkpoint(
    path: Path, source: Source, metadata: Mapping[str, str] | None = None, step: int = 1 << 20
) -> str:
    """Copy a source into a new checkpoint, ``step`` bytes at a time, and return its digest.

    Raises:
        CheckpointError: the file cannot be written.
    """
    digest, scratch = BodyDigest(source.layout), Scratch()
    with FileSink(path, source.layout, metadata) as sink:
        for start, stop in source.layout.ranges(step):
            (target,) = sink.views(start, stop)
            offset = 0
            for view in source.views(start, stop, scratch):
                target[offset : offset + len(view)] = view
                offset += len(view)
            digest.update([target])
            sink.commit(start, stop)
        sink.finish()
    return digest.hexdigest()
