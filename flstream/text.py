"""Text from elsewhere, made safe to display."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Sequence

MOST_QUOTED = 300
"""Characters of one reason, such as an exception's text, among others on a line."""

MOST_OF_AN_ERROR = 1000
"""Characters of an exception's text in a sentence about it; its log has the whole."""

MOST_ON_A_LINE = 4000
"""Characters of a line that is printed."""

# A whole number, or after an equals sign one with sign, decimals and exponent.
_NUMBER = re.compile(r"(?<==)-?[0-9]*\.?[0-9]+(?:e[+-]?[0-9]+)?(?=[,/]|$)|[0-9]+")
# Characters of a peer's text that are shown.
_MOST_SHOWN = 2000
# Replacement of the middle of a text that is too long.
_LEFT_OUT = " [...] "


def printable(text: str) -> str:
    """Escape control characters, so that no text can command a terminal."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def shortened(text: str, most: int) -> str:
    """Return text of at most so many characters; a longer one lacks its middle."""
    if len(text) <= most:
        return text
    room = most - len(_LEFT_OUT)
    end = room // 2
    return f"{text[: room - end]}{_LEFT_OUT}{text[len(text) - end :]}"


def quotable(text: str, most: int = _MOST_SHOWN) -> str:
    """Return a peer's text for a message: printable, and of bounded length."""
    return shortened(printable(text), most)


def printable_path(path: str) -> str:
    """Return a path as text that can be printed and sent, whatever bytes are in it."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def error_text(error: OSError) -> str:
    """Return an error of the system as a clause, with its path."""
    about = "" if error.filename is None else f"{printable_path(str(error.filename))}: "
    return f"{about}{error.strerror or error}"


def natural_key(name: str) -> list[tuple[bool, float, str]]:
    """Return a key that sorts names as people do: ``site-2`` before ``site-10``.

    The value of ``lr=0.03`` is one number, so it comes before ``lr=0.1``.
    """
    key, end = [], 0
    for number in _NUMBER.finditer(name):
        key += [(False, 0.0, name[end : number.start()]), (True, float(number[0]), "")]
        end = number.end()
    return [*key, (False, 0.0, name[end:])]


def brief_names(names: Sequence[str], most: int = 6) -> str:
    """Return some names in a sentence: ``a, b and 3 more``."""
    more = len(names) - most
    text = ", ".join(map(printable, names[:most]))
    return f"{text} and {more:,} more" if more > 0 else text


def signal_name(number: int) -> str:
    """Return the name of a signal, such as ``SIGKILL``; a real-time one's number."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def how_ended(code: int) -> str:
    """Describe the end of a process by its exit code, or minus the killing signal."""
    return f"was killed by {signal_name(-code)}" if code < 0 else f"exited with status {code}"
