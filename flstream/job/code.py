"""Import of code by its place: `module:name` or `/path/to/file.py:name`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import traceback
from collections.abc import Mapping
from contextlib import redirect_stdout, suppress
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

from flstream.debugging import sentence
from flstream.errors import UsageError
from flstream.job.problems import Problem, RefusedValueError, did_you_mean, given_clause


def load(named: str) -> Any:
    """Import an object of a user's code; the files beside it stay importable.

    Args:
        named: Place of the object: ``/abs/file.py:name`` or ``package.module:name``.

    Raises:
        UsageError: The module has no such name.
        Exception: Whatever the imported code raises.
    """
    where, _, name = named.rpartition(":")
    path = Path(where)
    if not where.endswith(".py"):
        module = importlib.import_module(where)
    elif (root := package_root(path)) != path.parent:
        # Relative imports need the module's name within its package.
        sys.path[:0] = [str(root), str(path.parent)]
        module = importlib.import_module(".".join(path.relative_to(root).with_suffix("").parts))
    else:
        module = import_once(str(path))
        if str(path.parent) not in sys.path:
            sys.path.insert(0, str(path.parent))
        sys.modules.update(_imported_from(path).beside)
    if hasattr(module, name):
        return getattr(module, name)
    hint = did_you_mean(name, vars(module))
    lack = f"{named}: {where} has no {name!r} at its top level"
    raise UsageError("; ".join(filter(None, (lack, hint))))


def make(named: str, arguments: Mapping[str, Any], *first: Any) -> Any:
    """Make an object by a class or a function of a user's code.

    Args:
        named: Place of the class; see :func:`load`.
        arguments: Keyword arguments of the class.
        first: Positional arguments of the class.

    Raises:
        UsageError: There is no such class.
        Exception: Whatever its code raises.
    """
    factory = load(named)
    if not callable(factory):
        raise UsageError(f"{named} is a {type(factory).__name__}; name a class or a function")
    return factory(*first, **arguments)


def find(place: str, what: str) -> Any:
    """Import an object that a job file names, unless this process has it already.

    Args:
        place: Place of the object: ``package.module:name`` or ``/abs/path.py:name``.
        what: Kind of the object, such as ``function``, for messages.

    Raises:
        RefusedValueError: Its module cannot be imported, or has no such name.
    """
    where, _, name = place.rpartition(":")
    try:
        module = import_once(where)
    except (Exception, SystemExit) as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        hint = sentence(error, Path(where), f"{Path(last.filename).name}, line {last.lineno}")
        if isinstance(error, ModuleNotFoundError):
            hint += "; install it where flstream is, or put it beside the file"
        allowed = "in Python that can be imported"
        raise RefusedValueError(Problem("", given_clause(place), allowed, hint)) from error
    if not hasattr(module, name):
        allowed = f"the name of a {what} at the top level of {where}"
        hint = did_you_mean(name, vars(module))
        raise RefusedValueError(Problem("", given_clause(place), allowed, hint))
    return getattr(module, name)


def check(value: Any, named: str, *protocols: type) -> Any:
    """Return an object, or the class of an object, that follows one of some protocols.

    Args:
        value: The object, or the class.
        named: Place of its code, for the message.
        protocols: The protocols; their own methods count, with the positional arguments they take.

    Raises:
        UsageError: It follows none; the message names the methods that it has to have.
    """
    if not misfit(value, *protocols):
        return value
    kind = "a class" if isinstance(value, type) else f"a {type(value).__name__}"
    raise UsageError(f"{named} is {kind}; it must be {described(*protocols)}")


def misfit(value: Any, *protocols: type) -> str:
    """Return why a value follows none of some protocols; empty if it follows one."""
    methods = [_methods(protocol) for protocol in protocols]
    if any(all(_takes(value, *method) for method in listed) for listed in methods):
        return ""
    lacking = []
    for name, arguments in chain(*methods):
        method = getattr(value, name, None)
        if method is None:
            lacking.append(name)
        elif not callable(method):
            return f"its {name} is not a method"
        elif not _takes(value, name, arguments):
            with suppress(TypeError, ValueError):
                return f"its {name} takes {inspect.signature(method)}"
            return f"its {name} does not say what it takes; write it with def"
    owner = value if isinstance(value, type) else type(value)
    return f"{owner.__name__} lacks {', '.join(lacking)}"


def described(*protocols: type) -> str:
    """Describe the values that follow one of some protocols, after "must be"."""
    kinds = []
    for protocol in protocols:
        methods = [(name, ", ".join(arguments)) for name, arguments in _methods(protocol)]
        if [name for name, _ in methods] == ["__call__"]:
            kinds.append(f"a function of ({methods[0][1]})")
            continue
        *others, last = [f"{name}({arguments})" for name, arguments in methods]
        first = f"{', '.join(others)} and " if others else ""
        kinds.append(f"{'one' if kinds else 'a class'} with {first}{last}")
    return " or ".join(kinds)


def _methods(protocol: type) -> list[tuple[str, list[str]]]:
    """Return the methods that a protocol declares, with the names of their arguments."""
    return [
        (name, list(inspect.signature(method).parameters)[1:])
        for name, method in vars(protocol).items()
        if inspect.isfunction(method) and (name == "__call__" or not name.startswith("_"))
    ]


def _takes(value: Any, name: str, arguments: list[str]) -> bool:
    is_class = isinstance(value, type)
    # The attribute __call__ of a class is that of its metaclass, which makes its objects.
    method = value if name == "__call__" and not is_class else getattr(value, name, None)
    if method is None or (is_class and name not in dir(value)):
        return False
    is_unbound = is_class and inspect.isfunction(inspect.getattr_static(value, name))
    try:
        inspect.signature(method).bind(*(["self"] if is_unbound else []), *arguments)
    except (TypeError, ValueError):
        return False
    return True


def package_root(path: Path) -> Path:
    """Return the folder of a file's package; the file's own without a package."""
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    return folder


def file_of(place: str) -> Path | None:
    """Return the file of a place of code, ``/path/to/file.py:name``; None in a module."""
    where = place.rpartition(":")[0]
    return Path(where) if where.endswith(".py") else None


def make_importable(job_folder: str | Path) -> None:
    """Make files of the job's folder importable, after files beside the code."""
    if str(job_folder) not in sys.path:
        sys.path.append(str(job_folder))


