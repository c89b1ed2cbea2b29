"""Limits of this machine for memory, pipe and disk, measured without any of flstream's code.

The time of a run means little by itself on a shared machine. Compared with a limit measured in the
same sitting, it shows how much could be gained.
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
# Size of the buffer that is copied from: more than any cache holds, so that memory is read.
_SOURCE_BYTES = 256 * MIB
# The fastest of 1, 2 and 4 MiB, which differ by a thirtieth.
_SEND_BUFFER = 2 * MIB
_WRITE_BYTES = 2 * MIB
# Bytes that are moved: enough for a steady rate, and at most about a second for each limit.
_LEAST, _MOST = 64 * MIB, 1024 * MIB


@dataclass(frozen=True)
class MachineLimits:
    """Highest rates of a machine, in bytes a second.

    Attributes:
        memcpy: rate of copying on one core into memory whose pages are already mapped.
        pipe: rates through a socket pair between two processes, by read size in bytes.
        disk: rate of writing a file, including fsync.
    """

    memcpy: float
    pipe: Mapping[int, float]
    disk: float


def measure_limits(read_sizes: Sequence[int], nbytes: int, folder: Path) -> MachineLimits:
    """Measure all limits of this machine.

    Args:
        read_sizes: read sizes of the pipe, in bytes.
        nbytes: bytes to move; raised to at least 64 MiB and lowered to at most 1 GiB.
        folder: folder on the disk to be measured.

    Returns:
        The limits.

    Raises:
        SimulationError: the bytes cannot be written to the disk.
    """
    size = min(max(nbytes, _LEAST), _MOST)
    return MachineLimits(
        memcpy=best(lambda: copy_rate(size)),
        pipe={each: best(partial(pipe_rate, size, each)) for each in read_sizes},
        disk=size / write_seconds(folder, size),
    )


def best(measure: Callable[[], float]) -> float:
    """Return the highest of three measurements, the one least disturbed by other processes."""
    return max(measure() for _ in range(3))


def median_limits(measured: Sequence[MachineLimits]) -> MachineLimits:
    """Return the median of each limit over several measurements."""
    return MachineLimits(
        memcpy=statistics.median(each.memcpy for each in measured),
        pipe={
            read_size: statistics.median(each.pipe[read_size] for each in measured)
            for read_size in measured[0].pipe
        },
        disk=statistics.median(each.disk for each in measured),
    )


def copy_rate(nbytes: int) -> float:
    """Measure the rate at which one core copies memory.

    Args:
        nbytes: bytes to copy, 256 MiB at a time.

    Returns:
        The rate in bytes a second.
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
    """Measure the rate of a bare socket pair to another process.

    Args:
        nbytes: bytes to send.
        read_size: maximum bytes of a write and of a read.

    Returns:
        The rate in bytes a second.

    Raises:
        SimulationError: the other process died.
    """
    data = np.ones(min(nbytes, _SOURCE_BYTES), np.uint8).data
    ours, theirs = socket.socketpair()
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    arguments = [str(number) for number in (theirs.fileno(), nbytes, read_size)]
    # In a session of its own it does not receive Ctrl-C; it ends when this end is closed.
    with (
        theirs,
        subprocess.Popen(
            [sys.executable, "-S", drain.__file__, *arguments],
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
    """Measure how long writing a new file takes until it is durable.

    Args:
        folder: folder for the file, which is removed again.
        nbytes: size of the file.

    Returns:
        The time in seconds.

    Raises:
        SimulationError: the file cannot be written.
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
