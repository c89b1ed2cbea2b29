"""The machine's limits, and what is left of measuring them."""

import socket
import threading

import pytest

from flstream.bench.drain import drain
from flstream.bench.limits import (
    MachineLimits,
    measure_limits,
    median_limits,
    pipe_rate,
    write_seconds,
)
from flstream.errors import SimulationError

KIB, MIB = 1 << 10, 1 << 20


def test_every_limit_is_measured_and_nothing_is_left_behind(tmp_path):
    limits = measure_limits([256 * KIB, 2 * MIB], 1, tmp_path)
    assert list(limits.pipe) == [256 * KIB, 2 * MIB]
    assert min(limits.memcpy, *limits.pipe.values()) > 0
    assert limits.disk > 0
    assert list(tmp_path.iterdir()) == []


def test_what_is_no_multiple_of_the_read_size_arrives_whole():
    assert pipe_rate(5 * MIB + 7, 2 * MIB) > 0


def test_a_disk_that_does_not_take_the_bytes_is_named(tmp_path):
    with pytest.raises(SimulationError, match="absent"):
        write_seconds(tmp_path / "absent", 1)


def test_a_pipe_that_ends_early_is_not_taken_for_a_fast_one():
    ours, theirs = socket.socketpair()
    with theirs:
        writer = threading.Thread(target=lambda: (ours.sendall(bytes(10)), ours.close()))
        writer.start()
        with pytest.raises(EOFError, match="90 bytes"):
            drain(theirs, 100, memoryview(bytearray(64)))
        writer.join()


def test_the_median_is_taken_of_each_limit():
    runs = [
        MachineLimits(1.0, {16: 9.0}, 5.0),
        MachineLimits(3.0, {16: 7.0}, 4.0),
        MachineLimits(2.0, {16: 8.0}, 6.0),
    ]
    assert median_limits(runs) == MachineLimits(2.0, {16: 8.0}, 5.0)
