"""Variables that a script keeps from one task to the next, found by parsing it; no code is run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

# Parts of the names of what has a state that its use changes.
_STATEFUL = ("optim.", "lr_scheduler.", "torch.Generator", "default_rng")
# What changes the object that a variable holds.
_CHANGES = frozenset({"step", "append", "extend", "add", "update", "setdefault", "insert"})


def kept_variables(script: Path) -> list[str]:
    """Return the names of variables that carry something from one task of a loop to the next.

    They are bound before the loop over ``is_running()``, or that calls ``receive()``, and the loop
    reads them before it binds them again, changes what they hold (``optimizer.step()``), or uses an
    optimizer, a scheduler or a generator that was made before it. What functions change that the
    loop calls, and what attributes hold, is not seen.

    Args:
        script: Path of the script. One that cannot be read has none.
    """
    names: dict[str, None] = {}
    with suppress(OSError, SyntaxError, ValueError):
        tree = ast.parse(script.read_bytes())
        optimizers = set(_imported_from(tree, "torch.optim"))
        for scope in ast.walk(tree):
            if isinstance(scope, ast.Module | ast.FunctionDef):
                names |= dict.fromkeys(_kept_in(scope, optimizers))
    return list(names)


def _kept_in(scope: ast.Module | ast.FunctionDef, optimizers: set[str]) -> Iterator[str]:
    for loop, before in _loops(scope.body, []):
        bound = {name for each in before for name, is_read in _uses(each) if not is_read}
        stateful = {name for each in before for name in _stateful(each, optimizers)}
        first: dict[str, bool] = {}
        written = set()
        for statement in loop.body:
            for name, is_read in _uses(statement):
                first.setdefault(name, is_read)
                if not is_read:
                    written.add(name)
        changed = {name for statement in loop.body for name in _changed(statement)}
        kept = {name for name in written if first[name]} | changed | (stateful & first.keys())
        yield from (name for name in first if name in bound & kept)


def _loops(
    body: Sequence[ast.stmt], before: Sequence[ast.stmt]
) -> Iterator[tuple[ast.While, list[ast.stmt]]]:
    """Yield the loops over tasks in statements and in blocks of theirs, and what is run before."""
    for place, node in enumerate(body):
        earlier = [*before, *body[:place]]
        if isinstance(node, ast.While) and _asks_for_tasks(node):
            yield node, earlier
        elif isinstance(node, ast.If | ast.With | ast.Try | ast.For):
            if isinstance(node, ast.With):
                earlier.append(ast.With(node.items, []))
            for block in ("body", "orelse", "finalbody"):
                yield from _loops(getattr(node, block, []), earlier)


def _asks_for_tasks(loop: ast.While) -> bool:
    if "is_running" in ast.unparse(loop.test):
        return True
    calls = (each.func for each in ast.walk(loop) if isinstance(each, ast.Call))
    return any(ast.unparse(each).rpartition(".")[2] == "receive" for each in calls)


def _uses(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield each use of a name in the order of evaluation, and whether it is read."""
    match node:
        case ast.FunctionDef() | ast.ClassDef() | ast.Lambda():
            return
        case ast.Name(id=name, ctx=context):
            yield name, isinstance(context, ast.Load)
        case ast.Assign(targets=targets, value=value):
            for each in (value, *targets):
                yield from _uses(each)
        case ast.AugAssign(target=ast.Name(id=name), value=value):
            yield name, True
            yield from _uses(value)
            yield name, False
        case ast.AnnAssign(target=target, value=ast.expr() as value):
            yield from _uses(value)
            yield from _uses(target)
        case _:
            for child in ast.iter_child_nodes(node):
                yield from _uses(child)


def _changed(statement: ast.AST) -> Iterator[str]:
    """Yield the names whose objects a statement changes."""
    for node in ast.walk(statement):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr=method)):
                if method in _CHANGES:
                    yield name
            case ast.Call(func=ast.Name(id="next"), args=[ast.Name(id=name), *_]):
                yield name
            case ast.Subscript(value=ast.Name(id=name), ctx=ast.Store()):
                yield name


def _stateful(statement: ast.AST, imported: set[str]) -> Iterator[str]:
    """Yield the names that a statement binds to an optimizer, a scheduler or a generator."""
    match statement:
        case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=function)):
            made = ast.unparse(function)
        case ast.AnnAssign(target=ast.Name(id=name), value=ast.Call(func=function)):
            made = ast.unparse(function)
        case _:
            return
    if made in imported or any(each in made for each in _STATEFUL):
        yield name


def _imported_from(tree: ast.Module, package: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(package):
            yield from (alias.asname or alias.name for alias in node.names)
