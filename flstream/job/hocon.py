"""HOCON text read into plain values by pyhocon, with its errors put right.

pyhocon 0.3.63 has no hooks for correcting it, so `_Reader` replaces some of its names while it
parses:

- it only logs a missing include; here it is a mistake, and so is a pattern that matches no
  file, an include of itself and an include of a URL;
- it makes `a = [1, 2], a += 3` a 3; here `+=` is a mistake;
- it turns `2m` into minutes even where a size is meant, and garbles `10 seconds and more`; here
  all of these stay texts, which the types of the keys parse;
- it drops `""` from lists and leaks its own null from nested ones;
- it leaves pyparsing's whitespace changed for the whole process when the text is wrong;
- its resolution of `${X}` stops at the first name that nothing sets, depends on the order of the
  keys, and has a null for an absent `${?X}` in a list. `_Resolver` looks a name up when a value
  needs it, after all overrides are in place; joining of parts (`a ${b}`) stays pyhocon's.
"""

import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

import pyhocon.config_parser as pyhocon
from pyhocon.config_tree import (
    ConfigQuotedString,
    ConfigSubstitution,
    ConfigTree,
    ConfigValues,
    NoneValue,
)
from pyhocon.exceptions import ConfigException
from pyparsing import NoMatch, ParseBaseException, ParserElement

from flstream.job.problems import Problem, join
from flstream.text import shortened
from flstream.units import format_bytes

# Most bytes of a job file, which pyhocon takes seconds to read.
_MOST_BYTES = 1 << 20

# Characters of a line that a message quotes.
_MOST_QUOTED = 100

# A mapping or list of YAML: a key without a value, above an indented key or an item.
_YAML = re.compile(
    r"^( *[\w-]+:) *(?:#.*)?\n(?:\s*(?:#.*)?\n)* *(?:- |[\w-]+:(?:\s|$))", re.MULTILINE
)

Override = tuple[str, Any]
"""Dotted key, whose first name may have an index, and its parsed value, unresolved."""


@dataclass(frozen=True)
class Hocon:
    """Content of a HOCON file."""

    values: dict[str, Any]
    """Plain values by key; sections are nested dicts."""
    problems: tuple[Problem, ...] = ()
    """Mistakes found while reading."""
    complete: bool = True
    """Whether all of the file was read; if not, an absent key may have been in the unread part."""
    yaml: str = ""
    """First line of the file that only YAML has; empty for none."""
    unresolved: frozenset[str] = frozenset()
    """Keys whose value has a `${X}` that nothing sets."""


class _UnreadableError(Exception):
    """A file that cannot be read as HOCON; the message says why."""


class _CycleError(ConfigException):  # type: ignore[misc]
    """A value needs itself."""


class _Empty:
    """The text `""`, in a form that pyhocon does not drop."""

    def __str__(self) -> str:
        return ""


class _Unset(str):
    """Name of a `${X}` that nothing sets, in the place of the value that it is part of."""


_ABSENT = object()


def read_hocon(path: Path, overrides: Sequence[Override] = ()) -> Hocon:
    """Read a HOCON file and the files that it includes.

    Args:
        path: Path of the file.
        overrides: Overrides, in order. All `${X}` are resolved with them in place.
    """
    return _Reader().read(path, overrides)


def parse_value(text: str) -> tuple[Any, tuple[Problem, ...]]:
    """Parse one HOCON value, and leave its `${X}` unresolved.

    Returns:
        The value, and the mistakes in it.
    """
    return _Reader().parse_value(text)


