"""The safetensors header: the tensors of a body, as JSON. Every statement in it is checked."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterable, Mapping
from itertools import pairwise
from typing import NamedTuple

from flstream.errors import LayoutError
from flstream.model.dtypes import BY_CODE

# The body begins at a multiple of 64 bytes of the file: a mapped tensor is then aligned for SIMD.
_BODY_ALIGNMENT = 64
# The limit of the safetensors library, checked before anything is allocated.
MAX_HEADER_BYTES = 100_000_000
_METADATA = "__metadata__"
# Key of the metadata for tied names, as JSON: {alias: name of the tensor}.
_TIED = "flstream.tied"
# The limit of NumPy. A peer may state any number.
_MAX_DIMENSIONS = 64


class TensorSpec(NamedTuple):
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


class Decoded(NamedTuple):
    """Content of a header.

    Attributes:
        tensors: Tensors in the order of their bytes.
        aliases: Names of the tensors that share their bytes with further names, by these names.
        metadata: Strings of ``__metadata__``, but for the aliases.
    """

    tensors: list[TensorSpec]
    aliases: dict[str, str]
    metadata: dict[str, str]


def encode_header(
    tensors: Iterable[TensorSpec],
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
        metadata[_TIED] = _json(aliases).decode()
    fields: dict[str, object] = {_METADATA: metadata} if metadata else {}
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
    if name == _METADATA:
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


def decode_header(text: bytes, origin: str) -> Decoded:
    """Decode the JSON of a header, without its 8-byte length: see ``layout.parse_header``."""
    if not text.strip():
        raise LayoutError(f"{origin} has a header with nothing in it")
    try:
        fields = decode_json(text)
    except ValueError as error:
        raise LayoutError(f"{origin} has a header that cannot be read: {error}") from error
    if not isinstance(fields, dict):
        raise LayoutError(f"{origin} has a header that is not a JSON object")
    metadata = fields.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
        raise LayoutError(f"{origin} has metadata that is not a table of strings")
    specs = sorted(
        (_parse_tensor(name, field, origin) for name, field in fields.items()),
        key=lambda spec: (spec.start, spec.stop),
    )
    if specs and specs[0].start != 0:
        raise LayoutError(f"{origin}: tensor {specs[0].name!r} does not begin at offset 0")
    for left, right in pairwise(specs):
        if left.stop != right.start:
            flaw = "overlap" if right.start < left.stop else "leave a hole between them"
            raise LayoutError(f"{origin}: tensors {left.name!r} and {right.name!r} {flaw}")
    aliases = _parse_ties(metadata.pop(_TIED, "{}"), fields, origin)
    return Decoded(specs, aliases, metadata)


def _parse_ties(text: str, names: Container[str], origin: str) -> dict[str, str]:
    try:
        ties = decode_json(text)
    except ValueError as error:
        raise LayoutError(f"{origin} has ties that cannot be read: {error}") from error
    if not isinstance(ties, dict):
        raise LayoutError(f"{origin} has ties that are not a table of names")
    for alias, name in ties.items():
        check_name(alias)
        if alias in names:
            raise LayoutError(f"{origin} ties {alias!r}, which is a tensor of its own")
        # Nor may it be an alias: every alias names a tensor directly.
        if not isinstance(name, str) or name not in names:
            raise LayoutError(f"{origin} ties {alias!r} to {name!r}, which is none of its tensors")
    return ties


def decode_json(text: bytes | str) -> object:
    """Decode JSON, in which no object may have a key twice.

    Raises:
        ValueError: The text is not such JSON; the message says why, without naming the file.
    """
    try:
        return json.loads(
            text.decode() if isinstance(text, bytes) else text,
            object_pairs_hook=_refuse_duplicates,
        )
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    except json.JSONDecodeError:
        raise
    except UnicodeDecodeError as error:
        raise ValueError(f"byte {error.start} is not UTF-8") from error
    except ValueError as error:
        # Python's advice, to raise its limit for the digits of a number, would be wrong here.
        raise ValueError(str(error).partition(";")[0]) from error


def _refuse_duplicates(pairs: list[tuple[str, object]]) -> dict[str, object]:
    fields = dict(pairs)
    if len(fields) != len(pairs):
        seen: set[str] = set()
        for name, _ in pairs:
            if name in seen:
                raise ValueError(f"the name {name!r} stands there twice")
            seen.add(name)
    return fields


def _parse_tensor(name: str, field: object, origin: str) -> TensorSpec:
    try:
        # A match statement reads better but takes twice as long, noticeable with 10,000 tensors.
        dtype, shape, (start, stop) = field["dtype"], field["shape"], field["data_offsets"]  # type: ignore[index]
        sound = type(dtype) is str and type(shape) is list and len(shape) <= _MAX_DIMENSIONS
    except (TypeError, KeyError, ValueError):
        sound = False
    if not sound or not _are_sizes((*shape, start, stop)):
        raise LayoutError(f"{origin}: tensor {name!r} lacks a proper dtype, shape or offsets")
    try:
        name.encode()
    except UnicodeEncodeError as error:  # JSON can spell half a character: "\\ud800"
        raise LayoutError(f"{origin}: the name {name!r} is not a text of Unicode") from error
    if dtype not in BY_CODE:
        raise LayoutError(f"{origin}: tensor {name!r} has the dtype {dtype!r}, which is unknown")
    spec = TensorSpec(name, dtype, tuple(shape), start, stop)
    if spec.nbytes != spec.elements * BY_CODE[dtype].itemsize:
        raise LayoutError(
            f"{origin}: tensor {name!r} takes {spec.nbytes} bytes, which does not match "
            f"its dtype {dtype} and shape {shape}"
        )
    return spec


def _are_sizes(numbers: Iterable[object]) -> bool:
    return all(type(number) is int and 0 <= number < 2**63 for number in numbers)
