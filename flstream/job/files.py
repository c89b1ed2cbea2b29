"""Annotated types of keys that name files and Python code; the code is compiled, never imported."""

import importlib.util
import os
import re
import warnings
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from types import CodeType
from typing import Annotated, Any

from annotated_types import GroupedMetadata
from pydantic import AfterValidator, PlainSerializer, PlainValidator, ValidationInfo

from flstream.job.fields import Allowed, folder_of
from flstream.job.problems import Problem, RefusedValueError, did_you_mean, must_be

CHECKPOINTS = (".safetensors", ".pt", ".pth", ".bin", ".npz", ".json")
"""Suffixes of the files that weights are loaded from."""


@dataclass(frozen=True)
class ExistingFile(GroupedMetadata):
    """The path of an existing file, optionally with one of some suffixes; becomes absolute."""

    suffixes: tuple[str, ...] = ()
    what: str = ""
    """Kind of the file, in words; empty for the suffixes."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        *others, last = self.suffixes or ("",)
        kinds = f"{', '.join(others)} or {last}" if others else last
        return f"the path of an existing {self.what or kinds} file"

    def __iter__(self) -> Iterator[Any]:
        """Yield the validator, the serializer and the description."""
        yield PlainValidator(self.parse)
        yield PlainSerializer(str, when_used="json")
        yield Allowed(self.allowed)

    def parse(self, value: Any, info: ValidationInfo) -> Path:
        """Return the absolute path.

        Raises:
            ValueError: There is no such file; the message is a hint, and may be empty.
        """
        if not isinstance(value, str | Path) or not str(value):
            raise ValueError("")  # the description says all
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
        yield Allowed(lambda: self.allowed)

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
        names = _compiled(path).co_names
        if name not in names and b"import *" not in path.read_bytes():
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
        question = did_you_mean(where, [file.stem for file in folder.glob("*.py")])
        hint = f"looked for {beside}.py and for an installed module {where}"
        raise ValueError(f"{hint}; {question}" if question else hint)
    return None


def _absolute(folder: Path, path: str | Path) -> Path:
    """Return an absolute path without `..`, links as they are."""
    return Path(os.path.abspath(folder / path))


def _where(path: Path) -> str:
    """Return a clause that says where a missing file was looked for, and names a similar one."""
    if path.is_dir():
        return f"{path} is a folder"
    names = os.listdir(path.parent) if path.parent.is_dir() else []
    question = did_you_mean(path.name, names)
    return f"there is no {path}{f'; {question}' if question else ''}"


def _compiled(path: Path) -> CodeType:
    """Compile a Python file, so that its syntax errors are found before any process starts."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compile(path.read_bytes(), str(path), "exec", dont_inherit=True)
    except SyntaxError as error:
        hint = f"{path} line {error.lineno}: {error.msg}"
    except (ValueError, OSError) as error:
        hint = f"{path}: {error}"
    raise must_be("Python that parses", hint)


def _compiles(path: Path) -> Path:
    _compiled(path)
    return path


def check_installed(value: str, module: str, install: str) -> None:
    """Refuse a value that needs a library which is not installed.

    Args:
        value: The value.
        module: Top-level module of the library.
        install: Shell command that installs it.

    Raises:
        RefusedValueError: It is not installed.
    """
    if importlib.util.find_spec(module) is None:
        missing = f"given {value}, and there is no module {module}"
        raise RefusedValueError(Problem("", missing, "", f"install it: {install}"))


def _is_module(name: str) -> str:
    first, *others = name.split(".")
    if not all(part.isidentifier() for part in (first, *others)):
        raise ValueError("")
    if importlib.util.find_spec(first) is None:
        raise ValueError(f"there is no installed module {first}")
    return name


Checkpoint = Annotated[Path, ExistingFile(CHECKPOINTS)]
"""An existing file with weights."""

ScriptFile = Annotated[Path, ExistingFile(what="Python"), AfterValidator(_compiles)]
"""An existing Python file that parses."""

Modules = Annotated[
    list[Annotated[str, AfterValidator(_is_module)]],
    Allowed("a list of names of modules, such as [transformers, trl]", ("array",)),
]
"""A list of names of modules."""
