"""Check of the classes of the user's own that a job names, in a process that imports them."""

from __future__ import annotations

import socket
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from flstream.engines.processes import ProcessHost
from flstream.job import Job, Problem
from flstream.job.aggregation_method import is_own
from flstream.job.problems import given

_NAME, _PROCESS = "own-code", "flstream.simulation.own_code_process:main"
# Time for the process to end after its answer.
_END_SECONDS = 2.0


class OwnClass(NamedTuple):
    """A class of the user's own.

    Attributes:
        key: Key that names it.
        place: Its place: ``package.module:name`` or ``/abs/path.py:name``.
        args: Its arguments.
    """

    key: str
    place: str
    args: Mapping[str, Any]


def own_classes(job: Job) -> Iterator[OwnClass]:
    """Yield the rules, filters, codecs and trackers of the user's own that a job names."""
    rule, tracking = job.aggregation, job.tracking
    if is_own(rule.method):
        yield OwnClass("aggregation.method", rule.method, rule.args)
    for key, spec in (*job.filters.by_key(), *job.streaming.codecs.by_key()):
        if is_own(spec.type):
            yield OwnClass(f"{key}.type", spec.type, spec.args)
    if tracking.type is not None and is_own(tracking.type):
        yield OwnClass("tracking.type", tracking.type, tracking.args)


def own_code_problems(job: Job, host: ProcessHost) -> list[Problem]:
    """Return the problems of the classes of the user's own that a job names.

    Args:
        job: The job.
        host: Host of the process that imports them; inline, it is this one.
    """
    classes = list(own_classes(job))
    if not classes:
        return []
    if job.engine.is_inline:
        from flstream.simulation.own_code_process import problems_here

        return list(problems_here(job))
    ours, theirs = socket.socketpair()
    with ours, ours.makefile("rb") as reader:
        with theirs:
            host.start(_NAME, _PROCESS, job, theirs)
        answer = reader.read()
    code = host.exit_code(_NAME, _END_SECONDS)
    host.take_ended()
    if not answer:
        ended = f"the process that imported it ended with status {code}; do not end it there"
        return [Problem(own.key, given(own.place), "", ended) for own in classes]
    return [Problem(*fields) for fields in msgspec.msgpack.decode(answer)]
