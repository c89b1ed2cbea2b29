"""Kinds of values that name files and Python code; the code is parsed, never imported."""

import ast
import importlib.util
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Annotated, Any

from annotated_types import GroupedMetadata
from pydantic import AfterValidator, PlainValidator, ValidationInfo

from flstream.job.annotations import ValueKind
from flstream.job.problems import Problem, RefusedValueError, did_you_mean, must_be
from flstream.job.rules import folder_of

CHECKPOINTS = (".safetensors", ".pt", ".pth", ".bin", ".npz", ".json")
"""Suffixes of the files that weights are loaded from."""


@dataclass(frozen=True)
class ExistingFile(GroupedMetadata):
    """The path of an existing file, optionally with one of some suffixes; becomes absolute."""

    suffixes: tuple[str, ...] = ()
    what: str = ""
    """What the file is, in words; empty for what its suffixes say."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        *others, last = self.suffixes or ("",)
        kinds = f"{', '.join(others)} or {last}" if others else last
        return f"the path of an existing {self.what or kinds} file"

    def __iter__(self) -> Iterator[Any]:
        """Yield the validator, and the description."""
        yield PlainValidator(self.parse)
        yield ValueKind(self.allowed)

    def parse(self, value: Any, info: ValidationInfo) -> Path:
        """Return the absolute path.

        Raises:
            ValueError: There is no such file; the message is a hint, and may be empty.
        """
        if not isinstance(value, str | Path) or not str(value):
            raise ValueError("")  # its kind says all there is to say
        path = _absolute(folder_of(info), value)
        if not path.is_file():
            raise ValueError(_where(path))
        if not path.name.lower().endswith(self.suffixes or ("",)):
            raise ValueError("")
        return path


@dataclass(frozen=True)
class CodeName(GroupedMetadata):
    """The name of a built-in, or something callable in a file or a module.

    Code beside the job file or in a file resolves to `/abs/path/model.py:build`, which can be
    found from anywhere; an installed module keeps its name. No code is imported.
    """

    what: str = "callable"
    built_in: Callable[[], Collection[str]] = tuple
    """Returns the names of the built-ins."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        if built_in := ", ".join(self.built_in()):
            return f"{built_in}, path/to/file.py:{self.what} or module:{self.what}"
        return f"module:{self.what} or path/to/file.py:{self.what}"

    def __iter__(self) -> Iterator[Any]:
        """Yield the validator, and the description."""
        yield PlainValidator(lambda value, info: self.parse(value, folder_of(info)))
        yield ValueKind(lambda: self.allowed)

    def parse(self, value: Any, folder: Path) -> str:
        """Return a built-in's name, or the place of the code in its absolute form.

        Raises:
            ValueError: It is neither; the message is a hint, and may be empty.
        """
        if value in list(self.built_in()):
            return str(value)
        where, _, name = value.rpartition(":") if isinstance(value, str) else ("", "", "")
        if not isinstance(value, str) or ":" not in value:
            raise ValueError(did_you_mean(str(value).lower(), self.built_in()))
        if not where or not name.isidentifier():
            raise ValueError("")
        path = _locate(where, folder)
        if path is None:
            return value
        names = top_level_names(_syntax(path).body)
        if name not in names and "*" not in names:
            allowed = f"the name of a {self.what} at the top level of {path}"
            raise must_be(allowed, did_you_mean(name, names))
        return f"{path}:{name}"


def _locate(where: str, folder: Path) -> Path | None:
    """Return the file that holds code, None where it is an installed module."""
    if where.endswith(".py") or "/" in where:
        path = _absolute(folder, where)
        if not path.is_file():
            raise ValueError(_where(path))
        return path
    if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", where):
        raise ValueError("")
    beside = _absolute(folder, where.replace(".", "/"))
    for path in (beside.with_name(f"{beside.name}.py"), beside / "__init__.py"):
        if path.is_file():
            return path
    # Only the first part is looked up: finding more would import it, and run its code.
    if PathFinder.find_spec(where.partition(".")[0]) is None:
        near = get_close_matches(where, [file.stem for file in folder.glob("*.py")], n=1)
        hint = f"looked for {beside}.py and for an installed module {where}"
        raise ValueError("; ".join([hint, *(f"did you mean {n}?" for n in near)]))
    return None


def _absolute(folder: Path, path: str | Path) -> Path:
    """Return an absolute path without `..`, links as they are."""
    return Path(os.path.abspath(folder / path))


def _where(path: Path) -> str:
    """Return a clause that says where a missing file was looked for, and names a similar one."""
    if path.is_dir():
        return f"{path} is a folder"
    there = os.listdir(path.parent) if path.parent.is_dir() else []
    question = did_you_mean(path.name, there)
    return f"there is no {path}{f'; {question}' if question else ''}"


def _syntax(path: Path) -> ast.Module:
    """Parse a Python file, so that its syntax errors are found before any process starts."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        hint = f"{path} line {error.lineno}: {error.msg}"
    except (ValueError, OSError) as error:
        hint = f"{path}: {error}"
    raise must_be("Python that parses", hint)


def top_level_names(body: Iterable[ast.stmt]) -> set[str]:
    """Return the names that a module binds; `*` is among them for a star import."""
    return {name for statement in body for name in _bound(statement)}


def _bound(statement: ast.stmt) -> Iterator[str]:
    match statement:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in aliases)
        case ast.Assign(targets=targets):
            yield from (n.id for t in targets for n in ast.walk(t) if isinstance(n, ast.Name))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name
        case ast.If() | ast.Try() | ast.With():
            for inner in ast.iter_child_nodes(statement):
                if isinstance(inner, ast.stmt):
                    yield from _bound(inner)
                elif isinstance(inner, ast.ExceptHandler):
                    yield from top_level_names(inner.body)


def check_installed(value: str, module: str, install: str) -> None:
    """Refuse a value that needs a library which is not installed.

    Args:
        value: The value.
        module: Top-level module of the library.
        install: What installs it, as on a shell.

    Raises:
        RefusedValueError: It is not installed.
    """
    if importlib.util.find_spec(module) is None:
        missing = f"given {value}, and there is no module {module}"
        raise RefusedValueError(Problem("", missing, "", f"install it: {install}"))


def _parses(path: Path) -> Path:
    _syntax(path)
    return path


def _is_module(name: str) -> str:
    parts = name.split(".")
    if not all(part.isidentifier() for part in parts):
        raise ValueError("")
    if importlib.util.find_spec(parts[0]) is None:
        raise ValueError(f"there is no installed module {parts[0]}")
    return name


Checkpoint = Annotated[Path, ExistingFile(CHECKPOINTS)]
"""An existing file with weights."""

ScriptFile = Annotated[Path, ExistingFile(what="Python"), AfterValidator(_parses)]
"""An existing Python file that parses."""

Modules = Annotated[
    list[Annotated[str, AfterValidator(_is_module)]],
    ValueKind("a list of names of modules", "[transformers, trl]"),
]
"""A list of names of modules."""
