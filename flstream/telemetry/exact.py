"""JSON that restores values exactly: NaN, infinities, tuples, bytes, any keys.

Lists, objects with string keys and finite numbers are plain JSON. Every other value is an object
with the single key ``$<kind>``, and so is a mapping that could be mistaken for one.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Mapping
from typing import Any

import msgspec
import numpy as np

_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder()
_AS_THEY_ARE = (str, bool, type(None))
_INT64 = range(-(2**63), 2**64)


def encode_exact(value: object) -> msgspec.Raw:
    """Encode a value as JSON on one line.

    Args:
        value: None, bool, int, float, str, bytes, a NumPy scalar; or a list, tuple or mapping of
            such values.

    Raises:
        TypeError: It holds a value of another type; the message names the type.
    """
    return msgspec.Raw(_encoder.encode(_plain(value)))


def decode_exact(data: msgspec.Raw | bytes) -> Any:
    """Decode a value that :func:`encode_exact` encoded.

    Raises:
        ValueError: The data are not an output of :func:`encode_exact`.
    """
    return _value(_decoder.decode(data))


def _plain(value: object) -> object:
    if type(value) in _AS_THEY_ARE:  # most values
        return value
    match value:
        case np.generic():
            return {"$scalar": [value.dtype.str, base64.b64encode(value.tobytes()).decode()]}
        case None | bool() | str():
            return value
        case int():
            return value if value in _INT64 else {"$int": str(value)}
        case float():
            return value if math.isfinite(value) else {"$float": repr(value)}
        case bytes():
            return {"$bytes": base64.b64encode(value).decode()}
        case list():
            return [_plain(item) for item in value]
        case tuple():
            return {"$tuple": [_plain(item) for item in value]}
        case Mapping():
            if all(type(key) is str and not key.startswith("$") for key in value):
                return {key: _plain(item) for key, item in value.items()}
            return {"$dict": [[_plain(key), _plain(item)] for key, item in value.items()]}
    raise TypeError(f"a {type(value).__name__} cannot be kept in the journal")


def _value(plain: Any) -> Any:
    match plain:
        case list():
            return [_value(item) for item in plain]
        case dict() if len(plain) == 1 and (key := next(iter(plain))).startswith("$"):
            if key not in _KINDS:
                raise ValueError(f"{key!r} is no kind of value")
            return _KINDS[key](plain[key])
        case dict():
            return {key: _value(item) for key, item in plain.items()}
    return plain


_KINDS: Mapping[str, Callable[[Any], Any]] = {
    "$float": float,
    "$int": int,
    "$bytes": base64.b64decode,
    "$scalar": lambda parts: np.frombuffer(base64.b64decode(parts[1]), parts[0])[0],
    "$tuple": lambda parts: tuple(_value(item) for item in parts),
    "$dict": lambda pairs: {_value(key): _value(item) for key, item in pairs},
}
