"""Command lines of scripts, as arguments by name."""

from __future__ import annotations

import re
import shlex
from typing import Any

from flstream.errors import UsageError

_OPTION = re.compile(r"--([A-Za-z0-9][A-Za-z0-9_-]*)(?:=(.*))?", re.DOTALL)
_NUMBER = re.compile(r"-\.?\d.*")


def by_name(text: str, what: str) -> dict[str, Any]:
    """Return the words of a command line as arguments by name.

    Args:
        text: Words such as ``--lr 0.1 --verbose``, as on a shell.
        what: What they are, for the error message.

    Returns:
        Texts by name; a list where a name has several, and True where it has none.

    Raises:
        UsageError: A word belongs to no name, or a name comes twice.
    """
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(f"{what} {text!r} is not quoted as on a shell: {error}") from error
    found: dict[str, list[str]] = {}
    values: list[str] | None = None
    for word in words:
        option = _OPTION.fullmatch(word)
        if option is not None:
            name, value = option.groups()
            if name in found:
                raise UsageError(f"{what} {text!r} has --{name} twice; give each name once")
            values = found[name] = [] if value is None else [value]
        elif values is None or (word.startswith("-") and not _NUMBER.fullmatch(word)):
            raise UsageError(
                f"{what} {text!r}: {word} belongs to no --name; a site's own arguments are "
                "--name value"
            )
        else:
            values.append(word)
    return {name: _value(values) for name, values in found.items()}


def _value(values: list[str]) -> Any:
    if not values:
        return True
    return values[0] if len(values) == 1 else values
