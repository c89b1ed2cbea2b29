"""CSV files with a row for each site and time, or for each site."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Generic, NamedTuple, TypeVar

from pydantic import Field, ValidationError

from flstream.job.fields import Section, in_unit
from flstream.job.files import csv_rows
from flstream.job.keys import explain
from flstream.units import parse_seconds

# Points that are closer to each other would cost more than they say.
_LEAST_STEP = 1e-3

Course = TypeVar("Course")
Row = TypeVar("Row", bound=Section)


class Traces(NamedTuple, Generic[Course]):
    """Contents of a file of traces.

    Attributes:
        path: Absolute path of the file.
        sites: What the file says of each site, by its name.
    """

    path: Path
    sites: Mapping[str, Course]


class TraceRow(Section):
    """Row of a file of traces."""

    site: Annotated[str, Field(min_length=1)]
    seconds: Annotated[float, *in_unit(parse_seconds, float, "a duration, such as 10 s")]


Timed = TypeVar("Timed", bound=TraceRow)


def read_row(kind: type[Row], where: str, cells: Mapping[str, str]) -> Row:
    """Read the cells of a row by their columns; an empty cell is left out.

    Raises:
        ValueError: A cell is wrong; the message begins with the place of the row.
    """
    try:
        return kind.model_validate({name: cell for name, cell in cells.items() if cell})
    except ValidationError as error:
        raise ValueError(f"{where} {explain(error, kind, cells)[0]}") from None


def read_traces(path: Path, kind: type[Timed]) -> dict[str, list[Timed]]:
    """Read the rows of each site of a file of traces, in the order of time."""
    traces: dict[str, list[Timed]] = {}
    for where, cells in csv_rows(path):
        row = read_row(kind, where, cells)
        rows = traces.setdefault(row.site, [])
        if not rows and row.seconds:
            raise ValueError(f"{where} the trace of {row.site} has to begin at 0 seconds")
        if rows and row.seconds < rows[-1].seconds + _LEAST_STEP:
            raise ValueError(
                f"{where} seconds of {row.site} is {row.seconds:g} after {rows[-1].seconds:g}; "
                "each row has to be at least a millisecond later than the one before"
            )
        rows.append(row)
    if not traces:
        raise ValueError(f"{path} has no rows; write one for each site and time")
    return traces
