"""HOCON text read into plain values by pyhocon, with its silent errors turned into problems.

pyhocon 0.3.63 has no hooks for correcting it, so `_Reader` replaces some of its names while it
parses:

- it only logs a missing include; here it is a mistake, and so is a pattern that matches no
  file, an include of itself and an include of a URL;
- it makes `a = [1, 2], a += 3` a 3; here `+=` is a mistake;
- it turns `2m` into minutes even where a size is meant, `10 ns` into zero, and garbles
  `10 seconds and more`; here all of these stay texts, which the rules of the keys parse;
- it drops `""` from lists and leaks its own null from nested ones;
- it leaves pyparsing's whitespace changed for the whole process when the text is wrong.
"""

import os
import re
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any, NamedTuple

import pyhocon.config_parser as pyhocon
from pyhocon.config_tree import (
    ConfigQuotedString,
    ConfigTree,
    NoneValue,
)
from pyhocon.exceptions import ConfigException
from pyparsing import NoMatch, ParseBaseException, ParserElement

from flstream.job.problems import Problem
from flstream.job.substitutions import Resolver, put_override
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


class _UnreadableError(Exception):
    """A file that cannot be read as HOCON; the message says why."""


class ParsedOverride(NamedTuple):
    """A key of a job file with another value.

    Attributes:
        key: Dotted key, whose first name may have an index.
        value: Parsed value, whose `${X}` are unresolved.
    """

    key: str
    value: Any


def read_hocon(path: Path, overrides: Sequence[ParsedOverride] = ()) -> Hocon:
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


class _Empty:
    """The text `""`, in a form that pyhocon does not drop."""

    def __str__(self) -> str:
        return ""


class _Reader:
    """Reader of one file and its includes, which replaces pyhocon's ConfigFactory meanwhile."""

    def __init__(self) -> None:
        self._open: list[Path] = []
        self._problems: list[Problem] = []
        self._appended: list[str] = []
        self._complete = True
        self._yaml = ""

    def read(self, path: Path, overrides: Sequence[ParsedOverride]) -> Hocon:
        """Parse a file, put overrides into it, resolve substitutions, and collect the problems."""
        values: dict[str, Any] = {}
        with self._noting_failures():
            with self._in_place_of_pyhocon():
                tree = self.parse_path(path)
            for override in overrides:
                put_override(tree, override.key, override.value)
            resolver = Resolver(tree)
            values = _plain(resolver.resolve())
            self._problems += resolver.problems
        return Hocon(values, self._all_problems(), self._complete, self._yaml)

    def parse_value(self, text: str) -> tuple[Any, tuple[Problem, ...]]:
        """Parse one value; return it with the problems."""
        tree: dict[str, Any] = {}
        with self._noting_failures(), self._in_place_of_pyhocon():
            tree = self.parse_text(f"value = {text}", Path.cwd())
        if tree.keys() - {"value"}:
            self._fail("it is more than one value")
        return dict.get(tree, "value"), self._all_problems()

    @contextmanager
    def _noting_failures(self) -> Iterator[None]:
        try:
            yield
        except (_UnreadableError, ConfigException) as error:
            self._fail(str(error))
        except (RecursionError, ImportError, ValueError) as error:
            self._fail(f"{type(error).__name__}: {error}")

    def _all_problems(self) -> tuple[Problem, ...]:
        appended = [
            Problem(key, "+= is not supported", "one whole value, such as [1, 2, 3]")
            for key in dict.fromkeys(self._appended)
        ]
        return (*self._problems, *appended)

    def _fail(self, why: str) -> None:
        self._complete = False
        self._problems.append(Problem("", why))

    def parse_path(self, path: Path) -> Any:
        """Parse a file; pyhocon calls `parse_file` for each file that it includes."""
        if path in self._open:
            raise _UnreadableError(f"{path} includes itself")
        self._open.append(path)
        try:
            text = _text_of(path)
            if yaml := _YAML.search(text):
                self._yaml = self._yaml or shortened(yaml[1].strip(), _MOST_QUOTED)
            return self.parse_text(text, path.parent, path)
        except UnicodeDecodeError as error:
            raise _UnreadableError(f"{path} is not UTF-8 text (byte {error.start})") from None
        except OSError as error:
            raise _UnreadableError(f"{path} cannot be read: {error.strerror}") from None
        finally:
            self._open.pop()

    def parse_text(self, text: str, folder: Path, path: Path | None = None) -> Any:
        """Parse text whose includes are relative to a folder; leave `${...}` unresolved."""
        try:
            tree = pyhocon.ConfigParser.parse(
                text, str(folder), resolve=False, unresolved_value=pyhocon.NO_SUBSTITUTION
            )
        except ParseBaseException as error:
            raise _UnreadableError(
                _syntax_error(error, path if len(self._open) > 1 else None)
            ) from None
        if not isinstance(tree, ConfigTree):
            raise _UnreadableError("the file holds a list; write key = value lines")
        return tree

    def parse_file(self, filename: str, **_options: Any) -> Any:
        """Parse an included file; called by pyhocon."""
        path = Path(os.path.abspath(filename))
        if path.is_file():
            return self.parse_path(path)
        self._complete = False
        self._problems.append(Problem("include", f'given "{path}"', "an existing file"))
        return ConfigTree()

    def parse_URL(self, url: str, **_options: Any) -> Any:  # noqa: N802
        """Refuse a URL, whose content may change; called by pyhocon."""
        self._complete = False
        self._problems.append(Problem("include", f'given "{url}"', "a file, not a URL"))
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
                        self._appended.append(key.strip())
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


def _text_of(path: Path) -> str:
    with path.open("rb") as file:
        data = file.read(_MOST_BYTES + 1)
    if len(data) > _MOST_BYTES:
        raise _UnreadableError(
            f"{path} has more than {format_bytes(_MOST_BYTES)}, which no job file has; check the "
            "path"
        )
    return data.decode("utf-8-sig")


def _syntax_error(error: ParseBaseException, included: Path | None) -> str:
    # pyparsing's message lists grammar symbols, and its position may be a line after the mistake.
    line = shortened(error.line.strip(), _MOST_QUOTED)
    near = f" near `{line}`" if line else ""
    return f"syntax error at or just before line {error.lineno}{near}" + (
        f" of {included}" if included else ""
    )


def _plain(value: Any) -> Any:
    """Return pyhocon's values as plain dicts, lists, texts, numbers, booleans and None."""
    match value:
        case dict():
            # Not items(), in which pyhocon splits keys at their dots.
            return {_bare(key): _plain(dict.__getitem__(value, key)) for key in value}
        case list():
            return [_plain(inner) for inner in value]
        case NoneValue():
            return None
        case _Empty():
            return ""
        case str():
            return str(value)
        case _:
            return value


def _bare(key: str) -> str:
    return key[1:-1] if len(key) > 1 and key[0] == key[-1] == '"' else key
