"""Check of a job's user classes, in a process that imports them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from pkgutil import resolve_name

from flstream.debugging import sentence
from flstream.engines.child_process import EndedProcessError, ProcessCall
from flstream.engines.processes import ProcessHost
from flstream.job import Job, Problem
from flstream.job.code import described, find, misfit
from flstream.job.job import OwnCode
from flstream.job.problems import RefusedValueError, given_clause
from flstream.transport.channel import Signal

# Protocols of the classes that a section names, one of which they follow. The launcher does not
# import them.
_PROTOCOLS = {
    "aggregation": (
        "aggregation.methods:Folds",
        "aggregation.methods:Weighs",
        "aggregation.fold_rule:CombinesGroups",
    ),
    "clients": ("server.samplers:Sampler",),
    "filters": ("filters.block:BlockFilter",),
    "streaming": ("codecs.block_codec:BlockCodec", "codecs.frames:FrameCompressor"),
    "tracking": ("tracking.tracker:Tracker",),
}


def own_code_problems(job: Job, host: ProcessHost, stop: Signal | None = None) -> list[Problem]:
    """Return the problems of a job's user classes, from a process that imports them.

    Inline, this process imports them. ``stop`` is the signal to stop; None for none.
    """
    if not (classes := _own_classes(job)):
        return []
    if job.engine.is_inline:
        return problems_here(job)
    target = f"{__name__}:{problems_here.__name__}"
    try:
        call = ProcessCall[list[Problem]](host, "own-code", list[Problem], target, job, abort=stop)
        return call.result()
    except EndedProcessError as error:
        ended = f"the process that imported it {error.how}; do not end it there"
        return [Problem(own.key, given_clause(own.place), "", ended) for own in classes]


def _own_classes(job: Job) -> list[OwnCode]:
    """Return the user's own rules, samplers, filters, codecs and trackers in a job."""
    return [own for own in job.own_code() if own.key.startswith(tuple(_PROTOCOLS))]


def problems_here(job: Job) -> list[Problem]:
    """Import and make the user's own classes here; return their problems."""
    from flstream.job.codecs import disorder
    from flstream.worker.user_code import install_alias

    install_alias(job)
    if problems := [problem for own in _own_classes(job) for problem in _problems_of(own)]:
        return problems
    codecs = job.streaming.codecs
    return [
        *(problem.below("streaming.codecs.down") for problem in disorder(codecs.down, "down")),
        *(problem.below("streaming.codecs.up") for problem in disorder(codecs.up, "up")),
    ]


def _problems_of(own: OwnCode) -> Iterator[Problem]:
    section = own.key.partition(".")[0]
    protocols: tuple[type, ...] = tuple(
        resolve_name(f"flstream.{name}") for name in _PROTOCOLS[section]
    )
    allowed = described(*protocols).replace(
        "a function of", "a class whose objects are functions of"
    )
    try:
        make = find(own.place, "class")
        if not callable(make):
            kind = f"it is of the type {type(make).__name__}"
            yield Problem(own.key, given_clause(own.place), allowed, kind)
            return
        # A tracker is made of its run, once that has begun.
        instance = make if section == "tracking" else make(**own.args)
    except RefusedValueError as error:
        yield from (problem.below(own.key) for problem in error.problems)
    except (Exception, SystemExit) as error:
        hint = sentence(error, Path(own.place.rpartition(":")[0]), Path(own.place).name)
        yield Problem(own.key, given_clause(own.place), "a class that takes these arguments", hint)
    else:
        if flaw := misfit(instance, *protocols):
            yield Problem(own.key, given_clause(own.place), allowed, flaw)
