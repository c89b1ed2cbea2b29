"""The safetensors header: what tensors a body holds, as JSON. Nothing in it is taken on trust."""

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
# The safetensors library refuses longer headers, and so do we, before allocating anything.
MAX_HEADER_BYTES = 100_000_000
_METADATA = "__metadata__"
# Where the metadata says which names are tied, as JSON: {alias: name of the tensor}.
_TIED = "flstream.tied"
# As many as NumPy can have. A peer may claim any number.
_MAX_DIMENSIONS = 64


class TensorSpec(NamedTuple):
    """One tensor of a layout.

    Attributes:
        name: the key in the state dict.
        dtype: safetensors code, such as ``F32``.
        shape: dimensions; ``()`` for a scalar.
        start: offset of its first byte in the body.
        stop: offset after its last byte.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int
    stop: int

    @property
    def nbytes(self) -> int:
        """Bytes the tensor takes in the body."""
        return self.stop - self.start

    @property
    def elements(self) -> int:
        """Number of elements (1 for a scalar)."""
        return math.prod(self.shape)


class Decoded(NamedTuple):
    """What a header says.

    Attributes:
        tensors: in the order of their bytes.
        aliases: names of tensors by their further names.
        metadata: the header's own, but for what is told by ``aliases``.
    """

    tensors: list[TensorSpec]
    aliases: dict[str, str]
    metadata: dict[str, str]


def encode_header(
    tensors: Iterable[TensorSpec],
    aliases: Mapping[str, str],
    metadata: Mapping[str, str] | None = None,
) -> bytes:
    """The header of some tensors: 8 bytes of length, then JSON padded with spaces."""
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
    """Refuse a name that a header cannot carry.

    Raises:
        LayoutError: it is one; the message names it.
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
    """Length in bytes of the JSON header that follows an 8-byte ``prefix``.

    Args:
        prefix: the first 8 bytes of a safetensors file or message.
        available: bytes that the file or message has after the prefix.
        origin: what is being read, for messages.

    Raises:
        LayoutError: the prefix is cut short or claims more than there is.
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
    """Read the JSON of a header, without its 8-byte length: see ``layout.parse_header``."""
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
        # Nor may it be an alias: a tie has one tensor and any number of further names.
        if not isinstance(name, str) or name not in names:
            raise LayoutError(f"{origin} ties {alias!r} to {name!r}, which is none of its tensors")
    return ties


def decode_json(text: bytes | str) -> object:
    """Read JSON in which no table has a name twice.

    Raises:
        ValueError: it is not such; the text says what is wrong, without naming the file.
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
        # Python advises to raise its limit for the digits of a number, which nobody should.
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
        # A match statement reads better and takes twice as long, which ten thousand tensors feel.
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
