"""A folder as one sequence of bytes, with which it travels to another machine.

It is a tar archive of what :mod:`flstream.client.folder_content` calls content, so the copy has the
digest of the original. Whoever unpacks one believes nothing of it: no name leaves the folder, and
nothing is written through a link.
"""

from __future__ import annotations

import os
import shutil
import stat
import tarfile
from collections.abc import Callable
from typing import IO

from flstream.client.folder_content import Entry, about, entries
from flstream.errors import ProtocolError

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
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.PAX_FORMAT) as archive:
        for entry in entries(folder, leave_out):
            member = _member(entry)
            if entry.kind != b"f":
                archive.addfile(member)
                continue
            with about(entry.path):
                fd = os.open(entry.path, _READ)
            with open(fd, "rb") as content:
                archive.addfile(member, content)


def unpack_folder(file: IO[bytes], folder: str) -> None:
    """Make a folder with what :func:`pack_folder` has written.

    Args:
        file: Where to read, at its beginning.
        folder: Path of the new folder, which must not exist. After an error, a part may be there.

    Raises:
        ProtocolError: It is no such archive.
        OSError: Something cannot be written.
    """
    folders: dict[str, tarfile.TarInfo] = {}
    try:
        with tarfile.open(fileobj=file, mode="r|") as archive:
            for member in archive:
                name = "" if member.name == "." else member.name
                _expect_new_place(name, folder, folders)
                path = f"{folder}/{name}" if name else folder
                if member.isdir():
                    # It gets its own permissions once its content is there.
                    os.mkdir(path, 0o700)
                    folders[name] = member
                else:
                    _unpack(archive, member, path)
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise ProtocolError(f"an archive of a folder cannot be read: {error}") from error
    if not folders:
        raise ProtocolError("an archive of a folder has no folder in it")
    for name, member in reversed(folders.items()):
        path = f"{folder}/{name}" if name else folder
        os.utime(path, (member.mtime, member.mtime))
        os.chmod(path, member.mode & 0o777)


def _member(entry: Entry) -> tarfile.TarInfo:
    member = tarfile.TarInfo(entry.name or ".")
    member.type = {b"d": tarfile.DIRTYPE, b"f": tarfile.REGTYPE, b"l": tarfile.SYMTYPE}[entry.kind]
    member.mode = stat.S_IMODE(entry.info.st_mode) & 0o777
    member.mtime = int(entry.info.st_mtime)
    if entry.kind == b"f":
        member.size = entry.info.st_size
    elif entry.kind == b"l":
        member.linkname = os.readlink(entry.path)
    return member


def _expect_new_place(name: str, folder: str, folders: dict[str, tarfile.TarInfo]) -> None:
    """Refuse a name that is not in a folder that was unpacked before, or that is there already."""
    parent, _, last = name.rpartition("/")
    is_sound = not folders if not name else parent in folders and last not in ("", ".", "..")
    if not is_sound or os.path.lexists(f"{folder}/{name}" if name else folder):
        raise ProtocolError(f"an archive of a folder has {name!r} in it, which has no place there")


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, path: str) -> None:
    if member.issym():
        os.symlink(member.linkname, path)
        return
    content = archive.extractfile(member) if member.isreg() and member.sparse is None else None
    if content is None:
        raise ProtocolError(f"an archive of a folder has {member.name!r}, which is no file")
    with open(os.open(path, _WRITE, 0o600), "wb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
        file.flush()
        os.fchmod(file.fileno(), member.mode & 0o777)
        os.utime(file.fileno(), (member.mtime, member.mtime))
