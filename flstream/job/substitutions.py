"""Resolution of each `${X}` in a parsed job file, once all overrides are in their places.

pyhocon's own resolution depends on the order of the keys, stops at the first name that nothing
sets, and knows of no overrides. Here a name is looked up when a value needs it, as deep as its path
goes, so that what an override replaces is never read. Joining of parts (`a ${b}`, `${c} { d = 1 }`)
stays pyhocon's.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyhocon.config_tree import ConfigSubstitution, ConfigTree, ConfigValues, NoneValue
from pyhocon.exceptions import ConfigException, ConfigWrongTypeException

from flstream.job.key import split_index
from flstream.job.problems import Problem

# A name that nothing sets stays in its value between two of these characters, from a private area
# of Unicode, so that the key with that value is known afterwards.
_MARK = "\uf8ff"
_MARKED = re.compile(f"{_MARK}([^{_MARK}]*){_MARK}")

Names = tuple[str, ...]
"""Names from a section down to a key; empty for the section itself."""


class _Absent:
    """Value of a key that is not there."""


_ABSENT = _Absent()


class _CycleError(ConfigException):  # type: ignore[misc]
    """A value needs itself."""


@dataclass(frozen=True, eq=False)
class _Override:
    """A value in place of another one, or of a part of it."""

    key: str
    """Dotted key, for messages."""
    below: Any
    """What the file has there; absent for nothing."""
    place: tuple[str | int, ...]
    """Names and indexes from that value down to the part; empty for all of it."""
    value: Any
    """Parsed value; its `${X}` are unresolved."""


def put_override(tree: ConfigTree, key: str, value: Any) -> None:
    """Put an override into a parsed job file, in place of what the file has there.

    Args:
        tree: Content of the file, unresolved.
        key: Dotted key, whose first name may have an index: `workflow[1].args.mu`.
        value: Parsed value, unresolved; its `${X}` may refer to what it replaces.
    """
    first, *parts = key.split(".")
    name, index = split_index(first)
    place: list[str | int] = [name, *([] if index is None else [index]), *parts]
    section = tree
    while isinstance(child := _child(section, str(place[0])), ConfigTree) and len(place) > 1:
        if isinstance(place[1], int):
            break
        section = child
        del place[0]
    section[str(place[0])] = _Override(key, child, tuple(place[1:]), value)


class Resolver:
    """Resolver of a parsed job file.

    Args:
        root: Content of the file, with overrides put into it.

    Attributes:
        problems: Overrides that fit nowhere.
    """

    def __init__(self, root: ConfigTree) -> None:
        self.problems: list[Problem] = []
        self._root = root
        self._known: dict[tuple[int, Names], Any] = {}
        # What is being resolved: by its id, and which part of it.
        self._under_way: list[tuple[int, Names]] = []

    def resolve(self) -> ConfigTree:
        """Return the content without substitutions; names that nothing sets are marked.

        Raises:
            ConfigException: A value needs itself, or parts of different kinds are joined.
        """
        return self._get(self._root, ())

    def _get(self, node: Any, path: Names) -> Any:
        """Return the resolved value at a path inside a parsed one."""
        match node:
            case _Override():
                return self._overridden(node, path)
            case ConfigValues():
                return self._joined(node, path)
            case ConfigTree() if path:
                return self._get(_child(node, path[0]), path[1:])
            case ConfigTree():
                return _tree({key: self._get(_child(node, key), ()) for key in node})
            case list() if not path:
                values = [self._get(inner, ()) for inner in node]
                return [value for value in values if value is not _ABSENT]
        return _ABSENT if path else node

    def _overridden(self, node: _Override, path: Names) -> Any:
        if [key for key, _ in self._under_way[-2:-1]] == [id(node)]:
            return self._get(node.below, path)  # its own value asks for what it replaces
        if path and node.place and isinstance(node.place[0], int):
            return self._get(self._overridden(node, ()), path)
        depth = len(node.place)
        if path[:depth] == node.place:
            value = self._value_of(node, path[depth:])
            return self._get(node.below, path) if value is _ABSENT and path == node.place else value
        if node.place[: len(path)] == path:
            below, value = self._get(node.below, path), self._value_of(node, ())
            return below if value is _ABSENT else self._changed(node, len(path), below, value)
        return self._get(node.below, path)

    def _value_of(self, node: _Override, path: Names) -> Any:
        self._under_way.append((id(node), path))
        try:
            return self._get(node.value, path)
        finally:
            self._under_way.pop()

    def _changed(self, node: _Override, depth: int, below: Any, value: Any) -> Any:
        """Return the value below an override, changed at its place."""
        place = list(node.place[depth:])
        first = node.key.partition(".")[0]
        name, index = split_index(first)
        problem = None
        # Only the first name of a key may be that of a list.
        is_whole = len(place) == node.key.count(".") + (index is not None)
        if is_whole and isinstance(below, list):
            if index is None or index >= len(below):
                allowed = f"one of {name}[0] to {name}[{len(below) - 1}], since {name} is a list"
                problem = Problem(node.key, f"{first} is given", allowed)
        elif is_whole and index == 0:
            del place[0]  # the only workflow need not be in a list
        elif is_whole and index is not None:
            allowed = f"{name}, since it is not a list"
            problem = Problem(node.key, f"{first} is given", allowed)
        if problem is not None:
            self.problems.append(problem)
            return below
        return _with(below, place, value)

    def _joined(self, node: ConfigValues, path: Names) -> Any:
        """Return the joined parts of a value, or the value at a path inside them."""
        key = id(node), path
        if key in self._known:
            return self._known[key]
        if key in self._under_way:
            if key != self._under_way[-1] or node.overridden_value is None:
                raise _CycleError("Check for cycles.")
            return self._get(node.overridden_value, path)  # as in `a = 1, a = ${a}2`
        self._under_way.append(key)
        try:
            value = self._inside(node, path) if path else self._whole(node)
        finally:
            self._under_way.pop()
        self._known[key] = value
        return value

    def _whole(self, node: ConfigValues) -> Any:
        values: list[Any] = []
        for token in node.tokens:
            is_name = isinstance(token, ConfigSubstitution)
            value = self._named(token) if is_name else self._get(token, ())
            if value is not _ABSENT:
                values.append((value, token.ws if is_name else ""))
        before = _ABSENT if node.overridden_value is None else node.overridden_value
        if not values:
            return self._get(before, ())
        if len(values) == 1 and not isinstance(values[0][0], ConfigTree):
            tokens = [values[0][0]]
        else:
            tokens = [_with_space(value, ws) for value, ws in values[:-1]]
            tokens.append(_with_space(values[-1][0], ""))
        joined = ConfigValues(tokens, node._instring, node._loc)
        if isinstance(values[0][0], ConfigTree):
            joined.overridden_value = self._get(before, ())
        try:
            return joined.transform()
        except ConfigWrongTypeException:
            marks = [value for value, _ in values if isinstance(value, str) and _MARK in value]
            if not marks:
                raise
            return marks[0]  # it fails only because of that name

    def _inside(self, node: ConfigValues, path: Names) -> Any:
        parts = [_ABSENT if node.overridden_value is None else node.overridden_value, *node.tokens]
        values: list[Any] = []
        for part in parts:
            try:
                is_name = isinstance(part, ConfigSubstitution)
                value = self._looked_up(part, path) if is_name else self._get(part, path)
            except _CycleError:
                value = _ABSENT  # another part may have it
            if value is not _ABSENT:
                values.append(value)
        return _merged(values) if values else _ABSENT

    def _looked_up(self, name: ConfigSubstitution, inside: Names = ()) -> Any:
        return self._get(self._root, (*ConfigTree.parse_key(name.variable), *inside))

    def _named(self, name: ConfigSubstitution) -> Any:
        """Return the value of a name: of the file or, failing that, of the environment."""
        cycle = None
        try:
            value = self._looked_up(name)
        except _CycleError as error:
            value, cycle = _ABSENT, error
        if value is not _ABSENT:
            return value
        value = os.environ.get(name.variable)
        if value is not None:
            return value
        if name.optional:
            return _ABSENT
        if cycle is not None:
            raise _CycleError(f"Cannot resolve ${{{name.variable}}}. Check for cycles.") from None
        return f"{_MARK}{name.variable}{_MARK}"


def unresolved_in(key: str, value: Any) -> list[Problem]:
    """Return a problem for each `${X}` in a value that neither file nor environment sets."""
    if isinstance(value, dict):
        return [
            problem
            for name, inner in value.items()
            for problem in unresolved_in(f"{key}.{name}".lstrip("."), inner)
        ]
    if isinstance(value, list):
        return [problem for inner in value for problem in unresolved_in(key, inner)]
    names = _MARKED.findall(value) if isinstance(value, str) else []
    return [_unresolved(key, name) for name in dict.fromkeys(names)]


def _unresolved(key: str, name: str) -> Problem:
    hint = f"set the environment variable {name}, or write ${{?{name}}} if it may be absent"
    return Problem(key, f"${{{name}}} is set neither in the file nor in the environment", "", hint)


def _child(tree: ConfigTree, name: str) -> Any:
    """Return the value of a key as it is stored; pyhocon's own `get` splits a key at its dots."""
    return dict.get(tree, name, _ABSENT)


