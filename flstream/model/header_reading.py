"""Reading a safetensors header, which may come from anybody. Every statement in it is checked.

It is decoded into records of the types that it must have, so that what is none, such as a million
empty lists, takes no memory before it is refused.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Container, Mapping
from itertools import pairwise
from typing import Annotated, NamedTuple

import msgspec

from flstream.errors import LayoutError
from flstream.model.dtypes import BY_CODE
from flstream.model.header import METADATA, TIED, TensorInfo, check_name
from flstream.text import quotable

# The limit of NumPy. A peer may state any number.
_MAX_DIMENSIONS = 64
# Bytes of a header in which the name of what is wrong is looked for, since that takes much memory.
_MOST_EXPLAINED = 1 << 20
# What msgspec raises for text that is not of the type: for text that is not UTF-8 and for deep
# nesting, it raises Python's own.
_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)

_Size = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]


class _TensorEntry(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    dtype: str
    shape: Annotated[tuple[_Size, ...], msgspec.Meta(max_length=_MAX_DIMENSIONS)]
    data_offsets: tuple[_Size, _Size]


class _Beside(msgspec.Struct):
    """What a header has beside its tensors."""

    metadata: msgspec.Raw = msgspec.field(name=METADATA, default=msgspec.Raw(b"{}"))


_TWICE = "a name stands there twice"
_beside_decoder = msgspec.json.Decoder(_Beside)
_metadata_decoder = msgspec.json.Decoder(dict[str, str])
# The metadata, which are of another type, are null by then.
_entries_decoder = msgspec.json.Decoder(dict[str, _TensorEntry | None])
_METADATA_KEY = re.compile(rb'"%s"\s*+:\s*+' % METADATA.encode())
# A string, and the colon behind it if it is a key.
_STRING = re.compile(rb'"(?:[^"\\]++|\\.)*+"(\s*+:)?')


class Decoded(NamedTuple):
    """Content of a header.

    Attributes:
        tensors: Tensors in the order of their bytes.
        aliases: Names of the tensors that share their bytes with further names, by these names.
        metadata: Strings of ``__metadata__``, but for the aliases.
    """

    tensors: list[TensorInfo]
    aliases: dict[str, str]
    metadata: dict[str, str]


def decode_header(text: bytes, origin: str, most_tensors: int | None = None) -> Decoded:
    """Decode the JSON of a header, without its 8-byte length: see ``layout.parse_header``."""
    if not text.strip():
        raise LayoutError(f"{origin} has a header with nothing in it")
    try:
        metadata, entries = _decode(text, origin, most_tensors)
    except _UNREADABLE as error:
        raise _refusal(text, origin, error) from error
    specs = [_spec(name, entry, origin) for name, entry in entries.items()]
    names = entries.keys()
    specs.sort(key=lambda spec: (spec.start, spec.stop))
    if specs and specs[0].start != 0:
        raise LayoutError(f"{origin}: tensor {specs[0].name!r} does not begin at offset 0")
    for left, right in pairwise(specs):
        if left.stop != right.start:
            flaw = "overlap" if right.start < left.stop else "leave a hole between them"
            raise LayoutError(f"{origin}: tensors {left.name!r} and {right.name!r} {flaw}")
    aliases = _ties(metadata.pop(TIED, "{}"), names, origin, most_tensors)
    return Decoded(specs, aliases, metadata)


def _decode(
    text: bytes, origin: str, most: int | None
) -> tuple[dict[str, str], dict[str, _TensorEntry]]:
    """Decode the metadata and the entries of the tensors, if there are not too many.

    Raises:
        msgspec.DecodeError, UnicodeDecodeError, RecursionError: They are of other types, or a name
            stands there twice.
        LayoutError: There are more than ``most``.
    """
    raw = bytes(_beside_decoder.decode(text).metadata)
    rest = text
    if (key := _METADATA_KEY.search(text)) is not None:
        rest = text[: key.end()] + b"null" + text[key.end() + len(raw) :]
    # Counted before anything is made of them.
    keys, metadata_keys = _keys(rest), _keys(raw)
    fields = len(_TensorEntry.__struct_fields__)
    _expect_at_most(most, keys // (1 + fields), origin, "tensors")
    _expect_at_most(most, metadata_keys, origin, "entries of metadata")
    metadata, entries = _metadata_decoder.decode(raw), _entries_decoder.decode(rest)
    if keys != len(entries) + fields * _filled(entries) or metadata_keys != len(metadata):
        raise msgspec.ValidationError(_TWICE)
    entries.pop(METADATA, None)
    if None in entries.values():
        raise msgspec.ValidationError("a tensor is null")
    return metadata, entries  # type: ignore[return-value]


def _filled(entries: Mapping[str, _TensorEntry | None]) -> int:
    return sum(entry is not None for entry in entries.values())


def _keys(text: bytes) -> int:
    """Count the keys of JSON. If it has more than were decoded, a name stands there twice."""
    colons = _STRING.findall(text)
    return len(colons) - colons.count(b"")


def _expect_at_most(most: int | None, count: int, origin: str, what: str) -> None:
    if most is not None and count > most:
        raise LayoutError(f"{origin} has {count} {what}; at most {most} are taken")


def _refusal(text: bytes, origin: str, error: Exception) -> LayoutError:
    """Make the error for a header that cannot be decoded: with a name, if that is easily found."""
    if len(text) <= _MOST_EXPLAINED:
        try:
            fields = decode_json(text)
        except ValueError as flaw:
            return LayoutError(f"{origin} has a header that cannot be read: {flaw}")
        if not isinstance(fields, dict):
            return LayoutError(f"{origin} has a header that is not a JSON object")
        metadata = fields.pop(METADATA, {})
        if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in metadata.values()):
            return LayoutError(f"{origin} has metadata that is not a table of strings")
        for name, field in fields.items():
            if isinstance(field, dict) and (
                others := field.keys() - set(_TensorEntry.__struct_fields__)
            ):
                return LayoutError(
                    f"{origin}: tensor {name!r} has the field {min(others)!r}, which the format "
                    "lacks"
                )
            try:
                msgspec.convert(field, _TensorEntry)
            except msgspec.ValidationError:
                return LayoutError(
                    f"{origin}: tensor {name!r} lacks a proper dtype, shape or offsets"
                )
    return LayoutError(f"{origin} has a header that cannot be read: {quotable(str(error))}")


def _spec(name: str, entry: _TensorEntry, origin: str) -> TensorInfo:
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
    try:
        ties = _metadata_decoder.decode(text)
        if keys != len(ties):
            raise msgspec.ValidationError(_TWICE)
    except _UNREADABLE as error:
        raise LayoutError(
            f"{origin} has ties that are not a table of names: {quotable(str(error))}"
        ) from error
    for alias, name in ties.items():
        check_name(alias)
        if alias in names:
            raise LayoutError(f"{origin} ties {alias!r}, which is a tensor of its own")
        # Nor may it be an alias: every alias names a tensor directly.
        if name not in names:
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
