"""Annotated types of the keys of the job file.

Ranges, lengths and choices are pydantic's own: ``Annotated[Whole, Field(ge=1)]``,
``Literal["max", "min"]``. Other rules are validators, beside an :class:`Allowed` with their words.
"""

import math
import re
import shlex
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    AllowInfNan,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    GetJsonSchemaHandler,
    ModelWrapValidatorHandler,
    PlainSerializer,
    Strict,
    ValidationError,
    ValidationInfo,
    model_validator,
)
from pydantic.errors import PydanticInvalidForJsonSchema
from pydantic_core import CoreSchema

from flstream import units
from flstream.job.keys import explain
from flstream.job.meanings import meanings_in
from flstream.job.problems import Problem, RefusedValueError, given_clause, join, must_be


def _complete(schema: dict[str, Any], section: "type[Section]") -> None:
    """Add defaults, as a job file gives them, and meanings to the keys of a JSON schema."""
    defaults = section.model_construct().model_dump(mode="json", by_alias=True)
    for name in schema["properties"].keys() & defaults:
        schema["properties"][name]["default"] = defaults[name]
    for name, field in section.model_fields.items():
        if meaning := section.meaning_of(name):
            schema["properties"][field.alias or name]["description"] = meaning


class Section(BaseModel):
    """Section of the job file: immutable, and without unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", json_schema_extra=_complete)

    @classmethod
    def meaning_of(cls, name: str) -> str:
        """Return the text under a field; empty for none."""
        field = cls.model_fields.get(name)
        if field is not None and field.description:
            return field.description
        ours = [base for base in cls.__mro__ if base.__module__.startswith("flstream.")]
        texts = (meanings_in(base.__module__).get(base.__name__, {}) for base in ours)
        return next((text[name] for text in texts if name in text), "")

    @model_validator(mode="wrap")
    @classmethod
    def _explained(cls, values: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        """Explain mistakes in the words of the job file, where the rules are known."""
        try:
            return handler(values)
        except ValidationError as error:
            raise RefusedValueError(*explain(error, cls, values)) from None


@dataclass(frozen=True)
class Allowed:
    """Words for a type's values, in messages, reference page and JSON schema."""

    words: str | Callable[[], str]
    """Description to follow "must be"; a function is called when it is needed."""
    types: tuple[str, ...] = ()
    """JSON types that a job file may give; empty for that of the type itself, or a text."""

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        try:
            schema = handler(core)
        except PydanticInvalidForJsonSchema:  # of a validator, whose types are not known
            schema = {}
        if not {"anyOf", "oneOf", "$ref"} & schema.keys():
            schema["type"] = [*self.types] or schema.get("type", "string")
        return {**schema, "allowed": self.words if isinstance(self.words, str) else self.words()}


_NUMBER = re.compile(
    r"[+-]?(?:\d{1,40}(?P<fraction>\.\d*)?|(?P<point>\.\d+))(?P<exponent>[eE][+-]?\d+)?"
)
_FLAGS = {"true": True, "false": False}


def read_number(value: Any) -> Any:
    """Return the number in a text, as of `${?N}`; any other value as it is."""
    if isinstance(value, str) and (match := _NUMBER.fullmatch(value.strip())):
        whole = not (match["fraction"] or match["point"] or match["exponent"])
        return int(value) if whole else float(value)
    return value


def _read_flag(value: Any) -> Any:
    return _FLAGS.get(value.lower(), value) if isinstance(value, str) else value


def in_unit(
    parse: Callable[[Any], float], render: Callable[[Any], Any], allowed: str
) -> tuple[Any, ...]:
    """Return the annotations of a number that may be a text with a unit."""

    def read(value: Any) -> float:
        try:
            return parse(value)
        except ValueError:
            raise ValueError("") from None  # the words say all

    words = Allowed(allowed, ("string", "number"))
    return BeforeValidator(read), PlainSerializer(render, when_used="json"), words


def _chunk_size(size: int) -> int:
    if size % 16:
        raise ValueError(f"nearest: {size - size % 16} or {size - size % 16 + 16}")
    return size


# Three centuries, and a number that every way of writing it can hold.
_MOST_SECONDS = 10**10


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"it does not parse: {error}") from None
    return pattern


def _refuse_twice(names: Sequence[str]) -> Sequence[str]:
    for name, count in Counter(names).most_common(1):
        if count > 1:
            raise ValueError(f"{name} is in it twice")
    return names


def folder_of(info: ValidationInfo) -> Path:
    """Return the folder of the job file, in which relative paths start."""
    return (info.context or {}).get("folder") or Path.cwd()


