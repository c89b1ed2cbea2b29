"""Training scripts: the commands that start them, their arguments, and what they import."""

from __future__ import annotations

import ast
import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Any

from flstream.errors import UsageError
from flstream.job.imports import all_imports

PLAIN_COMMANDS = re.compile(r"python3?(\.\d+)?(\s+-u)?")
"""Launch commands that only start Python, as every site has a process of its own."""

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


def imports_nvflare(path: Path) -> bool:
    """Return whether a Python file imports NVFlare anywhere; one that does not parse does not."""
    # What does not parse is refused with the job, by its key.
    with suppress(OSError, SyntaxError, ValueError):
        tree = ast.parse(path.read_bytes())
        return any(each.module.partition(".")[0] == "nvflare" for each in all_imports(tree))
    return False
