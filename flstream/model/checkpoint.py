"""Checkpoints: a body in a valid ``.safetensors`` file that any tool opens."""

from __future__ import annotations

import errno
import os
import stat
import tempfile
import weakref
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from flstream.errors import CheckpointError, LayoutError
from flstream.model.copy import copy
from flstream.model.descriptors import (
    WRITEBACK_BYTES,
    begin_writeback,
    open_to_write,
    read_at,
    sync_directory,
    write_at,
)
from flstream.model.digests import BodyDigest
from flstream.model.header import header_length, parse_header
from flstream.model.layout import Layout
from flstream.model.source import Scratch, Source, view_of
from flstream.telemetry import MEMORY_GROUP
from flstream.telemetry.halts import halt_at
from flstream.text import quotable

# Bytes of a tensor that are written at a time.
_STEP = 1 << 20
_KINDS = {"d": "folder", "p": "pipe", "s": "socket"}


class FileHeader(NamedTuple):
    """A header: tensors, strings but for ties, and the bytes before the body."""

    layout: Layout
    metadata: dict[str, str]
    nbytes: int


class BodyFile:
    """Body in an open file; threads may read it at once.

    Mapping the file would avoid one copy but charge every page touched to this process's RSS.

    Attributes:
        layout: Tensors in the file.
        metadata: Strings of the header.
        header_bytes: Length of the header in bytes: where the body begins in the file.
        fd: Descriptor of the file, open as long as this object exists.
        is_used: Whether it has held a model before.

    Args:
        name: Name of the file, for messages.
        fd: Descriptor, which this object closes.
        header: Header of the file, if it is known; otherwise it is read and checked.

    Raises:
        CheckpointError: It is not a sound safetensors file.
        OSError: It cannot be read.
    """

    is_used = False

    def __init__(self, name: str, fd: int, header: FileHeader | None = None) -> None:
        self.fd = fd
        # A service's thread may still be reading when a round drops the source. So the
        # descriptor is closed with the last reference, never under a reader.
        self._release = weakref.finalize(self, os.close, fd)
        self.layout, self.metadata, self.header_bytes = header or header_of(fd, name)
        self._name = name
        self._scratch = Scratch()
        self._view = memoryview(b"")
        self._unsynced, self._writes_back = 0, MEMORY_GROUP in os.environ

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Read the bytes ``[start, stop)``: zeros where nothing was written.

        Raises:
            CheckpointError: The file cannot be read there, or became shorter since it was opened.
        """
        try:
            count = read_at(self.fd, into, self.header_bytes + start)
        except OSError as error:
            raise CheckpointError(
                f"{self._name}: bytes {start} to {stop} of its tensors cannot be read: "
                f"{error.strerror}"
            ) from error
        if count < len(into):
            raise self._cut_short(start + count)

    def views(self, start: int, stop: int) -> list[memoryview]:
        """Return a buffer for the bytes ``[start, stop)``, valid until the next call."""
        self._view = self._scratch.take(stop - start)
        return [self._view]

    def commit(self, start: int, stop: int) -> None:
        """Write the buffer's bytes to their place in the file."""
        self.write(start, self._view)

    def write(self, start: int, view: memoryview) -> None:
        """Write bytes that begin at ``start`` of the body."""
        try:
            write_at(self.fd, view, self.header_bytes + start)
        except OSError as error:
            raise CheckpointError(
                f"{self._name}: bytes {start} to {start + len(view)} cannot be written: "
                f"{error.strerror}"
            ) from error
        self._unsynced += len(view)
        if self._writes_back and self._unsynced >= WRITEBACK_BYTES:
            begin_writeback(self.fd)
            self._unsynced = 0

    def write_tensor(self, name: str, source: Source) -> None:
        """Write a tensor, under any of its names, from a body that has it under that name."""
        own = self.layout.by_name[self.layout.aliases.get(name, name)]
        spec = source.layout.by_name[name]
        for start in range(spec.start, spec.stop, _STEP):
            view = view_of(source, start, min(start + _STEP, spec.stop), self._scratch)
            self.write(own.start + start - spec.start, view)

    def close(self) -> None:
        """Close the file, before its last reference goes."""
        self._release()

    def _cut_short(self, reached: int) -> CheckpointError:
        return CheckpointError(
            f"{self._name} ends at byte {reached} of its tensors; it was cut short after it was "
            "opened"
        )