class _Imported(NamedTuple):
    """Module of a file, and the modules that it imported from its own folder, by name."""

    module: ModuleType
    beside: Mapping[str, ModuleType]


Imported = dict[tuple[str, bytes], _Imported]
"""Imported files, by real path and digest, so that a changed file is imported again."""

_imported: Imported = {}


def exchange_imported(files: Imported) -> Imported:
    """Replace the imported files of user code; return the earlier ones."""
    global _imported
    before, _imported = _imported, files
    return before


def import_once(where: str) -> ModuleType:
    """Import a module by its dotted name or path, once in this process.

    The import of a file leaves ``sys.path`` and ``sys.modules`` as they were, so that modules
    beside it are not mistaken for those of another job, and do not hide installed modules. What
    the code prints goes to stderr.
    """
    if where in sys.modules:
        return importlib.import_module(where)  # waits where another thread is importing it
    with redirect_stdout(sys.stderr):
        if not where.endswith(".py"):
            return importlib.import_module(where)
        return _imported_from(Path(where)).module


def _imported_from(path: Path) -> _Imported:
    source = path.read_bytes()
    key = os.path.realpath(path), hashlib.sha256(source).digest()
    if key not in _imported:
        _imported[key] = _import_file(path, source)
    return _imported[key]


def _import_file(path: Path, source: bytes) -> _Imported:
    loaded = sys.modules.get(path.stem)
    if loaded is not None and _is_from_elsewhere(loaded, path):
        return _Imported(loaded, {})
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    before = set(sys.modules)
    sys.path.insert(0, str(path.parent))
    sys.modules.setdefault(path.stem, module)
    try:
        # Not by its loader, which may use a cached bytecode file of the earlier contents.
        exec(compile(source, str(path), "exec"), vars(module))
    finally:
        sys.path.remove(str(path.parent))
        new = {name.partition(".")[0] for name in set(sys.modules) - before} - before
        own = {name for name in new if _lies_in(sys.modules[name], path.parent)}
        modules = sys.modules.copy()  # other threads may import meanwhile
        beside = {name: it for name, it in modules.items() if name.partition(".")[0] in own}
        for name in beside:
            del sys.modules[name]
    return _Imported(module, beside)


def _is_from_elsewhere(module: ModuleType, path: Path) -> bool:
    """Return whether an ordinary import statement imported the file at a path."""
    file = getattr(module, "__file__", None)
    if file is None or os.path.realpath(file) != os.path.realpath(path):
        return False
    return all(module is not imported.module for imported in _imported.values())


def _lies_in(module: ModuleType, folder: Path) -> bool:
    """Return whether a top-level module lies directly in a folder."""
    spec = getattr(module, "__spec__", None)
    places = list(getattr(spec, "submodule_search_locations", None) or [])
    if not places and spec is not None and spec.origin is not None:
        places = [spec.origin]
    return any(Path(place).parent == folder for place in places)
