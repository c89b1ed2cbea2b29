"""Files that keys name: weights, Python code, tables in CSV; code is compiled, never imported."""

from __future__ import annotations

import csv
import importlib.util
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from importlib.machinery import PathFinder
from pathlib import Path
from types import CodeType, MappingProxyType
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from pydantic import (
    AfterValidator,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    ValidationInfo,
)

from flstream.job.fields import Allowed, Section, folder_of, in_unit
from flstream.job.keys import explain
from flstream.job.problems import Problem, RefusedValueError, did_you_mean, must_be
from flstream.units import parse_seconds

_WEIGHTS = (".safetensors", ".pt", ".pth", ".bin", ".npz", ".json")


def existing_path(value: Any, info: ValidationInfo, suffixes: tuple[str, ...] = ("",)) -> Path:
    """Return the absolute path of an existing file with one of some suffixes."""
    if not isinstance(value, str | Path) or not str(value):
        raise ValueError("")  # the description says all
    path = _absolute(folder_of(info), value)
    if not os.path.isfile(path):
        raise ValueError(_where(path))
    if not path.name.lower().endswith(suffixes):
        raise ValueError("")
    return path


def _weights(value: Any, info: ValidationInfo) -> Path:
    return existing_path(value, info, _WEIGHTS)


def _script(value: Any, info: ValidationInfo) -> Path:
    path = existing_path(value, info)
    _compiled(path)
    return path


def code_name(
    what: str,
    built_in: Callable[[], Collection[str]] = tuple,
    elsewhere: Mapping[str, str] = MappingProxyType({}),
) -> tuple[Any, ...]:
    """Return the annotations of a text: a built-in's name, or a place of code.

    Code beside the job file or in a file resolves to `/abs/path/model.py:build`, which can be
    found from anywhere; an installed module keeps its name. No code is imported. `elsewhere` has
    hints by names that are no built-in's.
    """

    def allowed() -> str:
        if names := ", ".join(built_in()):
            return f"{names}, path/to/file.py:{what} or module:{what}"
        return f"module:{what} or path/to/file.py:{what}"

    def read(value: Any, info: ValidationInfo) -> str:
        if value in list(built_in()):
            return str(value)
        where, _, name = value.rpartition(":") if isinstance(value, str) else ("", "", "")
        if not isinstance(value, str) or ":" not in value:
            name = str(value).lower()
            raise ValueError(elsewhere.get(name) or did_you_mean(name, built_in()))
        if not where or not name.isidentifier():
            raise ValueError("")
        path = _locate(where, folder_of(info))
        if path is None:
            return value
        names = _compiled(path).co_names
        if name not in names and b"import *" not in path.read_bytes():
            kind = f"the name of a {what} at the top level of {path}"
            raise must_be(kind, did_you_mean(name, names))
        return f"{path}:{name}"

    return PlainValidator(read), Allowed(allowed)


def _locate(where: str, folder: Path) -> Path | None:
    """Return the file with a piece of code; None for an installed module."""
    if where.endswith(".py") or "/" in where:
        path = _absolute(folder, where)
        if not os.path.isfile(path):
            raise ValueError(_where(path))
        return path
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", where):
        raise ValueError("")
    beside = _absolute(folder, where.replace(".", "/"))
    for path in (beside.with_name(f"{beside.name}.py"), beside / "__init__.py"):
        if os.path.isfile(path):
            return path
    # Only the first part is looked up: finding more would import it, and run its code.
    if PathFinder.find_spec(where.partition(".")[0]) is None:
        question = did_you_mean(where, [file.stem for file in folder.glob("*.py")])
        hint = f"looked for {beside}.py and for an installed module {where}"
        raise ValueError(f"{hint}; {question}" if question else hint)
    return None


def _absolute(folder: Path, path: str | Path) -> Path:
    """Return an absolute path without `..`, links as they are."""
    return Path(os.path.abspath(folder / path))


def _where(path: Path) -> str:
    """Explain where a missing file was looked for, with the name of a similar one."""
    if os.path.isdir(path):
        return f"{path} is a folder"
    names = os.listdir(path.parent) if os.path.isdir(path.parent) else []
    question = did_you_mean(path.name, names)
    return f"there is no {path}{f'; {question}' if question else ''}"


def _compiled(path: Path) -> CodeType:
    """Compile a Python file, to find its syntax errors before any process starts."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        hint = f"{path} line {error.lineno}: {error.msg}"
    except (ValueError, OSError) as error:
        hint = f"{path}: {error}"
    raise must_be("Python that parses", hint)


def csv_file(kind: type[Any], read: Callable[[Path], Any], columns: str) -> tuple[Any, ...]:
    """Return the annotations of a key that names a CSV file, and has its contents.

    Args:
        kind: Type of the contents, which have the path of their file.
        read: Function that reads them.
        columns: Words for the columns of the file.
    """

    def contents(value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, kind):
            return value
        try:
            path = existing_path(value, info, (".csv",))
        except ValueError as error:
            raise must_be("the path of an existing .csv file", str(error)) from error
        return read(path)

    words = Allowed(f"the path of a CSV file with {columns}")
    written = PlainSerializer(lambda contents: str(contents.path), when_used="json")
    return PlainValidator(contents), written, words


def csv_rows(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each row's cells by column, after a text that names file and line."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            head = [cell.strip() for cell in next(reader, [])]
            if len(set(head)) < len(head) or not head:
                columns = ", ".join(head) or "missing"
                raise ValueError(f"{path}, line 1: the columns are {columns}; name each once")
            for row in reader:
                where = f"{path}, line {reader.line_num}:"
                cells = [cell.strip() for cell in row]
                if any(cells) and len(cells) != len(head):
                    raise ValueError(f"{where} {len(cells)} columns instead of {len(head)}")
                if any(cells):
                    yield where, dict(zip(head, cells, strict=True))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(f"{path} cannot be read: {reason}") from error


def needs(extra: str, **modules: str) -> AfterValidator:
    """Return the annotation of a name that needs an installed module.

    Args:
        extra: Extra of flstream that installs the modules.
        modules: Module that each name needs; others need none.
    """

    def check(name: str) -> str:
        module = modules.get(name)
        if module and importlib.util.find_spec(module) is None:
            missing = f"given {name}, and there is no module {module}"
            hint = f"install it: pip install 'flstream[{extra}]'"
            raise RefusedValueError(Problem("", missing, "", hint))
        return name

    return AfterValidator(check)


def _is_module(name: str) -> str:
    first, *others = name.split(".")
    if not all(part.isidentifier() for part in (first, *others)):
        raise ValueError("")
    if importlib.util.find_spec(first) is None:
        raise ValueError(f"there is no installed module {first}")
    return name


_AS_TEXT = PlainSerializer(str, when_used="json")
_SUFFIXES = f"{', '.join(_WEIGHTS[:-1])} or {_WEIGHTS[-1]}"

Checkpoint = Annotated[
    Path, PlainValidator(_weights), _AS_TEXT, Allowed(f"the path of an existing {_SUFFIXES} file")
]
"""An existing file with weights."""

ScriptFile = Annotated[
    Path, PlainValidator(_script), _AS_TEXT, Allowed("the path of an existing Python file")
]
"""An existing Python file that parses."""

Factory = Annotated[str, *code_name("callable")]
"""A callable in a file or a module."""

Modules = Annotated[
    list[Annotated[str, AfterValidator(_is_module)]],
    Allowed("a list of names of modules, such as [transformers, trl]"),
]
"""A list of names of modules."""


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
