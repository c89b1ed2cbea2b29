"""Import of code that a job file names, as `module:name` or `/path/to/file.py:name`."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple


def find_named(named: str) -> Any | None:
    """Import an object that a resolved job names, with the files beside it importable.

    Args:
        named: Place of the object, as `Factory` resolves it.

    Returns:
        The object; None if the module has no such name.

    Raises:
        Exception: Whatever the imported code raises.
    """
    where, _, name = named.rpartition(":")
    if not where.endswith(".py"):
        return getattr(importlib.import_module(where), name, None)
    path = Path(where)
    # The file must be able to import files beside itself, as a script is.
    sys.path.insert(0, str(path.parent))
    root = package_root(path)
    if root != path.parent:
        # Relative imports need the module's name within its package.
        sys.path.insert(0, str(root))
        dotted = ".".join(path.relative_to(root).with_suffix("").parts)
        return getattr(importlib.import_module(dotted), name, None)
    spec, module = _module_of(path)
    # The file's classes may be looked up by its module's name, as by pickle. An existing module of
    # that name, such as Python's own ``random``, stays.
    sys.modules.setdefault(module.__name__, module)
    assert spec.loader is not None
    spec.loader.exec_module(module)
    return getattr(module, name, None)


def package_root(path: Path) -> Path:
    """Return the folder that a file's package lies in; that of the file if it is in no package."""
    folder = path.parent
    while (folder / "__init__.py").is_file() and folder != folder.parent:
        folder = folder.parent
    return folder


def make_importable(job_folder: str | Path) -> None:
    """Have code import files of the job's folder, after those beside it and installed modules."""
    if str(job_folder) not in sys.path:
        sys.path.append(str(job_folder))


def _module_of(path: Path) -> tuple[ModuleSpec, ModuleType]:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    return spec, importlib.util.module_from_spec(spec)


class _Imported(NamedTuple):
    """File that `import_once` imported.

    Attributes:
        module: Module of the file.
        beside: Modules that it imported from its own folder, by name.
    """

    module: ModuleType
    beside: Mapping[str, ModuleType]


Imported = dict[tuple[str, bytes], _Imported]
"""Imported files, by real path and digest, so that a changed file is imported again."""

_imported: Imported = {}


def exchange_imported(files: Imported) -> Imported:
    """Take other files for those that `import_once` has imported; return those of before."""
    global _imported
    before, _imported = _imported, files
    return before


def import_once(where: str) -> ModuleType:
    """Import a module by its dotted name or its path, unless this process has it already.

    The import of a file leaves ``sys.path`` and ``sys.modules`` as they were, so that modules
    beside it are not mistaken for those of another job, and do not hide installed modules. What
    the code prints goes to stderr.

    Args:
        where: Dotted name ``package.module``, or absolute path ``/abs/path.py``.

    Raises:
        Exception: Whatever the imported code raises.
    """
    with redirect_stdout(sys.stderr):
        if not where.endswith(".py"):
            return importlib.import_module(where)
        return _imported_from(Path(where)).module


def first_on_path(path: Path) -> None:
    """Make the folder of a file that `import_once` imported the first place for its later imports.

    Args:
        path: Absolute path of the file.
    """
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules.update(_imported_from(path).beside)


def _imported_from(path: Path) -> _Imported:
    source = path.read_bytes()
    key = os.path.realpath(path), hashlib.sha256(source).digest()
    if key not in _imported:
        _imported[key] = _import_file(path, source)
    return _imported[key]


def _import_file(path: Path, source: bytes) -> _Imported:
    there = sys.modules.get(path.stem)
    if there is not None and _is_from_elsewhere(there, path):
        return _Imported(there, {})
    _, module = _module_of(path)
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
        beside = {name: sys.modules[name] for name in sys.modules if name.partition(".")[0] in own}
        for name in beside:
            del sys.modules[name]
    return _Imported(module, beside)


def _is_from_elsewhere(module: ModuleType, path: Path) -> bool:
    """Whether a module is the file at a path, imported by an ordinary import statement."""
    there = getattr(module, "__file__", None)
    if there is None or os.path.realpath(there) != os.path.realpath(path):
        return False
    return all(module is not each.module for each in _imported.values())


def _lies_in(module: ModuleType, folder: Path) -> bool:
    """Whether a top-level module is a file or a package directly in a folder."""
    spec = getattr(module, "__spec__", None)
    places = list(getattr(spec, "submodule_search_locations", None) or [])
    if not places and spec is not None and spec.origin is not None:
        places = [spec.origin]
    return any(Path(place).parent == folder for place in places)
