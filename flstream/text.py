"""Text from elsewhere, made fit to be shown."""

from __future__ import annotations

import os
import re
import signal

# Characters of a peer's text that are shown.
_MOST_SHOWN = 2000

# Characters of a line that a message quotes.
_MOST_QUOTED = 100


def printable(text: str) -> str:
    """Escape every control character, so that no text can send commands to a terminal."""
    if text.isprintable():
        return text
    return "".join(
        char if char.isprintable() else char.encode("unicode_escape").decode() for char in text
    )


def quotable(text: str) -> str:
    """Return a peer's text for a message of this process: printable, and of bounded length."""
    if len(text) > _MOST_SHOWN:
        text = text[:_MOST_SHOWN] + "..."
    return printable(text)


def shortened(line: str) -> str:
    """Return a line as a message quotes it: a long one ends in dots."""
    return line if len(line) <= _MOST_QUOTED else line[:_MOST_QUOTED] + "..."


def printable_path(path: str) -> str:
    """Return a path as text that can be printed and sent, whatever bytes are in it."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def error_text(error: OSError) -> str:
    """Return an error of the system as a clause, with the path that it is about."""
    about = "" if error.filename is None else f"{printable_path(str(error.filename))}: "
    return f"{about}{error.strerror or error}"


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return a key that sorts names as people do: ``site-2`` before ``site-10``."""
    parts = re.split(r"([0-9]+)", name)
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in parts if part]


def signal_name(number: int) -> str:
    """Return the name of a signal, such as ``SIGKILL``; the real-time ones have a number alone."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
