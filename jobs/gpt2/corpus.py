"""Texts that every Python installation carries: the docstrings of its standard library."""

import ast
import sysconfig
from pathlib import Path

# Packages with enough text, of which each site gets its own.
PACKAGES = (
    "asyncio", "email", "unittest", "importlib", "logging", "http", "xml", "urllib",
    "concurrent", "json", "xmlrpc", "wsgiref", "multiprocessing", "collections", "ctypes", "re",
)  # fmt: skip
SHORTEST = 60


def texts(package: str) -> list[str]:
    """The docstrings of a package of the standard library, in a fixed order."""
    folder = Path(sysconfig.get_path("stdlib")) / package
    found = []
    for path in sorted(folder.rglob("*.py")):
        if "test" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node) or ""
                if len(text) >= SHORTEST:
                    found.append(text)
    return found


def packages_of(index: int, count: int) -> tuple[str, ...]:
    """The packages of one site of so many, by its place among them."""
    return tuple(PACKAGES[place] for place in range(index % len(PACKAGES), len(PACKAGES), count))