class _Reader:
    """Reader of one file and its includes, which replaces pyhocon's ConfigFactory meanwhile."""

    def __init__(self) -> None:
        self._open: list[Path] = []
        self._problems: list[Problem] = []
        self._complete = True
        self._yaml = ""

    def read(self, path: Path, overrides: Sequence[Override]) -> Hocon:
        """Parse a file, put overrides into it, resolve substitutions, and collect the problems."""
        values: dict[str, Any] = {}
        unresolved: dict[str, str] = {}
        with self._noting_failures():
            with self._in_place_of_pyhocon():
                resolver = _Resolver(self.parse_path(path))
            # A list of workflows may have to be resolved for its overrides, so they come last.
            for key, value in sorted(overrides, key=lambda pair: pair[0].startswith("workflow")):
                resolver.put(key, value)
            values = resolver.get(resolver.root)
            self._problems += resolver.problems
            values = _plain(values, "", unresolved)
        for key, name in unresolved.items():
            hint = f"set the environment variable {name}, or write ${{?{name}}} if it may be absent"
            what = f"${{{name}}} is set neither in the file nor in the environment"
            self._problems.append(Problem(key, what, "", hint))
        problems = tuple(dict.fromkeys(self._problems))
        return Hocon(values, problems, self._complete, self._yaml, frozenset(unresolved))

    def parse_value(self, text: str) -> tuple[Any, tuple[Problem, ...]]:
        """Parse one value; return it with the problems."""
        tree: dict[str, Any] = {}
        with self._noting_failures(), self._in_place_of_pyhocon():
            tree = self.parse_text(f"value = {text}", Path.cwd())
        if tree.keys() - {"value"}:
            self._fail("it is more than one value")
        return dict.get(tree, "value"), tuple(self._problems)

    @contextmanager
    def _noting_failures(self) -> Iterator[None]:
        try:
            yield
        except (_UnreadableError, ConfigException) as error:
            self._fail(str(error))
        except (RecursionError, ImportError, ValueError) as error:
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, why: str, key: str = "", allowed: str = "") -> None:
        self._complete = False
        self._problems.append(Problem(key, why, allowed))

    def parse_path(self, path: Path) -> Any:
        """Parse a file; pyhocon calls `parse_file` for each file that it includes."""
        if path in self._open:
            raise _UnreadableError(f"{path} includes itself")
        try:
            with path.open("rb") as file:
                data = file.read(_MOST_BYTES + 1)
        except OSError as error:
            raise _UnreadableError(f"{path} cannot be read: {error.strerror}") from None
        if len(data) > _MOST_BYTES:
            more = f"more than {format_bytes(_MOST_BYTES)}, which no job file has"
            raise _UnreadableError(f"{path} has {more}; check the path")
        try:
            text = data.decode("utf-8-sig")
        except UnicodeDecodeError as error:
            raise _UnreadableError(f"{path} is not UTF-8 text (byte {error.start})") from None
        if yaml := _YAML.search(text):
            self._yaml = self._yaml or shortened(yaml[1].strip(), _MOST_QUOTED)
        self._open.append(path)
        try:
            return self.parse_text(text, path.parent, f" of {path}" if self._open[1:] else "")
        finally:
            self._open.pop()

    def parse_text(self, text: str, folder: Path, where: str = "") -> Any:
        """Parse text whose includes are relative to a folder; leave `${...}` unresolved."""
        try:
            tree = pyhocon.ConfigParser.parse(
                text, str(folder), resolve=False, unresolved_value=pyhocon.NO_SUBSTITUTION
            )
        except ParseBaseException as error:
            # pyparsing's message lists grammar symbols; its position may be a line too late.
            line = shortened(error.line.strip(), _MOST_QUOTED)
            near = f" near `{line}`" if line else ""
            raise _UnreadableError(
                f"syntax error at or just before line {error.lineno}{near}{where}"
            ) from None
        if not isinstance(tree, ConfigTree):
            raise _UnreadableError("the file holds a list; write key = value lines")
        return tree

    def parse_file(self, filename: str, **_options: Any) -> Any:
        """Parse an included file; called by pyhocon."""
        path = Path(os.path.abspath(filename))
        if path.is_file():
            return self.parse_path(path)
        self._fail(f'given "{path}"', "include", "an existing file")
        return ConfigTree()

    def parse_URL(self, url: str, **_options: Any) -> Any:  # noqa: N802
        """Refuse a URL, whose content may change; called by pyhocon."""
        self._fail(f'given "{url}"', "include", "a file, not a URL")
        return ConfigTree()

    @contextmanager
    def _in_place_of_pyhocon(self) -> Iterator[None]:
        parse_tree = pyhocon.ConfigTreeParser.postParse
        parse_value = pyhocon.ConcatenatedValueParser.postParse

        def noting_appends(parser: Any, text: str, location: int, tokens: Any) -> Any:
            for element in tokens:
                if not isinstance(element, pyhocon.ConfigInclude) and len(element) == 3:
                    key, operator, _ = element
                    if operator.strip() == "+=":
                        allowed = "one whole value, such as [1, 2, 3]"
                        problem = Problem(key.strip(), "+= is not supported", allowed)
                        self._problems.append(problem)
                        element[1] = "="  # pyhocon itself fails on some of these
            return parse_tree(parser, text, location, tokens)

        def keeping_empty_texts(parser: Any, text: str, location: int, tokens: Any) -> Any:
            # `""` must differ from the empty element after a list's last comma.
            match list(tokens):
                case [ConfigQuotedString(value="")]:
                    return [_Empty()]
            return parse_value(parser, text, location, tokens)

        stand_ins = (
            (pyhocon, "ConfigFactory", self),
            (pyhocon, "get_period_expr", NoMatch),
            # Sorted, because the order of merging decides which value wins.
            (pyhocon, "glob", lambda pattern, **how: sorted(glob(pattern, **how)) or [pattern]),
            (pyhocon.ConfigTreeParser, "postParse", noting_appends),
            (pyhocon.ConcatenatedValueParser, "postParse", keeping_empty_texts),
        )
        with _pyhocon_in_use:
            whitespace = ParserElement.DEFAULT_WHITE_CHARS
            own = [(owner, name, getattr(owner, name)) for owner, name, _ in stand_ins]
            try:
                for owner, name, stand_in in stand_ins:
                    setattr(owner, name, stand_in)
                yield
            finally:
                for owner, name, original in own:
                    setattr(owner, name, original)
                ParserElement.set_default_whitespace_chars(whitespace)


