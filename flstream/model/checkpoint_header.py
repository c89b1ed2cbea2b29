"""What is checked of a file before its tensors are read: that it is one, and its header."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NamedTuple

from flstream.errors import CheckpointError, LayoutError
from flstream.model.header import header_length
from flstream.model.layout import Layout, parse_header
from flstream.text import quotable

_KINDS = (
    (stat.S_ISDIR, "folder"),
    (stat.S_ISFIFO, "pipe"),
    (stat.S_ISSOCK, "socket"),
    (stat.S_ISCHR, "device"),
    (stat.S_ISBLK, "device"),
)


class FileHeader(NamedTuple):
    """The header of a safetensors file.

    Attributes:
        layout: Tensors in the file.
        metadata: Strings of ``__metadata__``, but for the ties between tensors.
        nbytes: Length of the header in bytes, with the 8 bytes of its length: where the body
            begins.
    """

    layout: Layout
    metadata: dict[str, str]
    nbytes: int


def read_header(path: Path) -> FileHeader:
    """Read the header of a safetensors file, and check it against the file's length.

    Raises:
        CheckpointError: The file cannot be read or is not a sound safetensors file.
    """
    try:
        with path.open("rb") as file:
            return header_of(file.fileno(), str(path))
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def header_of(fd: int, origin: str) -> FileHeader:
    """Read the header of an open safetensors file, and check it against the file's length.

    The descriptor's offset stays as it is, since other processes may share it.

    Args:
        fd: Descriptor of the file.
        origin: Name of the file, for messages.

    Raises:
        CheckpointError: It is not a sound safetensors file.
        OSError: It cannot be read.
    """
    size = os.fstat(fd).st_size
    prefix = os.pread(fd, 8, 0)
    try:
        length = header_length(prefix, size - len(prefix), origin)
        layout, metadata = parse_header(os.pread(fd, length, len(prefix)), origin)
        expect_in_format(layout, origin)
    except LayoutError as error:
        raise CheckpointError(f"{error}; fetch the file again or save it anew") from error
    body = size - 8 - length
    if body != layout.nbytes:
        raise CheckpointError(
            f"{origin} has {body} bytes of tensors where its header promises {layout.nbytes}; "
            "it is truncated or damaged, so fetch it again or save it anew"
        )
    return FileHeader(layout, metadata, 8 + length)


def expect_in_format(layout: Layout, origin: str) -> None:
    """Refuse what makes a file one that the safetensors library does not open.

    Args:
        layout: Tensors of the file.
        origin: Name of the file or of what makes the tensors, for messages.

    Raises:
        CheckpointError: A tensor is complex128; the message names it.
    """
    for spec in layout.tensors:
        if spec.dtype == "C128":
            raise CheckpointError(
                f"{origin}: tensor {spec.name!r} is complex128, which the safetensors format "
                "lacks; make it complex64, or float64 with torch.view_as_real"
            )


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
    kind = next((kind for is_kind, kind in _KINDS if is_kind(status.st_mode)), None)
    if kind is not None:
        raise CheckpointError(f"{path} is a {kind}; name a regular file")
    return status.st_size
