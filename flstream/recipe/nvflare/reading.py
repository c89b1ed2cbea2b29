"""Reading of NVFlare's configuration files: JSON, HOCON and, where PyYAML is there, YAML."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flstream.errors import UsageError
from flstream.job.hocon import read_hocon

SUFFIXES = (".json", ".conf", ".yml", ".yaml")
"""Suffixes of configuration files; of two files NVFlare reads the one whose suffix comes first."""

# Files of people have a few KiB. A parser of HOCON or YAML takes seconds for 256 KiB.
_MOST_BYTES = {".json": 1 << 20, ".conf": 1 << 18, ".yml": 1 << 18, ".yaml": 1 << 18}
# An alias of YAML may stand for any number of values.
_MOST_VALUES, _MOST_DEPTH, _MOST_KEY = 50_000, 40, 200

_TEXTS_AND_COMMENTS = re.compile(
    r'"""(?:.|\n)*?"""|"(?:\\.|[^"\\\n])*"|#[^\n]*|//[^\n]*', re.MULTILINE
)
_INCLUDE = re.compile(r"(?:^|[\s,{}\[\]])include\s*(?:\"|required\b|file\b|url\b|package\b)", re.I)


@dataclass(frozen=True)
class ConfigFile:
    """Content of a configuration file."""

    name: str
    """Path of the file, relative to the job folder."""
    values: dict[str, Any]
    """Plain values by key."""
    text: str
    """The file as it is."""


def read_config(path: Path, name: str) -> ConfigFile:
    """Read a configuration file.

    Args:
        path: Path of the file; its suffix is one of `SUFFIXES`.
        name: Path of the file for messages.

    Raises:
        UsageError: It cannot be read, or is no mapping of plain values.
    """
    text = _text_of(path, name)
    try:
        values = _PARSERS[path.suffix](path, name, text)
    except RecursionError:
        raise UsageError(f"{name} is nested too deeply to be read") from None
    if not isinstance(values, dict):
        raise UsageError(f"{name} holds no keys; a configuration of NVFlare is one mapping")
    return ConfigFile(name, _Plain(name).section(values, 0), text)


def _text_of(path: Path, name: str) -> str:
    most = _MOST_BYTES[path.suffix]
    try:
        with path.open("rb") as file:
            content = file.read(most + 1)
    except OSError as error:
        raise UsageError(f"{name} cannot be read: {error.strerror}") from error
    if len(content) > most:
        raise UsageError(f"{name} is larger than {most >> 10} KiB, so it is no configuration")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text (byte {error.start})") from None


def _read_json(path: Path, name: str, text: str) -> Any:
    def without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in pairs:
            if key in found:
                raise UsageError(f"{name} has the key {key!r} twice in one section; keep one")
            found[key] = value
        return found

    try:
        return json.loads(text, object_pairs_hook=without_repeats)
    except ValueError as error:
        raise UsageError(f"{name} is not valid JSON: {error}") from None


def _read_hocon(path: Path, name: str, text: str) -> Any:
    # Names of packages would be imported, and files from anywhere read.
    if _INCLUDE.search(_TEXTS_AND_COMMENTS.sub(_quotes_of, text)):
        raise UsageError(f"{name} includes another file; write the lines of that file into it")
    found = read_hocon(path)
    if found.problems:
        raise UsageError(f"{name}: {found.problems[0]}")
    return found.values


def _quotes_of(match: re.Match[str]) -> str:
    return '"' if match[0].startswith('"') else ""


def _read_yaml(path: Path, name: str, text: str) -> Any:
    import importlib

    try:
        yaml = importlib.import_module("yaml")
    except ImportError:
        hint = "install PyYAML, or write the file as JSON"
        raise UsageError(f"{name} is YAML, and there is no module yaml; {hint}") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError) as error:
        reason = " ".join(str(error).split())
        raise UsageError(f"{name} is not valid YAML: {reason}") from None


_PARSERS: dict[str, Callable[[Path, str, str], Any]] = {
    ".json": _read_json,
    ".conf": _read_hocon,
    ".yml": _read_yaml,
    ".yaml": _read_yaml,
}


class _Plain:
    """Copies of what a parser returns, in plain types and of bounded size."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._count = 0

    def section(self, values: dict[Any, Any], depth: int) -> dict[str, Any]:
        return {self._key(key): self._value(inner, depth + 1) for key, inner in values.items()}

    def _key(self, key: Any) -> str:
        if len(str(key)) > _MOST_KEY:
            raise UsageError(f"{self._name} has a key of more than {_MOST_KEY} characters")
        return self._text(str(key))

    def _text(self, text: str) -> str:
        # Neither can be in a path, and the first not in a file.
        if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
            raise UsageError(f"{self._name} has a text with a character that no file may have")
        return text

    def _value(self, value: Any, depth: int) -> Any:
        self._count += 1
        if self._count > _MOST_VALUES:
            raise UsageError(f"{self._name} has more than {_MOST_VALUES} values")
        if depth > _MOST_DEPTH:
            raise UsageError(f"{self._name} is nested more than {_MOST_DEPTH} levels deep")
        match value:
            case dict():
                return self.section(value, depth)
            case list() | tuple():
                return [self._value(inner, depth + 1) for inner in value]
            case None | bool() | int() | float():
                return value
            case _:
                return self._text(str(value))  # a text, or a date of YAML
