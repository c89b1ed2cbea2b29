"""Rules for keys that name files and Python code; the code is parsed, never imported."""

import ast
import importlib.util
import os
import re
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from flstream.job.problems import Problem, did_you_mean, given
from flstream.job.rules import ValueRule, refuse


@dataclass(frozen=True)
class File(ValueRule):
    """An existing file, optionally with one of some suffixes; resolves to an absolute path."""

    suffixes: tuple[str, ...] = ()

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        if not self.suffixes:
            return "the path of an existing file"
        *others, last = self.suffixes
        kinds = f"{', '.join(others)} or {last}" if others else last
        return f"the path of an existing {kinds} file"

    def parse(self, value: Any, folder: Path) -> Path:
        """Return the absolute path."""
        if not isinstance(value, str | Path) or not str(value):
            raise self.refused(value)
        path = _absolute(folder, value)
        if not path.is_file():
            raise self.refused(value, _where(path))
        if self.suffixes and not path.name.lower().endswith(self.suffixes):
            raise self.refused(value)
        return path


@dataclass(frozen=True)
class ScriptFile(File):
    """An existing Python file that parses."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return "the path of an existing Python file"

    def parse(self, value: Any, folder: Path) -> Path:
        """Return the absolute path."""
        path = super().parse(value, folder)
        _syntax(path, value)
        return path


@dataclass(frozen=True)
class Factory(ValueRule):
    """Something callable in a module beside the job file, in a file, or in an installed module.

    Code beside the job file or in a file resolves to `/abs/path/model.py:build`, which can be
    found from anywhere; an installed module keeps its name.
    """

    what: str = "callable"

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return f"module:{self.what} or path/to/file.py:{self.what}"

    def parse(self, value: Any, folder: Path) -> str:
        """Return the factory in its absolute form."""
        where, _, name = value.rpartition(":") if isinstance(value, str) else ("", "", "")
        if not where or not name.isidentifier():
            raise self.refused(value)
        path = self._locate(value, where, folder)
        if path is None:
            return str(value)
        names = top_level_names(_syntax(path, value).body)
        if name not in names and "*" not in names:
            raise refuse(
                Problem(
                    "",
                    given(value),
                    f"the name of a {self.what} at the top level of {path}",
                    did_you_mean(name, names),
                )
            )
        return f"{path}:{name}"

    def _locate(self, value: str, where: str, folder: Path) -> Path | None:
        """Return the file that holds the code, None where it is an installed module."""
        if where.endswith(".py") or "/" in where:
            path = _absolute(folder, where)
            if not path.is_file():
                raise self.refused(value, _where(path))
            return path
        if not re.fullmatch(r"[^\W\d]\w*(\.[^\W\d]\w*)*", where):
            raise self.refused(value)
        beside = _absolute(folder, where.replace(".", "/"))
        for path in (beside.with_name(f"{beside.name}.py"), beside / "__init__.py"):
            if path.is_file():
                return path
        # Only the first part is looked up: finding more would import it, and run its code.
        if PathFinder.find_spec(where.partition(".")[0]) is None:
            near = get_close_matches(where, [file.stem for file in folder.glob("*.py")], n=1)
            hint = f"looked for {beside}.py and for an installed module {where}"
            raise self.refused(value, "; ".join([hint, *(f"did you mean {n}?" for n in near)]))
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


def _syntax(path: Path, value: Any) -> ast.Module:
    """Parse a Python file, so that its syntax errors are found before any process starts."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(path.read_bytes(), filename=str(path))
    except SyntaxError as error:
        hint = f"{path} line {error.lineno}: {error.msg}"
    except (ValueError, OSError) as error:
        hint = f"{path}: {error}"
    raise refuse(Problem("", given(value), "Python that parses", hint))


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


@dataclass(frozen=True)
class Modules(ValueRule):
    """A list of names of modules."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return "a list of names of modules"

    def parse(self, value: Any, folder: Path) -> list[str]:
        """Return the names."""
        if not isinstance(value, list):
            raise self.refused(value, "write [transformers, trl]")
        for each in value:
            parts = each.split(".") if isinstance(each, str) else [""]
            if not all(part.isidentifier() for part in parts):
                raise self.refused(each)
            if importlib.util.find_spec(parts[0]) is None:
                raise self.refused(each, f"there is no installed module {parts[0]}")
        return value