def _tree(values: dict[str, Any]) -> ConfigTree:
    tree = ConfigTree()
    for key, value in values.items():
        if value is not _ABSENT:
            tree[key] = value
    return tree


def _with(base: Any, place: Sequence[str | int], value: Any) -> Any:
    """Return a copy of a resolved value with another one at a place inside it."""
    if not place:
        return value
    first, *rest = place
    if isinstance(first, int):
        return [_with(old, rest, value) if at == first else old for at, old in enumerate(base)]
    tree = base if isinstance(base, ConfigTree) else ConfigTree()
    return _tree(
        {**{key: _child(tree, key) for key in tree}, first: _with(_child(tree, first), rest, value)}
    )


def _merged(values: Sequence[Any]) -> Any:
    """Return the last of some values; sections at the end are merged."""
    merged = values[0]
    for value in values[1:]:
        if isinstance(merged, ConfigTree) and isinstance(value, ConfigTree):
            both = ConfigTree.merge_configs(ConfigTree(), merged, copy_trees=True)
            merged = ConfigTree.merge_configs(both, value, copy_trees=True)
        else:
            merged = value
    return merged


def _with_space(value: Any, space: str) -> Any:
    """Return a part of a text with the space after it; other values as they are."""
    if isinstance(value, NoneValue):
        return f"null{space}"
    return f"{value}{space}" if space and not isinstance(value, dict | list) else value
