"""The process that imports the classes of the user's own that a job names, and makes them."""

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
from flstream.filters.block import BlockFilter
from flstream.job import Job, Problem
from flstream.job.code import described, find, misfit, raised
from flstream.job.codecs import disorder
from flstream.job.job import OwnCode
from flstream.job.problems import RefusedValueError, given
from flstream.simulation.child import end_with_peer, ignore_interrupts, redirect_output
from flstream.simulation.own_code import own_classes
from flstream.tracking.tracker import Tracker

# Protocols of the classes, by the section that names them.
_PROTOCOLS: dict[str, tuple[type, ...]] = {
    "aggregation": (Folds, Weighs),
    "filters": (BlockFilter,),
    "streaming": (BlockCodec, FrameCompressor),
    "tracking": (Tracker,),
}


def main(job: Job, launcher: socket.socket) -> None:
    """Run the process: import the code, answer, and end."""
    ignore_interrupts()
    redirect_output(Path(os.devnull))
    end_with_peer(launcher)
    problems = [
        (problem.key, problem.given, problem.allowed, problem.hint)
        for problem in problems_here(job)
    ]
    answer = msgspec.msgpack.encode(problems)
    launcher.sendall(len(answer).to_bytes(4, "big") + answer)
    os._exit(0)  # threads of the code may never end


def problems_here(job: Job) -> Iterator[Problem]:
    """Import and make the classes of the user's own in this process, and yield their problems."""
    problems = [problem for own in own_classes(job) for problem in _problems(own)]
    yield from problems
    directions: tuple[Literal["down", "up"], ...] = () if problems else ("down", "up")
    for direction in directions:
        for problem in disorder(getattr(job.streaming.codecs, direction), direction):
            yield problem.below(f"streaming.codecs.{direction}")


def _problems(own: OwnCode) -> Iterator[Problem]:
    section = own.key.partition(".")[0]
    protocols = _PROTOCOLS[section]
    allowed = described(*protocols).replace(
        "a function of", "a class whose objects are functions of"
    )
    try:
        make = find(own.place, "class")
        if not callable(make):
            kind = f"it is of the type {type(make).__name__}"
            yield Problem(own.key, given(own.place), allowed, kind)
            return
        # A tracker is made of its run, once that has begun.
        instance = make if section == "tracking" else make(**own.args)
    except RefusedValueError as error:
        yield from (problem.below(own.key) for problem in error.problems)
    except (Exception, SystemExit) as error:
        hint = raised(error, own.place.rpartition(":")[0], Path(own.place).name)
        yield Problem(own.key, given(own.place), "a class that takes these arguments", hint)
    else:
        if flaw := misfit(instance, *protocols):
            yield Problem(own.key, given(own.place), allowed, flaw)
