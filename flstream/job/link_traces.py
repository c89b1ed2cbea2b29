"""Traces of links: a CSV file of what the link of each site is over time."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import PlainValidator, ValidationInfo

from flstream.job.annotations import ValueKind
from flstream.job.files import ExistingFile
from flstream.job.link import MOST_RATE, TracePoint, read_delay
from flstream.job.problems import Problem, did_you_mean, must_be
from flstream.job.values import render_value
from flstream.units import parse_rate, parse_seconds

_FILE = ExistingFile((".csv",))
_COLUMNS = ("up", "down", "latency")
_KNOWN = ("site", "seconds", *_COLUMNS)
# Points that are closer to each other would cost more than they say.
_LEAST_STEP = 1e-3


@dataclass(frozen=True)
class LinkTraces:
    """Traces of links.

    Attributes:
        path: Absolute path of the file.
        sites: Points of each site, by its name, in the order of time.
        lines: Line of the file in which each site comes first.
    """

    path: Path
    sites: Mapping[str, tuple[TracePoint, ...]]
    lines: Mapping[str, int]

    def problems(self, sites: Sequence[str]) -> Iterator[Problem]:
        """Yield the problem of a trace of a site that a job does not have.

        Args:
            sites: Names of the job's sites.
        """
        for site in sorted(set(self.sites).difference(sites))[:1]:
            where = f"{self.path}, line {self.lines[site]}: {site} is no site of the job"
            allowed = f"a file of sites of the job, which are {sites[0]} to {sites[-1]}"
            yield Problem("traces", where, allowed, did_you_mean(site, sites))


def _traces(path: Path) -> LinkTraces:
    """Read the traces of a file.

    Raises:
        ValueError: There is a mistake in it; the message names the file, and the line.
    """
    found: dict[str, list[TracePoint]] = {}
    lines: dict[str, int] = {}
    for number, cells in _rows(path):
        where = f"{path}, line {number}:"
        site = cells["site"]
        if not site:
            raise ValueError(f"{where} the site is missing")
        points = found.setdefault(site, [])
        lines.setdefault(site, number)
        point = _point(cells, where)
        if not points and point.seconds:
            raise ValueError(f"{where} the trace of {site} has to begin at 0 seconds")
        if points and point.seconds < points[-1].seconds + _LEAST_STEP:
            raise ValueError(
                f"{where} seconds of {site} is {point.seconds:g} after {points[-1].seconds:g}; "
                "each row has to be at least a millisecond later than the one before"
            )
        points.append(point)
    if not found:
        raise ValueError(f"{path} has no rows; write one for each site and time")
    for site, points in found.items():
        for way in ("up", "down"):
            if all(getattr(point, way) == 0 for point in points):
                raise ValueError(f"{path}: {way} of {site} is 0 at all times; give it a rate once")
    return LinkTraces(path, {site: tuple(points) for site, points in found.items()}, lines)


def _rows(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield the cells of each row by the names of their columns, with the number of its line.

    Raises:
        ValueError: There is a mistake in the head, or a row of another length.
    """
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file)
        head = [cell.strip() for cell in next(reader, [])]
        given = sorted(set(head))
        if len(given) < len(head) or not {"site", "seconds"} <= set(given) <= set(_KNOWN):
            raise ValueError(
                f"{path}, line 1: the columns are {', '.join(head) or 'missing'}; they have to be "
                f"site, seconds, and any of {', '.join(_COLUMNS)}, each once"
            )
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            number = reader.line_num
            if len(row) != len(head):
                raise ValueError(
                    f"{path}, line {number}: {len(row)} columns instead of {len(head)}"
                )
            yield number, dict(zip(head, (cell.strip() for cell in row), strict=True))


def _point(cells: Mapping[str, str], where: str) -> TracePoint:
    """Return the point of a row; an empty cell leaves to the job file what it stands for."""

    def read(name: str, parse: Callable[[str], float]) -> float | None:
        text = cells.get(name, "")
        try:
            return parse(text) if text else None
        except ValueError as error:
            raise ValueError(f"{where} {name} is {text!r}, and {error}") from None

    seconds = read("seconds", parse_seconds)
    if seconds is None:
        raise ValueError(f"{where} seconds is missing")
    return TracePoint(seconds, read("up", _rate), read("down", _rate), read("latency", read_delay))


def _rate(text: str) -> float:
    """Return a rate, which may be 0 for a while."""
    rate = parse_rate(text)
    if rate > MOST_RATE or 0 < rate < 1:
        raise ValueError("must be 0, or a rate from 1 bit/s to 1 Tbit/s")
    return rate


def _read(value: Any, info: ValidationInfo) -> LinkTraces:
    try:
        path = _FILE.parse(value, info)
    except ValueError as error:
        raise must_be(_FILE.allowed, str(error)) from error
    try:
        return _traces(path)
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {error}") from error
    except csv.Error as error:
        raise ValueError(f"{path} is no CSV file: {error}") from error


def _render(value: Any) -> str:
    return render_value(value.path if isinstance(value, LinkTraces) else value)


TraceFile = Annotated[
    LinkTraces,
    PlainValidator(_read),
    ValueKind(
        "the path of a CSV file with the columns site, seconds, and up, down or latency",
        render=_render,
    ),
]
"""A CSV file of traces, which is read."""
