"""What this machine can do at the most, with nothing of ours around it: memory, pipe and disk.

A figure of a run says little by itself on a shared machine. Held against a limit that was measured
beside it, it says how much is left to gain.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from flstream.bench import drain
from flstream.errors import SimulationError

MIB = 1 << 20
# What the bytes come from: more than any cache holds, so that they come from memory.
_SOURCE_BYTES = 256 * MIB
# The best of 1, 2 and 4 MiB, which differ by a thirtieth.
_SEND_BUFFER = 2 * MIB
_WRITE_BYTES = 2 * MIB
# Enough for a steady rate, and not more than a second or so of any of them.
_LEAST, _MOST = 64 * MIB, 1024 * MIB


@dataclass(frozen=True)
class Limits:
    """Rates in bytes a second.

    Attributes:
        memcpy: copying from memory to memory whose pages are there already, on one core.
        pipe: through a socket pair between two processes, by the size of its reads in bytes.
        disk: writing a file, and waiting until the disk has it.
    """

    memcpy: float
    pipe: Mapping[int, float]
    disk: float


def measure_limits(read_sizes: Sequence[int], nbytes: int, folder: Path) -> Limits:
    """Measure each limit.

    Args:
        read_sizes: of the pipe, in bytes.
        nbytes: how much is at stake; as much is moved, but at least 64 MiB and at most 1 GiB.
        folder: on the disk to be measured.

    Raises:
        SimulationError: the disk does not take the bytes.
    """
    size = min(max(nbytes, _LEAST), _MOST)
    return Limits(
        memcpy=best(lambda: copy_rate(size)),
        pipe={each: best(partial(pipe_rate, size, each)) for each in read_sizes},
        disk=size / write_seconds(folder, size),
    )


def best(measure: Callable[[], float]) -> float:
    """The highest of three rates: a limit is what a machine can do when it has nothing else to."""
    return max(measure() for _ in range(3))


def median_limits(measured: Sequence[Limits]) -> Limits:
    """The median of each limit."""
    return Limits(
        memcpy=statistics.median(each.memcpy for each in measured),
        pipe={
            read_size: statistics.median(each.pipe[read_size] for each in measured)
            for read_size in measured[0].pipe
        },
        disk=statistics.median(each.disk for each in measured),
    )


def copy_rate(nbytes: int) -> float:
    """Bytes a second that one core copies from memory to memory.

    Args:
        nbytes: how much to copy, 256 MiB at a time.
    """
    source = np.ones(min(nbytes, _SOURCE_BYTES), np.uint8)
    target = np.ones_like(source)
    began, left = time.perf_counter(), nbytes
    while left > 0:
        size = min(left, source.size)
        np.copyto(target[:size], source[:size])
        left -= size
    return nbytes / (time.perf_counter() - began)


def pipe_rate(nbytes: int, read_size: int) -> float:
    """Bytes a second through a socket pair to another process, with nothing around them.

    Args:
        nbytes: how much to send.
        read_size: how much is written and read at a time at the most, in bytes.
    """
    data = np.ones(min(nbytes, _SOURCE_BYTES), np.uint8).data
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    words = [str(number) for number in (theirs.fileno(), nbytes, read_size)]
    # In a session of its own, it is not told of Ctrl-C; it ends when this end is closed.
    with (
        theirs,
        subprocess.Popen(
            [sys.executable, "-S", drain.__file__, *words],
            pass_fds=[theirs.fileno()],
            start_new_session=True,
        ),
        ours,
    ):
        theirs.close()
        _await(ours)
        began, left = time.perf_counter(), nbytes
        while left:
            for start in range(0, min(left, len(data)), read_size):
                piece = data[start : start + min(read_size, left)]
                ours.sendall(piece)
                left -= len(piece)
        _await(ours)
        return nbytes / (time.perf_counter() - began)


def _await(sock: socket.socket) -> None:
    if not sock.recv(1):
        raise SimulationError("the process at the other end of the bare pipe died; try again")


def write_seconds(folder: Path, nbytes: int) -> float:
    """Seconds until a new file of so many bytes is durable.

    Args:
        folder: where to write it. It is gone again when this returns.
        nbytes: its size.

    Raises:
        SimulationError: the disk does not take it.
    """
    data = memoryview(np.random.default_rng(0).bytes(_WRITE_BYTES))
    try:
        with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
            began, left = time.perf_counter(), nbytes
            while left:
                left -= file.write(data[: min(left, len(data))])
            os.fsync(file.fileno())
            return time.perf_counter() - began
    except OSError as error:
        raise SimulationError(
            f"the disk of {folder} cannot be measured: {error.strerror}; run the bench in a folder "
            "on a disk with room"
        ) from error
