"""The settings of a run, read off the job file that it wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Setting(NamedTuple):
    """A key of the job file.

    Attributes:
        key: as ``clients.count``.
        value: as it is written in the file.
        meaning: what the file says of the key.
        is_default: whether a job file need not say it.
    """

    key: str
    value: str
    meaning: str
    is_default: bool


def read_settings(path: Path) -> list[Setting]:
    """Every setting of a run, in the file's order; none if there is no such file.

    The run wrote the file with a line a key. So it can be read without the code, the data and the
    initial model that it names, which may be gone by now.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no text.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    defaults = _defaults()
    return [
        Setting(key, value, meaning, value == defaults.get(key))
        for key, value, meaning in _read(lines)
    ]


def _read(lines: list[str]) -> Iterator[tuple[str, str, str]]:
    sections: list[str] = []
    meaning = ""
    for line in map(str.strip, lines):
        name, equals, value = line.partition(" = ")
        if line.startswith("#"):
            meaning = line.removeprefix("#").strip()
        elif line == "}":
            del sections[-1:]
        elif equals:
            yield ".".join([*sections, name]), value, meaning
            meaning = ""
        elif line.endswith(" {"):
            sections.append(line.removesuffix(" {"))


def _defaults() -> dict[str, str]:
    from flstream.job.keys import job_keys

    return {
        name: "null" if key.default is None else key.rule.render(key.default)
        for name, key in job_keys().items()
        if not key.required
    }