class FileSource(BodyFile):
    """A safetensors file as a source.

    Attributes:
        path: Path of the file.

    Args:
        path: Path of the file.
        header: Header of the file, if it is known; otherwise it is read and checked.

    Raises:
        CheckpointError: The file cannot be read or is not a sound safetensors file.
    """

    def __init__(self, path: Path, header: FileHeader | None = None) -> None:
        self.path = path
        try:
            super().__init__(str(path), os.open(path, os.O_RDONLY | os.O_CLOEXEC), header)
        except OSError as error:
            raise CheckpointError(
                f"{path} cannot be read: {error.strerror}; check the path and its permissions"
            ) from error
        self._modified = os.fstat(self.fd).st_mtime_ns

    def changed(self) -> str | None:
        """Return a sentence if the file's time shows a write since the file was opened."""
        status = os.fstat(self.fd)
        if status.st_mtime_ns == self._modified:
            return None
        reached = status.st_size - self.header_bytes
        if reached < self.layout.nbytes:
            return str(self._cut_short(reached))
        return f"{self.path} was changed after it was opened; offer a file that stays as it is"


def header_of(fd: int, origin: str) -> FileHeader:
    """Read the header of an open safetensors file, and check it by the file's length.

    The descriptor's offset stays as it is, since other processes may share it.
    """
    size = os.fstat(fd).st_size
    prefix = os.pread(fd, 8, 0)
    try:
        length = header_length(prefix, size - len(prefix), origin)
        layout, metadata = parse_header(os.pread(fd, length, len(prefix)), origin)
    except LayoutError as error:
        raise CheckpointError(f"{error}; fetch the file again or save it anew") from error
    body = size - 8 - length
    if body != layout.nbytes:
        raise CheckpointError(
            f"{origin} has {body} bytes of tensors where its header promises {layout.nbytes}; "
            "it is truncated or damaged, so fetch it again or save it anew"
        )
    return FileHeader(layout, metadata, 8 + length)


def regular_size(path: Path) -> int:
    """Return the length of a regular file in bytes, without opening it.

    To open a pipe or a device would be to wait for another process to write to it.

    Raises:
        CheckpointError: The path is no such file; the message says what it is.
    """
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise CheckpointError(f"there is no {path}; check the path") from error
    except (OSError, ValueError) as error:
        flaw = error.strerror if isinstance(error, OSError) else error  # a NUL in its name
        raise CheckpointError(
            f"{quotable(str(path))} cannot be read: {flaw}; check the path and its permissions"
        ) from error
    if not stat.S_ISREG(status.st_mode):
        kind = _KINDS.get(stat.filemode(status.st_mode)[0], "device")
        raise CheckpointError(f"{path} is a {kind}; name a regular file")
    return status.st_size


def open_blob(path: Path) -> FileSource:
    """Open any file as one tensor ``blob`` of its bytes (``U8``).

    The file may be empty.

    Raises:
        CheckpointError: It cannot be read, or is a folder or anything else but a regular file.
    """
    size = regular_size(path)
    layout = Layout.of([("blob", "U8", (size,))])
    source = FileSource(path, FileHeader(layout, {}, 0))
    if not size and os.pread(source.fd, 1, 0):
        raise CheckpointError(f"{path} has no size, as those of the system; copy it into a file")
    return source


