"""The safetensors header: the tensors of a body, as JSON."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from flstream.errors import LayoutError

# The body begins at a multiple of 64 bytes of the file: a mapped tensor is then aligned for SIMD.
_BODY_ALIGNMENT = 64
# The limit of the safetensors library, checked before anything is allocated.
MAX_HEADER_BYTES = 100_000_000
METADATA = "__metadata__"
"""Key of a header that names no tensor."""
TIED = "flstream.tied"
"""Key of the metadata for tied names, as JSON: {alias: name of the tensor}."""


class TensorInfo(NamedTuple):
    """A tensor of a layout.

    Attributes:
        name: Key in the state dict.
        dtype: Element type as a safetensors code, such as ``F32``.
        shape: Dimensions; ``()`` for a scalar.
        start: Offset in bytes of its first byte in the body.
        stop: Offset in bytes after its last byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Bytes of the tensor in the body."""
        return self.stop - self.start

    @property
    def elements(self) -> int:
        """Number of elements; 1 for a scalar."""
        return math.prod(self.shape)


def encode_header(
    tensors: Iterable[TensorInfo],
    aliases: Mapping[str, str],
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """Encode a header: 8 bytes with its length, then JSON padded with spaces.

    Args:
        tensors: Tensors in the order of their bytes.
        aliases: Names of tensors by their further names.
        metadata: Strings for ``__metadata__``, under any names but ``flstream.tied``, where the
            aliases stand.
    """
    metadata = dict(metadata or {})
    if aliases:
        metadata[TIED] = _json(aliases).decode()
    fields: dict[str, object] = {METADATA: metadata} if metadata else {}
    for spec in tensors:
        fields[spec.name] = {
            "dtype": spec.dtype,
            "shape": list(spec.shape),
            "data_offsets": [spec.start, spec.stop],
        }
    text = _json(fields)
    text += b" " * (-(8 + len(text)) % _BODY_ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _json(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


def check_name(name: object) -> None:
    """Refuse a tensor's name that a header cannot hold.

    Raises:
        LayoutError: The name is not a string of Unicode, or is reserved; the message has it.
    """
    if not isinstance(name, str):
        raise LayoutError(f"{name!r} cannot name a tensor, since it is no string; rename it")
    if name == METADATA:
        raise LayoutError(f"a tensor is named {name!r}, which the format keeps; rename it")
    try:
        name.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair: "\ud800"
        raise LayoutError(
            f"the name {name!r} is not a text of Unicode, so no header can carry it; rename it"
        ) from error


def header_length(prefix: bytes, available: int, origin: str) -> int:
    """Return the length in bytes of the JSON header that follows an 8-byte prefix.

    Args:
        prefix: First 8 bytes of a safetensors file or message.
        available: Bytes of the file or message after the prefix.
        origin: Name of the file or message, for messages.

    Raises:
        LayoutError: The prefix is cut short or states more bytes than are available.
    """
    if len(prefix) < 8:
        raise LayoutError(f"{origin} is shorter than a safetensors header; it may be truncated")
    length = int.from_bytes(prefix, "little")
    if length > min(available, MAX_HEADER_BYTES):
        raise LayoutError(
            f"{origin} claims a header of {length} bytes but has {available}; "
            "it is not a safetensors file, or it is damaged"
        )
    return length
