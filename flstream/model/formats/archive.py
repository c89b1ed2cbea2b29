"""Zip archives, as ``.npz`` and ``.pt`` files are. Every statement in one is checked."""

from __future__ import annotations

import io
import os
import struct
import weakref
import zipfile
import zlib
from itertools import pairwise
from pathlib import Path
from typing import IO, NamedTuple

from flstream.errors import CheckpointError
from flstream.model.descriptors import read_at

AGAIN = "fetch the file again or save it anew"
# More than 100,000 tensors need. Python's record of a member is several times its entry.
_MOST_DIRECTORY_BYTES = 16 << 20
_LOCAL_HEADER = struct.Struct("<4s2xHH16xHH")
_STEP = 1 << 20
_ENCRYPTED = 1


class Member(NamedTuple):
    """A file in an archive.

    Attributes:
        name: Name in the archive.
        start: Offset in bytes of its stored data in the archive.
        stored: Length of its stored data in bytes.
        size: Length of its content in bytes.
        compressed: Whether the stored data is not the content itself.
    """

    name: str
    start: int
    stored: int
    size: int
    compressed: bool


class _ArchiveStream(io.BufferedReader):
    """A file from which no directory is read that would take much memory."""

    def read(self, size: int | None = -1, /) -> bytes:
        if size is not None and size > _MOST_DIRECTORY_BYTES:
            raise zipfile.BadZipFile(f"a directory of {size} bytes is more than any model's")
        return super().read(size)


class Archive:
    """A zip archive whose members lie apart and within the file.

    Attributes:
        path: Path of the file.
        fd: Descriptor of the file, open as long as the archive exists.
        members: Members by name, in the order of their data.
        file_bytes: Length of the file in bytes.

    Raises:
        CheckpointError: The file is not such an archive; the message names the member and the flaw.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            file = _ArchiveStream(io.FileIO(path))
            # Closed with the last reference to the archive, never under a reader.
            weakref.finalize(self, file.close)
            self.fd = file.fileno()
            self.file_bytes = os.fstat(self.fd).st_size
            self._zip = zipfile.ZipFile(file)
        except OSError as error:
            raise CheckpointError(f"{path} cannot be read: {error.strerror or error}") from error
        except (zipfile.BadZipFile, NotImplementedError, ValueError, struct.error) as error:
            raise CheckpointError(
                f"{path} is no zip archive, or was cut short to its {self.file_bytes} bytes: "
                f"{error}; {AGAIN}"
            ) from error
        self.members: dict[str, Member] = {}
        self._infos: dict[str, zipfile.ZipInfo] = {}
        self._check_members()

    def _check_members(self) -> None:
        infos = sorted(self._zip.infolist(), key=lambda info: info.header_offset)
        for info in infos:
            if info.orig_filename in self.members:
                raise CheckpointError(f"{self.path} has two members {info.filename!r}; {AGAIN}")
            self.members[info.orig_filename] = self._member(info)
            self._infos[info.orig_filename] = info
        for left, right in pairwise(infos):
            before = self.members[left.orig_filename]
            if right.header_offset < before.start + before.stored:
                raise CheckpointError(
                    f"{self.path}: the members {left.filename!r} and {right.filename!r} overlap; "
                    + AGAIN
                )

    def _member(self, info: zipfile.ZipInfo) -> Member:
        where = f"{self.path}: the member {info.orig_filename!r}"
        if info.flag_bits & _ENCRYPTED:
            raise CheckpointError(f"{where} is encrypted; save the file without a password")
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise CheckpointError(
                f"{where} is compressed by method {info.compress_type}; save it stored or deflated"
            )
        if not 0 <= info.header_offset < self.file_bytes:
            raise CheckpointError(f"{where} begins outside of the file; {AGAIN}")
        header = memoryview(bytearray(_LOCAL_HEADER.size))
        fill(self.path, self.fd, header, info.header_offset)
        magic, flags, method, name_bytes, extra_bytes = _LOCAL_HEADER.unpack(header)
        start = info.header_offset + len(header) + name_bytes + extra_bytes
        if magic != b"PK\3\4" or method != info.compress_type or flags & _ENCRYPTED:
            raise CheckpointError(f"{where} is not where the archive's directory says; {AGAIN}")
        if start + info.compress_size > self.file_bytes:
            raise CheckpointError(f"{where} goes beyond the end of the file; {AGAIN}")
        compressed = info.compress_type == zipfile.ZIP_DEFLATED
        if not compressed and info.file_size != info.compress_size:
            raise CheckpointError(
                f"{where} claims {info.file_size} bytes, which its {info.compress_size} stored "
                f"bytes cannot hold; {AGAIN}"
            )
        return Member(info.orig_filename, start, info.compress_size, info.file_size, compressed)

    def open(self, member: Member) -> IO[bytes]:
        """Open a stream of a member's content, from its first byte.

        Raises:
            CheckpointError: The member cannot be read.
        """
        try:
            return self._zip.open(self._infos[member.name])
        except (OSError, ValueError, zipfile.BadZipFile, NotImplementedError) as error:
            raise CheckpointError(
                f"{self.path}: the member {member.name!r} cannot be read: {error}; {AGAIN}"
            ) from error

    def read_into(self, stream: IO[bytes], member: Member, view: memoryview) -> None:
        """Fill a view with the next bytes of a member's stream.

        Raises:
            CheckpointError: The stream ends too early or is damaged.
        """
        flaw = "it ends too early"
        try:
            while len(view):
                data = stream.read(min(len(view), _STEP))
                if not data:
                    break
                view[: len(data)] = data
                view = view[len(data) :]
        except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
            flaw = str(error) or flaw
            view = memoryview(b"?")
        if len(view):
            raise CheckpointError(
                f"{self.path}: the member {member.name!r} is damaged: {flaw}; {AGAIN}"
            )

    def read_stored(self, member: Member, view: memoryview, offset: int) -> None:
        """Fill a view with the bytes of a member that is not compressed, from ``offset`` on."""
        fill(self.path, self.fd, view, member.start + offset)

    def head(self, member: Member, size: int) -> bytes:
        """Return the first bytes of a member's content, at most ``size``."""
        data = bytearray(min(size, member.size))
        with self.open(member) as stream:
            self.read_into(stream, member, memoryview(data))
        return bytes(data)

    def check(self) -> str:
        """Read every member to its end, which compares its CRC-32, and describe the result.

        Raises:
            CheckpointError: A member is damaged.
        """
        buffer = memoryview(bytearray(_STEP))
        for member in self.members.values():
            with self.open(member) as stream:
                left = member.size
                while left:
                    self.read_into(stream, member, buffer[: min(left, _STEP)])
                    left -= min(left, _STEP)
        return (
            f"the {len(self.members)} members of the archive lie apart and within the file, and "
            "match their CRC-32"
        )


def fill(path: Path, fd: int, view: memoryview, offset: int) -> None:
    """Fill a view with a file's bytes from ``offset`` on.

    Raises:
        CheckpointError: The file cannot be read there, or ends before.
    """
    try:
        count = read_at(fd, view, offset)
    except OSError as error:
        raise CheckpointError(f"{path}: byte {offset} cannot be read: {error.strerror}") from error
    if count < len(view):
        raise CheckpointError(f"{path} ends at byte {offset + count}; {AGAIN}")
