"""Names of the client API that training code uses and flstream does not have."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from flstream.job.problems import Problem, did_you_mean

_CLIENT = "flstream.client"


def unknown_names(key: str, path: Path, tree: ast.Module) -> Iterator[Problem]:
    """Yield a problem for each name of ``flstream.client`` that there is not, with its line.

    Args:
        key: Key of the job file that names the code.
        path: Path of the code.
        tree: The code.
    """
    known = _public_names()
    for line, name in sorted(set(_used_names(tree))):
        if name not in known:
            message = f"{path.name} line {line} uses {name}, which flstream.client has not"
            hint = did_you_mean(name, sorted(known))
            yield Problem(key, message, "", hint or f"it has {', '.join(sorted(known))}")


def _used_names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the lines and names of what code uses of the module."""
    bound = set(_bound_to_client(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) in bound:
            yield node.lineno, node.attr
        elif isinstance(node, ast.ImportFrom) and node.module == _CLIENT and not node.level:
            yield from ((node.lineno, alias.name) for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.startswith(f"{_CLIENT}."):
                    yield node.lineno, alias.name.split(".")[2]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith(f"{_CLIENT}."):
            yield node.lineno, (node.module or "").split(".")[2]


def _bound_to_client(tree: ast.Module) -> Iterator[str]:
    """Yield the names by which code refers to the module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name == _CLIENT:
                    yield alias.asname or _CLIENT
        elif isinstance(node, ast.ImportFrom) and node.module == "flstream":
            for alias in node.names:
                if alias.name == "client":
                    yield alias.asname or "client"


@cache
def _public_names() -> frozenset[str]:
    """Return what the module lists in ``__all__``, and its submodules; it is not imported."""
    folder = Path(__file__).parent.parent / "client"
    tree = ast.parse((folder / "__init__.py").read_bytes())
    names = {path.stem for path in folder.glob("*.py")}
    for node in tree.body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names |= set(ast.literal_eval(node.value))
    return frozenset(names - {"__init__"})
