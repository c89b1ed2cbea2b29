"""Codecs that a bench compares, as a command line lists them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Literal, NamedTuple

from flstream.errors import UsageError
from flstream.job import parse_value
from flstream.job.codecs import BUILT_IN, LOSSY, CodecPlan, CodecSpec
from flstream.job.problems import Problem, RefusedValueError, did_you_mean
from flstream.job.values import render_value

PLAIN, ALL = "none", "all"
STANDARD = ("zstd", "delta+shuffle+zstd", "cast", "cast/cast", "int8", "int4", "topk", "ternary")
"""The entries that ``all`` stands for."""

# About what is left of a model's bytes, by codec. It only has to do for the time that is left.
_LEFT = {"cast": 0.5, "int8": 0.26, "int4": 0.15, "topk": 0.02, "ternary": 0.03, "zstd": 0.85}


class CodecCase(NamedTuple):
    """Codecs of updates, and those of models, that are measured together.

    Attributes:
        name: the entry of the list: ``int8``, ``topk:0.05``, ``delta+shuffle+zstd``, ``int8/cast``;
            ``none`` without codecs.
        up: codecs of updates, each as a section of HOCON.
        down: codecs of models, likewise.
        left_up: about the part that is left of an update's bytes, from 0 to 1.
        left_down: about the part that is left of a model's.
        leaves_out: whether numbers are left out of updates, which come with later ones.
    """

    name: str
    up: tuple[str, ...] = ()
    down: tuple[str, ...] = ()
    left_up: float = 1.0
    left_down: float = 1.0
    leaves_out: bool = False

    @property
    def is_plain(self) -> bool:
        """Whether it is the exchange without codecs, which all others are compared with."""
        return not self.up and not self.down

    @property
    def overrides(self) -> list[str]:
        """Overrides of a job with these codecs."""
        ways = {"up": self.up, "down": self.down}
        return [f"streaming.codecs.{way}=[{', '.join(each)}]" for way, each in ways.items()]


def parse_codecs(text: str) -> list[CodecCase]:
    """Parse the list of a command line.

    Args:
        text: entries with commas between them: ``none``, ``all``, or codecs with a ``+`` between
            them in the order in which a sender applies them, each a name and, after a colon, the
            value of its key: ``topk:0.05``, ``int8:128``, ``cast:f16``, ``zstd:3``. Before a slash
            stand the codecs of updates, after it those of models; without, codecs with a loss are
            for updates alone, exact ones for both.

    Returns:
        The cases, each once, without codecs first.

    Raises:
        UsageError: an entry is no list of codecs.
    """
    entries = [entry.strip() for entry in text.split(",") if entry.strip()]
    if not entries:
        some = ",".join(STANDARD)
        raise UsageError(f"--codecs {text}: no codec is named; write {ALL}, or {some}")
    cases = [CodecCase(PLAIN)]
    for entry in _expanded(entries):
        case = _case(text, entry)
        if (case.up, case.down) not in [(each.up, each.down) for each in cases]:
            cases.append(case)
    return cases


def _expanded(entries: Iterable[str]) -> Iterator[str]:
    for entry in entries:
        if entry == ALL:
            yield from STANDARD
        elif entry != PLAIN:
            yield entry


def _case(text: str, entry: str) -> CodecCase:
    of_updates, slash, of_models = entry.partition("/")
    up = _chain(text, entry, of_updates, "up")
    if slash:
        down = _chain(text, entry, of_models, "down")
    else:
        down = [spec for spec in up if spec.type not in LOSSY]
    leaves_out = CodecPlan(up).leaves_out
    return CodecCase(entry, _rendered(up), _rendered(down), _left(up), _left(down), leaves_out)


def _chain(text: str, entry: str, chain: str, way: Literal["up", "down"]) -> list[CodecSpec]:
    """Parse codecs with a ``+`` between them, of one direction; ``none`` is none of them."""
    if chain.strip() == PLAIN and chain != entry:
        return []
    sections = [_section(text, entry, step.strip()) for step in chain.split("+")]
    try:
        codecs = parse_value(f"streaming.codecs.{way}", sections, Path())
    except RefusedValueError as error:
        problem = error.problems[0]
        where = entry if chain == entry and len(sections) == 1 else _where(entry, chain, problem)
        raise UsageError(f"--codecs {text}: {where}: {_clause(problem)}") from None
    return [each.spec for each in codecs]


def _section(text: str, entry: str, step: str) -> dict[str, Any]:
    """Return the section of a codec, such as ``topk:0.05``: its type, and its first argument."""
    name, colon, value = step.partition(":")
    if name not in BUILT_IN:
        what = f"there is no codec {name!r}" if name != PLAIN else f"{PLAIN} stands alone"
        question = did_you_mean(name, [*BUILT_IN, PLAIN, ALL])
        known = f"known are {', '.join((PLAIN, ALL, *BUILT_IN))}, and chains such as shuffle+zstd"
        hint = "" if name == PLAIN else f"; {question or known}"
        raise UsageError(f"--codecs {text}: {entry}: {what}{hint}")
    keys = list(BUILT_IN[name].model_fields)
    if colon and not keys:
        raise UsageError(f"--codecs {text}: {entry}: {name} has no value; leave out {colon}{value}")
    return {"type": name, **({"args": {keys[0]: value}} if colon else {})}


def _where(entry: str, chain: str, problem: Problem) -> str:
    """Return the entry and its codec that a problem's key, such as ``[1].level``, is about."""
    index = problem.key.partition("]")[0].lstrip("[")
    return f"{entry}: {chain.split('+')[int(index)] if index.isdigit() else chain}"


def _clause(problem: Problem) -> str:
    must_be = f"must be {problem.allowed}" if problem.allowed else ""
    return "; ".join(part for part in (must_be, problem.hint) if part) or problem.given


def _rendered(specs: Iterable[CodecSpec]) -> tuple[str, ...]:
    return tuple(render_value(asdict(spec)) for spec in specs)


def _left(specs: Iterable[CodecSpec]) -> float:
    part = 1.0
    for spec in specs:
        part *= _LEFT.get(spec.type, 1.0)
    return part
