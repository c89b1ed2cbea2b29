"""JSON of records that restores them exactly, NaN and infinities too."""

from __future__ import annotations

import math
from typing import Any, TypeVar

import msgspec

RecordT = TypeVar("RecordT")

_encoder = msgspec.json.Encoder()


def encode_record(record: object) -> msgspec.Raw:
    """Encode a value of a type that msgspec knows, such as a Struct, as JSON on one line.

    Numbers that are not finite become strings.
    """
    encoded = _encoder.encode(record)
    if b"null" in encoded:  # which stands for those numbers, too
        encoded = _encoder.encode(_with_all_numbers(msgspec.to_builtins(record)))
    return msgspec.Raw(encoded)


def decode_record(data: msgspec.Raw | bytes, kind: type[RecordT]) -> RecordT:
    """Decode a value that :func:`encode_record` encoded, by its type.

    Raises:
        msgspec.ValidationError: The data are of no such value.
    """
    return msgspec.json.decode(data, type=kind, strict=False)  # which takes strings for numbers


def _with_all_numbers(plain: Any) -> object:
    if isinstance(plain, dict):
        return {key: _with_all_numbers(item) for key, item in plain.items()}
    if isinstance(plain, list | tuple):
        return [_with_all_numbers(item) for item in plain]
    return repr(plain) if isinstance(plain, float) and not math.isfinite(plain) else plain
