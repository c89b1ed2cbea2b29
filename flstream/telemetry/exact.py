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


def _plain(value: Any) -> object:
    if (plain := _PLAIN.get(type(value))) is not None:
        return plain(value)
    for kind, plain in _PLAIN_OF_OTHERS.items():
        if isinstance(value, kind):
            return plain(value)
    raise TypeError(f"a {type(value).__name__} cannot be kept in the journal")


def _same(value: object) -> object:
    return value


def _plain_mapping(value: Mapping[Any, Any]) -> object:
    for key in value:
        if type(key) is not str or key.startswith("$"):
            return {"$dict": [[_plain(key), _plain(item)] for key, item in value.items()]}
    return {key: _plain(item) for key, item in value.items()}


_PLAIN: Mapping[type, Callable[[Any], object]] = {
    type(None): _same,
    bool: _same,
    str: _same,
    int: lambda value: value if value in _INT64 else {"$int": str(value)},
    float: lambda value: value if math.isfinite(value) else {"$float": repr(value)},
    bytes: lambda value: {"$bytes": base64.b64encode(value).decode()},
    list: lambda value: [_plain(item) for item in value],
    tuple: lambda value: {"$tuple": [_plain(item) for item in value]},
    dict: _plain_mapping,
}
# NumPy's scalars first, some of which are floats, too.
_PLAIN_OF_OTHERS: Mapping[type, Callable[[Any], object]] = {
    np.generic: lambda value: {
        "$scalar": [value.dtype.str, base64.b64encode(value.tobytes()).decode()]
    },
    **_PLAIN,
    Mapping: _plain_mapping,
}


def _value(plain: Any) -> Any:
    if type(plain) is dict:
        if len(plain) == 1 and (key := next(iter(plain))).startswith("$"):
            if key not in _KINDS:
                raise ValueError(f"{key!r} is no kind of value")
            return _KINDS[key](plain[key])
        return {key: _value(item) for key, item in plain.items()}
    if type(plain) is list:
        return [_value(item) for item in plain]
    return plain


_KINDS: Mapping[str, Callable[[Any], Any]] = {
    "$float": float,
    "$int": int,
    "$bytes": base64.b64decode,
    "$scalar": lambda parts: np.frombuffer(base64.b64decode(parts[1]), parts[0])[0],
    "$tuple": lambda parts: tuple(_value(item) for item in parts),
    "$dict": lambda pairs: {_value(key): _value(item) for key, item in pairs},
}
