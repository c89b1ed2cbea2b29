"""HOCON text as plain values, by pyhocon 0.3.63 with its mistakes put right."""

import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from glob import glob
from itertools import zip_longest
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
_ABSENT = object()
TYPE_KEYS = {"aggregation": "method"}
"""Sections whose type has another key than ``type``."""
_pyhocon_in_use = threading.Lock()

Override = tuple[str, Any]
"""Dotted key, whose names may have an index each, and its parsed value, unresolved."""


@dataclass
class Hocon:
    """Content of a HOCON file."""

    values: dict[str, Any] = field(default_factory=dict)
    """Plain values by key; sections are nested dicts."""
    problems: list[Problem] = field(default_factory=list)
    """Mistakes found while reading."""
    complete: bool = True
    """Whether all of the file was read; if not, an absent key may have been in the unread part."""
    yaml: str = ""
    """First line of the file that only YAML has; empty for none."""
    unresolved: dict[str, str] = field(default_factory=dict)
    """Names of `${X}` that nothing sets, by the key whose value has them."""


class _CycleError(ConfigException):  # type: ignore[misc]
    """A value that refers to itself."""


class _Unset(str):
    """Name of a `${X}` that nothing sets, in the place of the value around it."""


class _Empty:
    """The text `""`, in a form that pyhocon does not drop."""

    def __str__(self) -> str:
        return ""


class _Appended(ConfigValues):  # type: ignore[misc]
    """Value that `+=` appends to the list before it.

    pyhocon says once more what was there before when a section is merged into one above it, which
    then lies before what the section itself has.
    """

    _before: Any = None

    @property
    def overridden_value(self) -> Any:
        """Value before this one; None without one."""
        return self._before

    @overridden_value.setter
    def overridden_value(self, before: Any) -> None:
        if self._before is None:
            self._before = before
        elif isinstance(self._before, _Appended):
            self._before.overridden_value = before


def read_hocon(path: Path, overrides: Sequence[Override] = (), text: str | None = None) -> Hocon:
    """Read a HOCON file and the files that it includes.

    Args:
        path: Path of the file.
        overrides: Overrides, in order. All `${X}` are resolved with them in place.
        text: Text in place of the file's; None for that.
    """
    hocon = Hocon()
    with _noting_failures(hocon):
        with _Parser(hocon).in_place_of_pyhocon() as parser:
            root = parser.parse_path(path) if text is None else parser.parse_text(text, path.parent)
        # Overrides of workflows wait for the list, which may have another name in the file.
        later: list[Override] = []
        for key, value in overrides:
            if key.startswith("workflow"):
                later.append((key, value))
            else:
                _put(hocon, root, key, value)
        resolver = _Resolver(root)
        hocon.values = plain(resolver.get(root), "", hocon.unresolved)
        for key, value in later:
            if (resolved := resolver.get(value)) is not _ABSENT:
                _put(hocon, hocon.values, key, plain(resolved, key, hocon.unresolved))
    for key, name in hocon.unresolved.items():
        hint = f"set the environment variable {name}, or write ${{?{name}}} if it may be absent"
        what = f"${{{name}}} is set neither in the file nor in the environment"
        hocon.problems.append(Problem(key, what, "", hint))
    hocon.problems = list(dict.fromkeys(hocon.problems))
    return hocon


def parse_value(text: str) -> tuple[Any, Sequence[Problem]]:
    """Parse one HOCON value, without resolving `${X}`; return its mistakes, too."""
    hocon, tree = Hocon(), {}
    with _noting_failures(hocon), _Parser(hocon).in_place_of_pyhocon() as parser:
        tree = parser.parse_text(f"value = {text}", Path.cwd())
    if tree.keys() - {"value"}:
        hocon.problems.append(Problem("", "it is more than one value"))
    return dict.get(tree, "value"), hocon.problems


@contextmanager
def _noting_failures(hocon: Hocon) -> Iterator[None]:
    try:
        yield
    except RecursionError:
        hocon.complete = False
        hocon.problems.append(Problem("", "its braces are nested too deeply; close them earlier"))
    except (ConfigException, ImportError, ValueError) as error:
        kind = "" if isinstance(error, ConfigException) else type(error).__name__
        hocon.complete = False
        hocon.problems.append(Problem("", f"{kind}: {error}".removeprefix(": ")))


