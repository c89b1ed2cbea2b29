"""Variables of a configuration: `{name}` stands for the plain value of a key at its top."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flstream.errors import UsageError
from flstream.recipe.nvflare.reading import ConfigFile

_VARIABLE = re.compile(r"\{(\w+)\}")
_SUBSTITUTION = re.compile(r"\$\{\??([\w-]+)\}")
# A variable may stand for others; a cycle ends here.
_MOST_PASSES, _MOST_CHARACTERS = 8, 100_000

Uses = Mapping[str, list[str]]
"""Places where each variable stands, by its name."""


def fill_in(config: ConfigFile) -> tuple[ConfigFile, Uses]:
    """Return a configuration with its variables filled in, and where they stood.

    What NVFlare sets for each process, such as `{SITE_NAME}`, stays as it is.

    Raises:
        UsageError: The variables stand for each other in a circle, or for too long a text.
    """
    filler = _Filler(config)
    values = {key: filler.fill(key, value) for key, value in config.values.items()}
    for name in _SUBSTITUTION.findall(config.text) if config.name.endswith(".conf") else ():
        if name in filler.variables:
            filler.uses.setdefault(name, []).append(f"${{{name}}}")
    return replace(config, values=values), filler.uses


def open_variables(text: str) -> list[str]:
    """Return the variables in a text that nothing stands for, such as `{SITE_NAME}`."""
    return [f"{{{name}}}" for name in dict.fromkeys(_VARIABLE.findall(text))]


class _Filler:
    """Replaces variables, and notes where they were."""

    def __init__(self, config: ConfigFile) -> None:
        self._file = config.name
        self.uses: dict[str, list[str]] = {}
        self.variables = {
            key: value
            for key, value in config.values.items()
            if isinstance(value, str | bool | int | float)
        }

    def fill(self, path: str, value: Any) -> Any:
        match value:
            case str():
                return self._fill_text(path, value)
            case dict():
                return {key: self.fill(f"{path}.{key}", inner) for key, inner in value.items()}
            case list():
                return [self.fill(f"{path}[{at}]", inner) for at, inner in enumerate(value)]
            case _:
                return value

    def _fill_text(self, path: str, text: str) -> Any:
        for _ in range(_MOST_PASSES):
            names = [name for name in _VARIABLE.findall(text) if name in self.variables]
            if not names:
                return text
            for name in names:
                places = self.uses.setdefault(name, [])
                if path not in places:
                    places.append(path)
            whole = _VARIABLE.fullmatch(text.strip())
            if whole is not None and not isinstance(self.variables[whole[1]], str):
                return self.variables[whole[1]]
            text = _VARIABLE.sub(self._value_of, text)
            if len(text) > _MOST_CHARACTERS:
                break
        raise UsageError(
            f"{self._file}: {path} has variables that stand for each other in a circle, or for "
            f"more than {_MOST_CHARACTERS} characters"
        )

    def _value_of(self, match: re.Match[str]) -> str:
        value = self.variables.get(match[1], match[0])
        return str(value)
