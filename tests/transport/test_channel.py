"""Deadlines take off what was waited, and signals stay up until they are taken down."""

import os
import select
from concurrent.futures import ThreadPoolExecutor

import pytest

from flstream.transport.channel import Deadline, Signal


@pytest.fixture
def signal():
    signal = Signal()
    yield signal
    signal.close()


def test_a_deadline_takes_off_only_what_was_waited():
    read_end, write_end = os.pipe()
    poll = select.poll()
    poll.register(read_end, select.POLLIN)
    over = Deadline(0.01)
    assert not over.poll(poll)
    assert over.left <= 0
    os.write(write_end, b"x")
    for seconds in (3600, None):
        deadline = Deadline(seconds)
        assert deadline.poll(poll)
        assert deadline.left is None if seconds is None else 0 < deadline.left <= 3600
    assert not Deadline(3600).poll(select.poll(), most=0.01)
    for end in (read_end, write_end):
        os.close(end)


def test_a_signal_stays_up_until_it_is_taken_down(signal):
    assert not signal.is_set()
    signal.clear()
    signal.set()
    signal.set()
    assert signal.is_set()
    assert signal.is_set()
    signal.clear()
    assert not signal.is_set()


def test_threads_may_ask_at_the_same_time(signal):
    def ask():
        for _ in range(2_000):
            assert not signal.is_set()

    with ThreadPoolExecutor(4) as executor:
        for asked in [executor.submit(ask) for _ in range(4)]:
            asked.result()