class FileSink(BodyFile):
    """Safetensors file to write, range by range.

    The bytes go to ``<path>.tmp``. :meth:`finish` makes them durable and moves the file to its
    name in one step; so whatever happens, the name stands for a whole file or does not exist.
    Leaving the ``with`` block without finishing removes the temporary file.

    A temporary file that exists already gives way to a new one, unless it is to be resumed. One
    that is being written, by whatever process, is refused.

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

    Attributes:
        path: Path of the finished file.
        resumed: Whether an earlier attempt's temporary file is continued. The bytes in it are to
            be verified: see :meth:`read`.

    Raises:
        CheckpointError: The file cannot be made, for want of space or permission, or because
            someone else is making it.
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
    ) -> None:
        self.path = path
        header = b"" if bare else layout.header(metadata)
        size = len(header) + layout.nbytes
        self._keep, self._durable = resume, durable
        self.resumed = False
        self._temporary = path.parent / f"{path.name}.tmp"
        fd = _opened(path, self._temporary, keep=resume)
        known = FileHeader(layout, dict(metadata or {}), len(header))
        super().__init__(str(path), fd, known)
        # The disk writes what is durable in the end while the rest is made.
        self._writes_back = self._writes_back or durable
        try:
            size_before = os.fstat(fd).st_size
            self.resumed = resume and size_before > 0 and os.pread(fd, len(header), 0) == header
            # To resume later, bytes of this attempt must differ from what an older file had.
            size_after = min(size_before, size) if self.resumed else 0
            _claim(self, size_after if resume else size, header)
        except (OSError, CheckpointError) as error:
            self._keep = self.resumed  # nothing else of use is in it
            self.close()
            if isinstance(error, OSError):
                raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
            raise

    def finish(self) -> FileSource:
        """Make the file durable, give it its name, and open it as a source.

        Returns:
            The finished file; its header need not be read again.

        Raises:
            CheckpointError: The disk refused the file.
        """
        try:
            if self._durable:
                os.fsync(self.fd)
                halt_at("rename")
            self._temporary.replace(self.path)
            if self._durable:
                sync_directory(self.path.parent)
        except OSError as error:
            raise CheckpointError(f"{self.path} cannot be written: {error.strerror}") from error
        self._release()
        return FileSource(self.path, FileHeader(self.layout, self.metadata, self.header_bytes))

    def close(self) -> None:
        """Remove the temporary file, unless the sink is finished or to be resumed."""
        if self._release.alive:
            if not self._keep:
                # Before it is closed, and so unlocked: then it may be somebody else's.
                self._temporary.unlink(missing_ok=True)
            self._release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def file_to_overwrite(path: Path, layout: Layout, metadata: Mapping[str, str]) -> BodyFile:
    """Open a safetensors file to write a body into it, in place.

    A file of the same header keeps its bytes until they are written over, and is ``is_used``; any
    other gives way to a new one. So does a file of several names, or one that a link leads to.

    Args:
        path: Path of the file, which need not exist.
        layout: Tensors of the body.
        metadata: Strings of its header.

    Raises:
        CheckpointError: It cannot be written, or is being written through another descriptor.
    """
    fd = _opened(path, path, keep=True)
    with suppress(CheckpointError):
        known = header_of(fd, str(path))
        if known.layout == layout and known.metadata == metadata:
            file = BodyFile(str(path), fd, known)
            file.is_used = True
            return file
    header = layout.header(metadata)
    file = BodyFile(str(path), fd, FileHeader(layout, dict(metadata), len(header)))
    try:
        _claim(file, 0, header)
    except CheckpointError:
        os.ftruncate(fd, 0)
        raise
    return file


def _opened(path: Path, written: Path, *, keep: bool) -> int:
    """Open the file that is written for a path, and that no other descriptor writes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists() and not path.is_file():  # a folder, or a device to be replaced
            raise FileExistsError(errno.EEXIST, "it is no regular file; choose another path")
        return open_to_write(written, keep=keep)
    except (OSError, ValueError) as error:
        flaw = error.strerror if isinstance(error, OSError) else error  # a NUL in its name
        raise CheckpointError(f"{quotable(str(path))} cannot be written: {flaw}") from error


def _claim(file: BodyFile, kept_bytes: int, header: bytes) -> None:
    """Write a file's header, and claim its space, of which the first ``kept_bytes`` are kept."""
    size = len(header) + file.layout.nbytes
    try:
        os.ftruncate(file.fd, kept_bytes)
        if size:
            # Claiming the space now finds a full disk before the work is done, not after.
            os.posix_fallocate(file.fd, 0, size)
        write_at(file.fd, memoryview(header), 0)
    except (OSError, OverflowError) as error:
        flaw = error.strerror if isinstance(error, OSError) else "no file may have as many"
        raise CheckpointError(f"{file._name} needs {size} bytes of disk: {flaw}") from error


def unnamed_file(layout: Layout, folder: Path) -> BodyFile:
    """Make a file without a name, which is gone when the process ends.

    It holds a body for a while, in pages that the kernel may put on the disk, and that no process
    has.

    Args:
        layout: Tensors of the body.
        folder: Folder of the file system that has the bytes.

    Raises:
        CheckpointError: The disk has no room for it, or the folder cannot be written to.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder) as file:
            if layout.nbytes:
                os.posix_fallocate(file.fileno(), 0, layout.nbytes)
            return BodyFile("a received model", os.dup(file.fileno()), FileHeader(layout, {}, 0))
    except OSError as error:
        raise CheckpointError(
            f"{folder} has no room for {layout.nbytes} bytes: {error.strerror}; "
            "free some, or choose another disk with --run-dir"
        ) from error


def write_checkpoint(
    path: Path, source: Source, metadata: Mapping[str, str] | None = None, *, durable: bool = True
) -> str:
    """Copy a source into a new checkpoint, and return the digest of its body.

    Raises:
        CheckpointError: The file cannot be written.
    """
    digest = BodyDigest(source.layout)
    with FileSink(path, source.layout, metadata, durable=durable) as sink:
        copy(source, sink, digest=digest)
        sink.finish()
    return digest.hexdigest()
