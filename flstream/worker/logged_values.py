"""Training code's logged values, checked and split into named numbers and text."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from flstream.client.fl_model import number_of
from flstream.errors import ClientError

_MOST_CHARACTERS = 1 << 20
_MOST_OF_A_NAME = 1000
_STEPS = range(-(2**63), 2**63)


LoggedValue = tuple[str, float | None, str | None]
"""A value's name; the number, which may be NaN or infinite; the text. One of the two is None."""


def values_of(key: Any, value: Any) -> Iterator[LoggedValue]:
    """Yield the values to record: one, or each of a mapping as ``key/name``.

    A value is a number of Python, NumPy or torch, or text. Another one is a ClientError.
    """
    if not isinstance(key, str) or not key:
        raise ClientError(f"log() was given {key!r} as a key; give it the value's name, as text")
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield _value(f"{key}/{name}", item)
    else:
        yield _value(key, value)


def step_of(key: str, step: Any) -> int | None:
    """Return a value's step, an int of 64 bits at most; None without one."""
    if step is None:
        return None
    if not isinstance(step, bool):
        with suppress(TypeError, ValueError, RuntimeError):
            number = operator.index(step)
            if number in _STEPS:
                return number
    raise ClientError(
        f"log({key!r}) was given {_shown(step)} as global_step; give it an int, or leave it out"
    )


def check_length(what: str, name: str) -> None:
    """Refuse a name that is too long for a table."""
    if len(name) > _MOST_OF_A_NAME:
        raise ClientError(
            f"{what} {name[:40]!r}... has {len(name)} characters in its name, and "
            f"{_MOST_OF_A_NAME} is most; shorten it"
        )


def _value(key: str, value: Any) -> LoggedValue:
    check_length("the value", key)
    if isinstance(value, str):
        text = _encodable(str(value))
        if len(text) > _MOST_CHARACTERS:
            raise ClientError(
                f"log({key!r}) was given text of {len(text)} characters, and {_MOST_CHARACTERS} is "
                "most; write it into a file of the site's own instead"
            )
        return _encodable(key), None, text
    number = number_of(value)
    if number is None:
        raise ClientError(
            f"log({key!r}) was given {_shown(value)}; give it a number, text, or a mapping of "
            "names to these"
        )
    return _encodable(key), number, None


def _shown(value: Any) -> str:
    plain = isinstance(value, bool | int | float | str)
    return repr(value)[:100] if plain else f"a {type(value).__name__}"


def _encodable(text: str) -> str:
    """Return text without halves of surrogate pairs, which messages cannot carry."""
    return text.encode(errors="backslashreplace").decode()