_pyhocon_in_use = threading.Lock()


class _Resolver:
    """Resolver of the `${X}` of a parsed file, once all overrides are in their places.

    Attributes:
        root: Content of the file.
        problems: Overrides that fit nowhere.
    """

    def __init__(self, root: ConfigTree) -> None:
        self.root = root
        self.problems: list[Problem] = []
        self._replaced: dict[tuple[str, ...], Any] = {}
        self._overriding: set[int] = set()
        self._known: dict[int, Any] = {}
        self._under_way: list[int] = []

    def put(self, key: str, value: Any) -> None:
        """Put an override in place of what the file has there."""
        first, *rest = key.split(".")
        name, index = split_index(first)
        there: Any = dict.get(self.root, name)
        if name == "workflow" and isinstance(there, ConfigValues):
            self.root[name] = there = self.get(there)  # it may be a list that has another name
            self._known.clear()
        is_list = isinstance(there, list)
        if is_list and (rest if index is None else index >= len(there)):
            allowed = f"one of {name}[0] to {name}[{len(there) - 1}], since {name} is a list"
            self.problems.append(Problem(key, f"{first} is given", allowed))
            return
        if index and not is_list:
            allowed = f"{name}, since it is not a list"
            self.problems.append(Problem(key, f"{first} is given", allowed))
            return
        node: Any = self.root
        place: list[Any] = [name, *([index] if is_list and index is not None else []), *rest]
        for part in place[:-1]:
            child = node[part] if isinstance(node, list) else dict.get(node, part)
            if not isinstance(child, ConfigTree | list):
                section = ConfigTree()
                node[part] = section
                if isinstance(child, ConfigValues):  # joined with one more section
                    joined = ConfigValues([*child.tokens, section], child._instring, child._loc)
                    joined.overridden_value = child.overridden_value
                    node[part] = joined
                child = section
            node = child
        replaced = None if isinstance(node, list) else dict.get(node, place[-1])
        if isinstance(value, ConfigValues):
            value.overridden_value = replaced
            self._overriding.add(id(value))
        elif replaced is not None:
            self._replaced[(name, *rest)] = replaced
        node[place[-1]] = value

    def get(self, node: Any) -> Any:
        """Return a part of the content without substitutions; `_Unset` for what nothing sets.

        Raises:
            ConfigException: A value needs itself, or parts of different kinds are joined.
        """
        match node:
            case ConfigValues():
                return self._joined(node)
            case ConfigTree():
                tree = ConfigTree()
                for key in node:
                    if (value := self.get(dict.get(node, key))) is not _ABSENT:
                        tree[key] = value
                return tree
            case list():
                return [each for each in map(self.get, node) if each is not _ABSENT]
        return node

    def _joined(self, node: ConfigValues) -> Any:
        """Return the joined parts of a value."""
        key = id(node)
        if key not in self._known:
            if key in self._under_way:
                if key != self._under_way[-1] or node.overridden_value is None:
                    raise _CycleError("Check for cycles.")
                return self.get(node.overridden_value)  # as in `a = 1, a = ${a}2`
            self._under_way.append(key)
            try:
                self._known[key] = self._whole(node)
            finally:
                self._under_way.pop()
        return self._known[key]

    def _whole(self, node: ConfigValues) -> Any:
        values: list[tuple[Any, str]] = []
        for token in node.tokens:
            is_name = isinstance(token, ConfigSubstitution)
            value = self._named(token) if is_name else self.get(token)
            if value is not _ABSENT:
                values.append((value, token.ws if is_name else ""))
        if unset := [value for value, _ in values if isinstance(value, _Unset)]:
            return unset[0]
        before = _ABSENT if node.overridden_value is None else node.overridden_value
        if not values:
            return self.get(before)
        last, is_section = values[-1][0], isinstance(values[0][0], ConfigTree)
        if len(values) == 1 and not is_section:
            return values[0][0]
        tokens = [*(_with_space(value, ws) for value, ws in values[:-1]), _with_space(last, "")]
        joined = ConfigValues(tokens, node._instring, node._loc)
        if is_section and id(node) not in self._overriding:
            joined.overridden_value = self.get(before)
        return joined.transform()

    def _named(self, name: ConfigSubstitution) -> Any:
        """Return the value of a name: of the file or, failing that, of the environment."""
        names = ConfigTree.parse_key(name.variable)
        try:
            value, cycle = self._looked_up(self.root, names), None
        except _CycleError as error:
            value, cycle = _ABSENT, error
        for place, replaced in self._replaced.items() if value is _ABSENT else ():
            if tuple(names[: len(place)]) == place:
                value = self._looked_up(replaced, names[len(place) :])
        if value is _ABSENT:
            value = os.environ.get(name.variable, _ABSENT)
        if value is _ABSENT and not name.optional:
            if cycle is not None:
                raise _CycleError(f"Cannot resolve ${{{name.variable}}}. Check for cycles.")
            return _Unset(name.variable)
        return value

    def _looked_up(self, node: Any, names: Sequence[str]) -> Any:
        for name in names:
            node = self._joined(node) if isinstance(node, ConfigValues) else node
            node = dict.get(node, name, _ABSENT) if isinstance(node, ConfigTree) else _ABSENT
        return self.get(node)


def split_index(part: str) -> tuple[str, int | None]:
    """Split a part of a key into name and index: `workflow[1]` into `("workflow", 1)`."""
    name, _, index = part.partition("[")
    return name, int(index.removesuffix("]")) if index else None


def _with_space(value: Any, space: str) -> Any:
    """Return a part of a text with the space after it; other values as they are."""
    if isinstance(value, NoneValue):
        return f"null{space}"
    return f"{value}{space}" if space and not isinstance(value, dict | list) else value


def _plain(value: Any, key: str, unresolved: dict[str, str]) -> Any:
    """Return pyhocon's values as plain dicts, lists, texts, numbers, booleans and None."""
    match value:
        case dict():
            # Not items(), in which pyhocon splits keys at their dots.
            return {
                bare: _plain(dict.get(value, name), join(key, name), unresolved)
                for name in value
                for bare in [name[1:-1] if re.fullmatch('".+"', name) else name]
            }
        case list():
            return [_plain(inner, key, unresolved) for inner in value]
        case NoneValue():
            return None
        case _Unset():
            unresolved[key] = str(value)
            return f"${{{value}}}"
        case _Empty():
            return ""
        case str():
            return str(value)
        case _:
            return value
