"""Names of the client API that training code uses and flstream does not have."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from flstream.job.problems import Problem, did_you_mean

_CLIENT = "flstream.client"
_FOLDER = Path(__file__).parent.parent / "client"


class _Use(NamedTuple):
    """A name that code uses of a module: its line, the module and the name."""

    line: int
    module: str
    name: str


def unknown_names(
    key: str, path: Path, tree: ast.Module, alias: str | None = None
) -> Iterator[Problem]:
    """Yield a problem for each name that code uses of the client API and there is not.

    Args:
        key: Key of the job file that names the code.
        path: Path of the code.
        tree: The code.
        alias: The other framework whose names it may import, too.
    """
    modules = {_CLIENT: _public_names(), **_patches()}
    modules |= _aliased() if alias is not None else {}
    for line, module, name in sorted(set(_uses(tree, modules, alias))):
        known = modules.get(module)
        if known is None:
            message = f"{path.name} line {line} imports {module}, which train.alias has not"
            there = sorted(each for each in modules if _is_within(each, alias))
            yield Problem(key, message, "", f"it has {', '.join(there)}")
        elif name and name not in known:
            message = f"{path.name} line {line} uses {name}, which {module} has not"
            listed = sorted(known - _submodules() - {"*"})
            hint = did_you_mean(name, listed)
            yield Problem(key, message, "", hint or f"it has {', '.join(listed)}")


def _uses(
    tree: ast.Module, modules: Mapping[str, frozenset[str]], alias: str | None
) -> Iterator[_Use]:
    """Yield what code uses of the modules; without a name, a module that is none of them."""
    bound = dict(_bound(tree, modules))
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=value, attr=name):
                if (module := bound.get(ast.unparse(value))) is not None:
                    yield _Use(node.lineno, module, name)
            case ast.ImportFrom(module=str(module), names=names, level=0):
                if module in modules:
                    yield from (_Use(node.lineno, module, each.name) for each in names)
                elif _is_within(module, alias) and not _is_package(module, modules):
                    yield _Use(node.lineno, module, "")
                elif module.startswith(f"{_CLIENT}."):
                    yield _Use(node.lineno, _CLIENT, module.split(".")[2])
            case ast.Import(names=names):
                for each in names:
                    if each.name.startswith(f"{_CLIENT}."):
                        yield _Use(node.lineno, _CLIENT, each.name.split(".")[2])
                    elif _is_within(each.name, alias) and not (
                        each.name in modules or _is_package(each.name, modules)
                    ):
                        yield _Use(node.lineno, each.name, "")


def _bound(tree: ast.Module, modules: Mapping[str, frozenset[str]]) -> Iterator[tuple[str, str]]:
    """Yield the names by which code refers to the modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name in modules:
                    yield alias.asname or alias.name, alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if full in modules:
                    yield alias.asname or alias.name, full


def _is_within(module: str, package: str | None) -> bool:
    return package is not None and module.partition(".")[0] == package


def _is_package(module: str, modules: Mapping[str, object]) -> bool:
    return any(each.startswith(f"{module}.") for each in modules)


@cache
def _public_names() -> frozenset[str]:
    """Return what the module lists in ``__all__``, and its submodules; it is not imported."""
    listed = _literals(_FOLDER / "__init__.py")["__all__"]
    return frozenset({*_submodules(), *listed, "*"})


@cache
def _submodules() -> frozenset[str]:
    return frozenset(path.stem for path in _FOLDER.glob("*.py")) - {"__init__"}


@cache
def _aliased() -> Mapping[str, frozenset[str]]:
    """Return the modules of the alias, with their names; none of them is imported."""
    literals = _literals(_FOLDER / "alias.py")
    own = {name: _names_of(module) for name, module in literals["ALIASES"].items()}
    return own | {name: frozenset({*names, "*"}) for name, names in literals["NAMES"].items()}


@cache
def _patches() -> Mapping[str, frozenset[str]]:
    """Return the modules that have the client API and a trainer's patch, with their names."""
    modules = (f"{_CLIENT}.{name}" for name in ("hf", "lightning"))
    return {module: _public_names() | {"patch"} for module in modules}


def _names_of(module: str) -> frozenset[str]:
    if module == _CLIENT:
        return _public_names()
    if module in _patches():
        return _patches()[module]
    path = _FOLDER / f"{module.rpartition('.')[2]}.py"
    return frozenset({*_literals(path)["__all__"], "*"})


def _literals(path: Path) -> dict[str, Any]:
    """Return the values of a file's top-level names that are literals."""
    found = {}
    for node in ast.parse(path.read_bytes()).body:
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            with suppress(ValueError):
                found[node.targets[0].id] = ast.literal_eval(node.value)
    return found
