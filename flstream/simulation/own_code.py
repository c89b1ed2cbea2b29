"""Check of the classes of the user's own that a job names, in a process that imports them."""

from __future__ import annotations

import socket
from multiprocessing import connection

import msgspec

from flstream.engines.processes import ProcessHost
from flstream.errors import AbortedError
from flstream.job import Job, Problem
from flstream.job.job import OwnCode
from flstream.job.problems import given
from flstream.transport.channel import Signal

_NAME, _PROCESS = "own-code", "flstream.simulation.own_code_process:main"
# Time for the process to end after its answer.
_END_SECONDS = 2.0


def own_classes(job: Job) -> list[OwnCode]:
    """Return the rules, filters, codecs and trackers of the user's own that a job names."""
    sections = ("aggregation", "filters", "streaming", "tracking")
    return [own for own in job.own_code() if own.key.startswith(sections)]


def own_code_problems(job: Job, host: ProcessHost, stop: Signal | None = None) -> list[Problem]:
    """Return the problems of the classes of the user's own that a job names.

    Args:
        job: The job.
        host: Host of the process that imports them; inline, it is this one.
        stop: Signal to stop; None for none.

    Raises:
        AbortedError: The signal was set while they were imported, which may take long.
    """
    classes = own_classes(job)
    if not classes:
        return []
    if job.engine.is_inline:
        from flstream.simulation.own_code_process import problems_here

        return list(problems_here(job))
    ours, theirs = socket.socketpair()
    stops = [] if stop is None else [stop.fileno()]
    answer, size = b"", 4
    with ours:
        with theirs:
            host.start(_NAME, _PROCESS, job, theirs)
        while True:
            if ours not in connection.wait([ours, *stops]):
                raise AbortedError("the run was stopped while code of your own was imported")
            answer += (part := ours.recv(1 << 16))
            if len(answer) >= 4:
                size = 4 + int.from_bytes(answer[:4], "big")
            if not part or 4 < size <= len(answer):
                break  # what the code has started may keep the socket open
    code = host.exit_code(_NAME, _END_SECONDS)
    host.take_ended()
    if not answer:
        ended = f"the process that imported it ended with status {code}; do not end it there"
        return [Problem(own.key, given(own.place), "", ended) for own in classes]
    return [Problem(*fields) for fields in msgspec.msgpack.decode(answer[4:])]