class _Parser:
    """Parser of one file and its includes, in place of pyhocon's ConfigFactory."""

    def __init__(self, hocon: Hocon) -> None:
        self._hocon = hocon
        self._open: list[Path] = []

    def parse_path(self, path: Path) -> Any:
        """Parse a file; leave `${...}` unresolved."""
        if path in self._open:
            raise ConfigException(f"{path} includes itself")
        try:
            if path.stat().st_size > _MOST_BYTES:
                more = f"more than {format_bytes(_MOST_BYTES)}, which no job file has"
                raise ConfigException(f"{path} has {more}; check the path")
            text = path.read_text(encoding="utf-8-sig")
        except OSError as error:
            raise ConfigException(f"{path} cannot be read: {error.strerror}") from None
        except UnicodeDecodeError as error:
            raise ConfigException(f"{path} is not UTF-8 text (byte {error.start})") from None
        if not self._hocon.yaml and (yaml := _YAML.search(text)):
            self._hocon.yaml = shortened(yaml[1].strip(), _MOST_QUOTED)
        self._open.append(path)
        tree = self.parse_text(text, path.parent, f" of {path}" if self._open[1:] else "")
        self._open.pop()
        return tree

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
            place = f"line {error.lineno}{near}{where}"
            raise ConfigException(f"syntax error at or just before {place}") from None
        if not isinstance(tree, ConfigTree):
            raise ConfigException("the file holds a list; write key = value lines")
        return tree

    def parse_file(self, filename: str, **_options: Any) -> Any:
        """Parse an included file, where pyhocon would only log that it is missing."""
        path = Path(os.path.abspath(filename))
        return self.parse_path(path) if path.is_file() else self._refused(path, "an existing file")

    def parse_URL(self, url: str, **_options: Any) -> Any:  # noqa: N802
        """Refuse a URL, whose content may change, where pyhocon would fetch it."""
        return self._refused(url, "a file, not a URL")

    def _refused(self, included: object, allowed: str) -> Any:
        self._hocon.complete = False
        self._hocon.problems.append(Problem("include", f'given "{included}"', allowed))
        return ConfigTree()

    @contextmanager
    def in_place_of_pyhocon(self) -> Iterator["_Parser"]:
        """Replace what is wrong in pyhocon, which has no hooks, while it parses."""
        parse_tree = pyhocon.ConfigTreeParser.postParse
        parse_value = pyhocon.ConcatenatedValueParser.postParse

        def appending(parser: Any, text: str, location: int, tokens: Any) -> Any:
            for element in tokens:
                parts: Any = [] if isinstance(element, pyhocon.ConfigInclude) else element
                if len(parts) == 3 and parts[1].strip() == "+=":
                    element[1], element[2] = "=", _Appended([parts[2]], text, location)
            return parse_tree(parser, text, location, tokens)

        def keeping_empty_texts(parser: Any, text: str, location: int, tokens: Any) -> Any:
            is_empty = len(tokens) == 1 and isinstance(tokens[0], ConfigQuotedString)
            if is_empty and tokens[0].value == "":
                return [_Empty()]
            return parse_value(parser, text, location, tokens)

        stand_ins = (
            # Missing includes are only logged, includes of themselves recursed into, URLs fetched.
            (pyhocon, "ConfigFactory", self),
            # `2m` becomes minutes where a size is meant, and `10 seconds and more` is garbled.
            (pyhocon, "get_period_expr", NoMatch),
            # Files of a pattern are merged in no order, and a pattern without files is ignored.
            (pyhocon, "glob", lambda pattern, **how: sorted(glob(pattern, **how)) or [pattern]),
            # `a = [1, 2], a += 3` becomes 3, and `a += ${b}` appends nothing.
            (pyhocon.ConfigTreeParser, "postParse", appending),
            # `""` is dropped from a list, as it equals the element after a last comma.
            (pyhocon.ConcatenatedValueParser, "postParse", keeping_empty_texts),
        )
        with _pyhocon_in_use:
            # Text that is wrong leaves pyparsing's whitespace changed for the whole process.
            whitespace = ParserElement.DEFAULT_WHITE_CHARS
            own = [(owner, name, getattr(owner, name)) for owner, name, _ in stand_ins]
            try:
                for owner, name, stand_in in stand_ins:
                    setattr(owner, name, stand_in)
                yield self
            finally:
                for owner, name, original in own:
                    setattr(owner, name, original)
                ParserElement.set_default_whitespace_chars(whitespace)


def _put(hocon: Hocon, root: Any, key: str, value: Any) -> None:
    """Put an override into a file's values; `up[0].type` is in an item of a list."""
    new: type[Any] = ConfigTree if isinstance(root, ConfigTree) else dict  # resolved already
    before, parts = "", key.split(".")
    for part, following in zip_longest(parts, parts[1:]):
        step: Any
        step, index = split_index(part)
        child, place, allowed = dict.get(root, step), join(before, step), ""
        before = join(before, part)
        if isinstance(child, list) and (index is not None or following):
            if index is None or index >= len(child):
                allowed = f"one of {place}[0] to {place}[{len(child) - 1}], since {place} is a list"
            else:
                root, step, child = child, index, child[index]
        elif index or (index is not None and step != "workflow"):  # which may be one section
            allowed = f"{place}, since it is not a list"
        if allowed:
            hocon.problems.append(Problem(key, f"{before} is given", allowed))
            return
        if following is None:
            break
        if not isinstance(child, dict):
            root[step] = section = new()
            if isinstance(child, str) and following == "args":  # the name of a type alone
                section[TYPE_KEYS.get(before, "type")] = child
            if isinstance(child, ConfigValues):  # joined with one more section
                root[step] = ConfigValues([*child.tokens, section], child._instring, child._loc)
                root[step].overridden_value = child.overridden_value
            child = section
        root = child
    if isinstance(value, ConfigValues):
        value.overridden_value, value.replaces = child, True
    root[step] = value


