"""The safetensors header: the tensors of a body, as JSON.

One that is read may come from anybody, and every statement in it is checked. It is decoded into
records of the types that it must have, so that what is none, such as a million empty lists, takes
no memory before it is refused.
"""

from __future__ import annotations

import math
import re
from collections.abc import Container
from itertools import pairwise
from typing import Annotated

import msgspec

from flstream.errors import LayoutError
from flstream.model.dtypes import BY_CODE
from flstream.model.layout import METADATA, TIED, Layout, TensorInfo, check_name
from flstream.text import quotable

# The limit of the safetensors library, checked before anything is allocated.
MAX_HEADER_BYTES = 100_000_000
# The limit of NumPy. A peer may state any number.
_MAX_DIMENSIONS = 64
# What msgspec raises for text that is not of the type: for text that is not UTF-8 and for deep
# nesting, it raises Python's own.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _TensorEntry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    dtype: str
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=_MAX_DIMENSIONS)]
    data_offsets: tuple[_Size, _Size]


_fields_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])
_entry_decoder = msgspec.json.Decoder(_TensorEntry)
_metadata_decoder = msgspec.json.Decoder(dict[str, str])
# A string, and the colon behind it if it is a key.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"(\s*+:)?')


def header_length(prefix: bytes, available: int, origin: str) -> int:
    """Return the length of a file's JSON header, from the file's first 8 bytes."""
    if len(prefix) < 8:
        raise LayoutError(f"{origin} is shorter than a safetensors header; it may be truncated")
    length = int.from_bytes(prefix, "little")
    if length > min(available, MAX_HEADER_BYTES):
        raise LayoutError(
            f"{origin} claims a header of {length} bytes but has {available}; "
            "it is not a safetensors file, or it is damaged"
        )
    return length


def parse_header(
    text: bytes, origin: str, most: int | None = None
) -> tuple[Layout, dict[str, str]]:
    """Decode the JSON of a safetensors header, without its 8-byte length.

    Args:
        text: JSON in UTF-8, possibly padded with spaces.
        origin: Name of the file or message, for messages.
        most: Number of tensors that it may have; None for any.

    Returns:
        The layout, and the metadata that is not part of it.

    Raises:
        LayoutError: The header is not valid, names a tensor twice, has too many, or its tensors
            overlap, leave a gap, do not match their shapes or are aliases of nothing; the message
            names the tensor.
    """
    if not text.strip():
        raise LayoutError(f"{origin} has a header with nothing in it")
    keys, fields = _keys(text), 1 + len(_TensorEntry.__struct_fields__)
    # Counted before anything is made of them.
    _expect_at_most(most and (1 + fields) * most, keys, origin, "keys")
    try:
        entries = _fields_decoder.decode(text)
    except _UNREADABLE as error:
        flaw = quotable(str(error))
        raise LayoutError(f"{origin} has a header that cannot be read: {flaw}") from error
    raw = bytes(entries.pop(METADATA, b""))
    _expect_at_most(most, len(entries), origin, "tensors")
    specs = [_spec(name, entry, origin) for name, entry in entries.items()]
    _expect_at_most(most, _keys(raw), origin, "entries of metadata")
    metadata = _table(raw or b"{}", f"{origin} has metadata that is")
    # If there are more keys than were decoded, one of them is there twice.
    if keys != len(specs) * fields + bool(raw) + len(metadata):
        raise LayoutError(f"{origin} has a header in which a name stands there twice")
    specs.sort(key=lambda spec: (spec.start, spec.stop))
    if specs and specs[0].start != 0:
        raise LayoutError(f"{origin}: tensor {specs[0].name!r} does not begin at offset 0")
    for before, after in pairwise(specs):
        if before.stop != after.start:
            flaw = "overlap" if after.start < before.stop else "leave a hole between them"
            raise LayoutError(f"{origin}: tensors {before.name!r} and {after.name!r} {flaw}")
    ties = _ties(metadata.pop(TIED, "{}"), entries, origin, most)
    return Layout(specs, ties), metadata


def _spec(name: str, raw: msgspec.Raw, origin: str) -> TensorInfo:
    try:
        entry = _entry_decoder.decode(raw)
    except _UNREADABLE as error:
        raise LayoutError(
            f"{origin}: tensor {name!r} lacks a proper dtype, shape or offsets, or has more: "
            f"{quotable(str(error))}"
        ) from error
    dtype = BY_CODE.get(entry.dtype)
    if dtype is None:
        raise LayoutError(
            f"{origin}: tensor {name!r} has the dtype {entry.dtype!r}, which is unknown"
        )
    start, stop = entry.data_offsets
    if stop - start != math.prod(entry.shape) * dtype.itemsize:
        raise LayoutError(
            f"{origin}: tensor {name!r} takes {stop - start} bytes, which does not match "
            f"its dtype {dtype.code} and shape {list(entry.shape)}"
        )
    return TensorInfo(name, dtype.code, entry.shape, start, stop)


def _ties(text: str, names: Container[str], origin: str, most: int | None) -> dict[str, str]:
    keys = _keys(text.encode())
    _expect_at_most(most, keys, origin, "ties")
    ties = _table(text, f"{origin} has ties that are")
    if keys != len(ties):
        raise LayoutError(f"{origin} has ties in which a name stands there twice")
    for alias, name in ties.items():
        check_name(alias)
        if alias in names:
            raise LayoutError(f"{origin} ties {alias!r}, which is a tensor of its own")
        # Nor may it be an alias: every alias names a tensor directly.
        if name not in names:
            raise LayoutError(f"{origin} ties {alias!r} to {name!r}, which is none of its tensors")
    return ties


def _table(text: bytes | str, subject: str) -> dict[str, str]:
    try:
        return _metadata_decoder.decode(text)
    except _UNREADABLE as error:
        flaw = quotable(str(error))
        raise LayoutError(f"{subject} not a table of strings: {flaw}") from error


def _keys(text: bytes) -> int:
    """Count the keys of JSON."""
    colons = _STRING.findall(text)
    return len(colons) - colons.count(b"")


def _expect_at_most(most: int | None, count: int, origin: str, what: str) -> None:
    if most is not None and count > most:
        limit = f"at most {most} are taken (Limits.layout_tensors)"
        raise LayoutError(f"{origin} has {count} {what}; {limit}")