_KEY = re.compile(r"[A-Za-z0-9_-]+")


def sound(value: Any) -> Any:
    """Return a plain value, after a check of all its keys and numbers.

    Raises:
        RefusedValueError: HOCON cannot hold some of them.
    """
    if problems := [*_unsound("", value)]:
        raise RefusedValueError(*problems)
    return value


def _unsound(key: str, value: Any) -> Iterable[Problem]:
    if isinstance(value, Mapping):
        for name, inner in value.items():
            if not _KEY.fullmatch(name):
                named = f"key {given_clause(name).removeprefix('given ')}"
                yield Problem(key, named, "letters, digits, _ and -")
            yield from _unsound(join(key, name), inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _unsound(key, inner)
    elif isinstance(value, float) and not math.isfinite(value):
        yield Problem(key, given_clause(value), "a finite number")


def shell_words(text: str) -> list[str]:
    """Return the words of a command line, quoted as on a shell."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise must_be("quoted as on a shell", str(error)) from error


def _splits(text: str) -> str:
    shell_words(text)
    return text


Flag = Annotated[bool, Strict(), BeforeValidator(_read_flag)]
"""True or false, or the text of one."""

Whole = Annotated[int, Strict(), BeforeValidator(read_number)]
"""A whole number, or the text of one."""

Count = Annotated[Whole, Field(ge=1)]
"""A whole number of at least 1."""

Real = Annotated[float, Strict(), AllowInfNan(False), BeforeValidator(read_number)]
"""A finite number, or the text of one."""

CountOrFraction = Annotated[
    Annotated[int, Strict(), Field(ge=1)] | Annotated[float, Strict(), Field(gt=0, le=1)],
    BeforeValidator(read_number),
    Allowed("a whole number of at least 1, or a fraction above 0 and up to 1.0 (all)"),
]
"""A number of things (an int, `1` is one) or a fraction of them (a float, `1.0` is all)."""

_SIZE = units.parse_bytes, units.format_bytes_exact

Bytes = Annotated[int, *in_unit(*_SIZE, units.SIZE_ALLOWED)]
"""A size in bytes."""

MemoryLimit = Annotated[
    int, Field(ge=256 << 20), *in_unit(*_SIZE, "a size of at least 256 MiB, such as 2 GiB")
]
"""A limit of memory, in bytes; what the processes of a run import takes as much by itself."""

ChunkSize = Annotated[
    int,
    Field(le=1 << 30),
    AfterValidator(_chunk_size),
    *in_unit(*_SIZE, "0 (streaming off) or a multiple of 16 bytes from 16 B to 1 GiB"),
]
"""The longest frame, in bytes; 0 for none."""

Seconds = Annotated[
    float,
    Field(gt=0, le=_MOST_SECONDS),
    *in_unit(
        units.parse_seconds,
        units.format_seconds_exact,
        f"{units.DURATION_ALLOWED}, above 0 and at most {_MOST_SECONDS:g} s",
    ),
]
"""A duration in seconds, longer than zero."""

Pattern = Annotated[str, AfterValidator(_compiles)]
"""A regular expression."""

NOT_EMPTY = Field(min_length=1)
"""Refuses an empty list like a missing one."""

Patterns = Annotated[
    list[Pattern], Allowed('a list of regular expressions, such as ["first", "second"]')
]
"""A list of regular expressions."""

SomePatterns = Annotated[
    Patterns,
    NOT_EMPTY,
    Allowed('a list of regular expressions, at least 1, such as ["first", "second"]'),
]
"""A list of regular expressions that is not empty."""

EACH_ONCE = AfterValidator(_refuse_twice)
"""Refuses a list in which a name comes twice."""

_FREE_ARGS = "a section of keys and plain values"

FreeArgs = Annotated[dict[str, Any], AfterValidator(sound), Allowed(_FREE_ARGS)]
"""Arguments of the user's code: plain values under keys of any name.

Values stay as HOCON gives them: `256 MiB` and `10 s` are texts, for the code to read.
"""

CodeArgs = Annotated[
    FreeArgs | Annotated[str, AfterValidator(_splits)],
    Allowed(f"{_FREE_ARGS}, or the words of a command line as one text", ("object", "string")),
]
"""Arguments of a script or a learner: a section, or the words of a command line as one text."""

PlainValue = Annotated[
    Any,
    AfterValidator(sound),
    Allowed(
        "a plain value: a text, a number, true, false, null, a list or a section of these",
        ("string", "number", "boolean", "null", "array", "object"),
    ),
]
"""A plain value of any kind, kept as HOCON gives it."""