class _Resolver:
    """Resolver of a parsed file's `${X}`, after all overrides are in place.

    pyhocon's own stops at the first name that nothing sets, depends on the order of the keys, and
    has a null for an absent `${?X}` in a list. Joining of parts (`a ${b}`) stays pyhocon's.
    """

    def __init__(self, root: ConfigTree) -> None:
        self._root = root
        self._known: dict[int, Any] = {}
        self._under_way: list[int] = []

    def get(self, node: Any) -> Any:
        """Return a part of the content without substitutions; `_Unset` for an unset part."""
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
                return [value for value in map(self.get, node) if value is not _ABSENT]
        return node

    def _joined(self, node: ConfigValues) -> Any:
        """Return the joined parts of a value."""
        if id(node) in self._under_way:
            if id(node) != self._under_way[-1] or node.overridden_value is None:
                raise _CycleError("Check for cycles.")
            return self.get(node.overridden_value)  # as in `a = 1, a = ${a}2`
        if id(node) not in self._known:
            self._under_way.append(id(node))
            try:
                self._known[id(node)] = self._whole(node)
            finally:
                self._under_way.pop()
        return self._known[id(node)]

    def _whole(self, node: ConfigValues) -> Any:
        if isinstance(node, _Appended):
            before = [] if node.overridden_value is None else self.get(node.overridden_value)
            if not isinstance(before, list):
                raise ConfigException(f"{node.key} += appends to a list, and {node.key} is none")
            value = self.get(node.tokens[-1])
            return before if value is _ABSENT else [*before, value]
        values: list[tuple[Any, str]] = []
        for token in node.tokens:
            is_name = isinstance(token, ConfigSubstitution)
            value = self._named(token) if is_name else self.get(token)
            if isinstance(value, _Unset):
                return value
            if value is not _ABSENT:
                values.append((value, token.ws if is_name else ""))
        before = _ABSENT if node.overridden_value is None else node.overridden_value
        if not values:
            return self.get(before)
        is_section = isinstance(values[0][0], ConfigTree)
        if len(values) == 1 and not is_section:
            return values[0][0]
        tokens = [
            f"{value}{space}" if space and not isinstance(value, dict | list) else value
            for value, space in [*values[:-1], (values[-1][0], "")]
        ]
        joined = ConfigValues(tokens, node._instring, node._loc)
        if is_section and not hasattr(node, "replaces"):
            joined.overridden_value = self.get(before)
        return joined.transform()

    def _named(self, name: ConfigSubstitution) -> Any:
        """Return the value of a name: of the file or, failing that, of the environment."""
        value, is_cycle = self._root, False
        try:
            for part in ConfigTree.parse_key(name.variable):
                value = self._joined(value) if isinstance(value, ConfigValues) else value
                value = dict.get(value, part, _ABSENT) if isinstance(value, dict) else _ABSENT
            value = self.get(value)
        except _CycleError:
            value, is_cycle = _ABSENT, True
        if value is _ABSENT:
            value = os.environ.get(name.variable, _ABSENT)
        if value is not _ABSENT or name.optional:
            return value
        if is_cycle:
            raise _CycleError(f"Cannot resolve ${{{name.variable}}}. Check for cycles.")
        return _Unset(name.variable)


def split_index(part: str) -> tuple[str, int | None]:
    """Split a part of a key into name and index: `workflow[1]` into `("workflow", 1)`."""
    name, _, index = part.partition("[")
    return name, int(index.removesuffix("]")) if index else None


def plain(value: Any, key: str, unresolved: dict[str, str]) -> Any:
    """Return pyhocon's values as dicts, lists, texts, numbers, booleans and None."""
    match value:
        case dict():
            # Not items(), in which pyhocon splits keys at their dots.
            return {
                bare: plain(dict.get(value, name), join(key, name), unresolved)
                for name in value
                for bare in [name[1:-1] if re.fullmatch('".+"', name) else name]
            }
        case list():
            return [plain(inner, key, unresolved) for inner in value]
        case NoneValue():
            return None
        case _Unset():
            unresolved[key] = str(value)
            return f"${{{value}}}"
        case _Empty() | str():
            return str(value)
    return value
