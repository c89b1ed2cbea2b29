"""Check of the classes of the user's own that a job names, in a process that imports them."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import msgspec

from flstream.aggregation.own_rule import Folds, Weighs
from flstream.codecs.block_codec import BlockCodec
from flstream.codecs.frame_codec import FrameCompressor
from flstream.engines.processes import ProcessHost
from flstream.filters.block import BlockFilter
from flstream.job import Job, Problem
from flstream.job.code import described, find, misfit, raised
from flstream.job.codecs import disorder
from flstream.job.job import OwnCode
from flstream.job.problems import RefusedValueError, given
from flstream.simulation.child import end_with_peer, ignore_interrupts, redirect_output

_NAME = "own-code"
# Time for the process to end after its answer.
_END_SECONDS = 2.0


# Protocols of the classes, by the section that names them.
_PROTOCOLS = {
    "aggregation": (Folds, Weighs),
    "filters": (BlockFilter,),
    "streaming": (BlockCodec, FrameCompressor),
}


def own_code_problems(job: Job, host: ProcessHost) -> list[Problem]:
    """Return the problems of the rules, filters and codecs of the user's own that a job names.

    Trackers are left out: one that fails is a warning, and never keeps the run waiting.

    Args:
        job: The job.
        host: Host of the process that imports and makes them; inline, it is this one.
    """
    if not _named(job):
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
    directions: tuple[Literal["down", "up"], ...] = () if wrong else ("down", "up")
    for direction in directions:
        for problem in disorder(getattr(job.streaming.codecs, direction), direction):
            yield problem.below(f"streaming.codecs.{direction}")


def _named(job: Job) -> list[OwnCode]:
    return [own for own in job.own_code() if own.key.partition(".")[0] in _PROTOCOLS]


def _problems(own: OwnCode) -> Iterator[Problem]:
    protocols = _PROTOCOLS[own.key.partition(".")[0]]
    allowed = described(*protocols).replace(
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
        if flaw := misfit(instance, *protocols):
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
