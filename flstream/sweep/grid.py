"""The grid of a sweep: each variant with each combination of values, and with each seed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

from flstream.errors import UsageError
from flstream.job.keys import short_keys
from flstream.job.values import render_value

MOST_POINTS = 10_000
"""Most points of a sweep; a larger one is a mistake."""

Values = Mapping[str, Any]
"""Values by dotted key of the job file: texts of the command line, or plain values."""

Axes = Mapping[str, Sequence[Any]]
"""Values to try by dotted key of the job file."""

_MOST_CHARACTERS = 40  # of a value in the name of a folder
_CLOSING = {"[": "]", "{": "}", "(": ")"}


class Point(NamedTuple):
    """One run of a sweep.

    Attributes:
        name: Name of its folder: ``lr=0.03,type=fedavg,seed=7``.
        values: Value of each key that it sets, those of its variant first.
        seed: Its seed; None for that of the job.
    """

    name: str
    values: Values
    seed: int | None


def parse_axis(text: str) -> tuple[str, list[str]]:
    """Parse ``key=a,b``; commas within brackets, braces and quotes separate nothing.

    Raises:
        UsageError: There is no key, no value, or one value twice.
    """
    key, equals, listed = text.partition("=")
    key, values = key.strip(), [value.strip() for value in _split(listed)]
    if not (equals and key and all(values)):
        raise UsageError(f"--vary {text}: give it as key=value,value, such as train.args.lr=0.1,1")
    if twice := [value for value, count in Counter(values).items() if count > 1]:
        raise UsageError(f"--vary {text}: it has {twice[0]} twice; give each value once")
    return key, values


def parse_variant(text: str) -> dict[str, str]:
    """Parse ``key=a,other.key=b``; an empty text is the job as it is.

    Raises:
        UsageError: There is a part without a key or value, or a key twice.
    """
    values = dict[str, str]()
    for part in _split(text) if text.strip() else ():
        key, equals, value = (word.strip() for word in part.partition("="))
        if not (equals and key and value):
            raise UsageError(
                f"--variant {text}: give it as key=value,key=value, such as "
                "workflow.type=scaffold,train.args.lr=0.1; brackets hold the commas of a list"
            )
        if key in values:
            raise UsageError(f"--variant {text}: it has {key} twice; give each key once")
        values[key] = value
    return values


def keys_of(variants: Sequence[Values], axes: Axes) -> list[str]:
    """Return the keys that any point of a sweep sets, those of its variants first.

    Raises:
        UsageError: A variant is there twice, or a key is in a variant and varied, or the seed.
    """
    for place, variant in enumerate(variants):
        if variant in variants[:place]:
            listed = ",".join(f"{key}={shown(value)}" for key, value in variant.items())
            raise UsageError(f"--variant {listed}: it is there twice; give each variant once")
    own = dict.fromkeys(key for variant in variants for key in variant)
    if both := [key for key in own if key in axes]:
        raise UsageError(f"--vary {both[0]}: a variant sets it, too; leave it out of one of them")
    if "seed" in (*own, *axes):
        raise UsageError("seed: seeds are varied by --seeds N")
    return [*own, *axes]


def grid(variants: Sequence[Values], axes: Axes, seed: int, seeds: int) -> list[Point]:
    """Return the points of a sweep: all seeds of the first combination, then of the next.

    Args:
        variants: Settings to try, each with all combinations; none for the job as it is.
        axes: The values of each key; the last key varies fastest.
        seed: The first seed, that of the job.
        seeds: Number of seeds.

    Raises:
        UsageError: There are more than :data:`MOST_POINTS`, or a key is given twice.
    """
    count = seeds * max(1, len(variants))
    for listed in axes.values():
        count *= len(listed)
    if count > MOST_POINTS:
        raise UsageError(f"the sweep has {count:,} points, and at most {MOST_POINTS:,} are run")
    labels, points, names = short_keys(keys_of(variants, axes)), [], Counter[str]()
    for variant, *combination in product(variants or [{}], *axes.values()):
        values = {**variant, **dict(zip(axes, combination, strict=True))}
        parts = [f"{labels[key]}={_slug(value)}" for key, value in values.items()]
        for number in range(seed, seed + seeds):
            name = ",".join([*parts, f"seed={number}"])
            names[name] += 1
            again = f",{names[name]}" if names[name] > 1 else ""
            points.append(Point(name + again, values, number))
    return points


def shown(value: Any) -> str:
    """Return a value as a table shows it: a text as it is, others as a job file has them."""
    return value if isinstance(value, str) else render_value(value)


def _slug(value: Any) -> str:
    """Return a value as a part of a folder's name."""
    text = shown(value)
    sign = "-" if text.startswith("-") else ""  # of a number
    text = re.sub(r"[^\w.+-]+", "-", text).strip("-") or "empty"
    return sign + text[-_MOST_CHARACTERS:].lstrip("-")


def _split(text: str) -> list[str]:
    parts, closing, quote = [""], list[str](), ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character == '"':
            quote = character
        elif character in _CLOSING:
            closing.append(_CLOSING[character])
        elif closing and character == closing[-1]:
            closing.pop()
        if character == "," and not (closing or quote):
            parts.append("")
        else:
            parts[-1] += character
    return parts
