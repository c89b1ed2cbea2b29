"""A folder as one sequence of bytes, with which it travels to another machine.

It has a record for each thing that :mod:`flstream.model.folder_content` calls content, in the same
order, so the copy has the digest of the original: a header of fixed length, the path relative to
the folder, and the bytes of the file or the target of the link. Reading and writing it takes the
memory of one record. An archive that is read may come from anybody: no path leaves the folder, and
nothing is written through a link.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable
from typing import IO

from flstream.errors import ProtocolError
from flstream.model.folder_content import Entry, about, entries

# Kind, permission bits, time of the last change in nanoseconds since the epoch, bytes of the path,
# and bytes that follow it.
_RECORD = struct.Struct("<cHqIQ")
_KINDS = b"dfl"
# The longest that Linux takes, for paths and the targets of links, and for a name in a path.
_MOST_PATH, _MOST_NAME = 4096, 255
_PIECE_BYTES = 1 << 20
_WRITE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


def pack_folder(
    folder: str, file: IO[bytes], leave_out: Callable[[str], bool] = lambda path: False
) -> None:
    """Write a folder with all that is in it to a file.

    Args:
        folder: Path of the folder.
        file: Where to write.
        leave_out: Whether something in it is left out, by its path; a folder with all that it has.

    Raises:
        OSError: Something cannot be read, changes meanwhile, or is neither a file, a folder nor a
            link; the error has its path. Or ``file`` cannot be written.
    """
    for entry in entries(folder, leave_out):
        if entry.kind == b"f":
            _pack_file(entry, file)
        else:
            target = os.readlink(entry.path) if entry.kind == b"l" else ""
            _pack_header(entry, file, len(os.fsencode(target)))
            file.write(os.fsencode(target))


def unpack_folder(file: IO[bytes], folder: str) -> None:
    """Make a folder with what :func:`pack_folder` has written.

    Args:
        file: Where to read, at its beginning.
        folder: Path of the new folder, which must not exist. After an error, a part may be there.

    Raises:
        ProtocolError: It is no such archive.
        OSError: Something cannot be written.
    """
    # Of each folder, its path, permissions and time: it gets these once its content is there.
    folders: dict[str, tuple[int, int]] = {}
    while header := file.read(_RECORD.size):
        if len(header) < _RECORD.size:
            raise ProtocolError("an archive of a folder ends amid a record")
        kind, mode, time, path_bytes, nbytes = _RECORD.unpack(header)
        if kind not in _KINDS or path_bytes > _MOST_PATH or (kind != b"f" and nbytes > _MOST_PATH):
            raise ProtocolError("an archive of a folder has a record that is none")
        name = os.fsdecode(_read(file, path_bytes))
        path = f"{folder}/{name}" if name else folder
        _expect_new_place(name, kind, path, folders)
        if kind == b"d":
            os.mkdir(path, 0o700)
            folders[name] = mode & 0o777, time
        elif kind == b"l":
            os.symlink(_read(file, nbytes) or b".", path)
        else:
            _unpack_file(file, path, nbytes, mode & 0o777, time)
    if not folders:
        raise ProtocolError("an archive of a folder has no folder in it")
    for name, (mode, time) in reversed(folders.items()):
        path = f"{folder}/{name}" if name else folder
        os.utime(path, ns=(time, time))
        os.chmod(path, mode)


def _pack_header(entry: Entry, file: IO[bytes], nbytes: int) -> None:
    name = os.fsencode(entry.name)
    mode = stat.S_IMODE(entry.info.st_mode) & 0o777
    time = min(max(entry.info.st_mtime_ns, -(1 << 63)), (1 << 63) - 1)
    file.write(_RECORD.pack(entry.kind, mode, time, len(name), nbytes) + name)


def _pack_file(entry: Entry, file: IO[bytes]) -> None:
    with about(entry.path):
        fd = os.open(entry.path, _READ)
    with open(fd, "rb", buffering=0) as content:
        left = os.fstat(fd).st_size
        _pack_header(entry, file, left)
        while left:
            with about(entry.path):
                piece = content.read(min(left, _PIECE_BYTES))
                if not piece:
                    raise OSError(0, "it became shorter while it was read")
            file.write(piece)
            left -= len(piece)


def _unpack_file(file: IO[bytes], path: str, nbytes: int, mode: int, time: int) -> None:
    with open(os.open(path, _WRITE, 0o600), "wb", buffering=0) as target:
        while nbytes:
            piece = _read(file, min(nbytes, _PIECE_BYTES))
            nbytes -= len(piece)
            while piece:
                piece = piece[target.write(piece) :]
        os.fchmod(target.fileno(), mode)
        os.utime(target.fileno(), ns=(time, time))


def _read(file: IO[bytes], nbytes: int) -> bytes:
    data = file.read(nbytes)
    if len(data) < nbytes:
        raise ProtocolError("an archive of a folder ends amid a record")
    return data


def _expect_new_place(
    name: str, kind: bytes, path: str, folders: dict[str, tuple[int, int]]
) -> None:
    """Refuse a name that is not in a folder that was unpacked before, or that is there already."""
    parent, _, last = name.rpartition("/")
    if name:
        is_one = last not in ("", ".", "..") and len(os.fsencode(last)) <= _MOST_NAME
        is_sound = parent in folders and is_one and "\0" not in name
    else:
        is_sound = kind == b"d" and not folders
    if not is_sound or os.path.lexists(path):
        raise ProtocolError(f"an archive of a folder has {name[:99]!r}, which has no place there")
