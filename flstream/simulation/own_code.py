"""Check of the classes of the user's own that a job names, in a process that imports them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from flstream.aggregation.own_rule import Folds, Weighs
from flstream.codecs.block_codec import BlockCodec
from flstream.codecs.frame_codec import FrameCompressor
from flstream.engines.processes import ProcessHost
from flstream.filters.block import BlockFilter
from flstream.job import Job, Problem
from flstream.job.aggregation_method import is_own
from flstream.job.code import described, find, misfit, raised
from flstream.job.codecs import disorder
from flstream.job.problems import RefusedValueError, given
from flstream.simulation.child import end_with_peer, ignore_interrupts, redirect_output

_NAME = "own-code"
# Time for the process to end after its answer.
_END_SECONDS = 2.0


class _Own(NamedTuple):
    """Class of the user's own: the key that names it, its place, arguments, what it may be."""

    key: str
    place: str
    args: Mapping[str, Any]
    protocols: tuple[type, ...]


def own_code_problems(job: Job, host: ProcessHost) -> list[Problem]:
    """Return the problems of the rules, filters and codecs of the user's own that a job names.

    Trackers are left out: one that fails is a warning, and never keeps the run waiting.

    Args:
        job: The job.
        host: Host of the process that imports and makes them; inline, it is this one.
    """
    if not [*_named(job)]:
        return []
    if job.engine.is_inline:
        return [*problems_here(job)]
    ours, theirs = socket.socketpair()
    with ours, ours.makefile("rb") as reader:
        with theirs:
            host.start(_NAME, _main, job, theirs)
        answer = reader.read()
    code = host.exit_code(_NAME, _END_SECONDS)
    host.take_ended()
    if not answer:
        ended = f"the process that imported it ended with status {code}; do not end it there"
        return [Problem(own.key, given(own.place), "", ended) for own in _named(job)]
    return [Problem(*fields) for fields in msgspec.msgpack.decode(answer)]


def problems_here(job: Job) -> Iterator[Problem]:
    """Import and make the classes of the user's own in this process, and yield their problems."""
    wrong = False
    for own in _named(job):
        for problem in _problems(own):
            wrong = True
            yield problem
    for direction, specs in () if wrong else job.streaming.codecs.by_direction():
        for problem in disorder(specs, direction):
            yield problem.below(f"streaming.codecs.{direction}")


def _named(job: Job) -> Iterator[_Own]:
    rule = job.aggregation
    if is_own(rule.method):
        yield _Own("aggregation.method", rule.method, rule.args, (Folds, Weighs))
    for listed, protocols in (
        (job.filters.by_key(), (BlockFilter,)),
        (job.streaming.codecs.by_key(), (BlockCodec, FrameCompressor)),
    ):
        for key, spec in listed:
            if is_own(spec.type):
                yield _Own(f"{key}.type", spec.type, spec.args, protocols)


def _problems(own: _Own) -> Iterator[Problem]:
    allowed = described(*own.protocols).replace(
        "a function of", "a class whose objects are functions of"
    )
    try:
        make = find(own.place, "class")
        if not callable(make):
            kind = f"it is of the type {type(make).__name__}"
            yield Problem(own.key, given(own.place), allowed, kind)
            return
        instance = make(**own.args)
    except RefusedValueError as error:
        yield from (problem.below(own.key) for problem in error.problems)
    except (Exception, SystemExit) as error:
        hint = raised(error, own.place.rpartition(":")[0], Path(own.place).name)
        yield Problem(own.key, given(own.place), "a class that takes these arguments", hint)
    else:
        if flaw := misfit(instance, *own.protocols):
            yield Problem(own.key, given(own.place), allowed, flaw)


def _main(job: Job, launcher: socket.socket) -> None:
    """Run the process: import the code, answer, and end."""
    ignore_interrupts()
    redirect_output(Path(os.devnull))
    end_with_peer(launcher)
    problems = [
        (problem.key, problem.given, problem.allowed, problem.hint)
        for problem in problems_here(job)
    ]
    launcher.sendall(msgspec.msgpack.encode(problems))
