"""Deadlines take off what was waited, and signals stay up until they are taken down."""

import os
import select
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flstream.transport.channel import Deadline, Signal


@pytest.fixture
def signal():
    signal = Signal()
    yield signal
    signal.close()


@given(st.floats(0.0, 0.02))
@settings(max_examples=10)
def test_a_deadline_takes_off_only_what_was_waited(seconds):
    read_end, write_end = os.pipe()
    poll = select.poll()
    poll.register(read_end, select.POLLIN)
    deadline = Deadline(seconds)
    assert deadline.wait(poll) == []
    assert deadline.left <= 0
    os.write(write_end, b"x")
    fresh = Deadline(3600)
    assert fresh.wait(poll)
    assert 0 < fresh.left <= 3600
    for end in (read_end, write_end):
        os.close(end)


def test_a_deadline_of_none_is_for_ever():
    read_end, write_end = os.pipe()
    poll = select.poll()
    poll.register(read_end, select.POLLIN)
    threading.Thread(target=os.write, args=(write_end, b"x")).start()
    deadline = Deadline(None)
    assert deadline.wait(poll)
    assert deadline.left is None
    os.close(read_end)
    os.close(write_end)


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
        for _ in range(20_000):
            assert not signal.is_set()

    with ThreadPoolExecutor(4) as executor:
        for asked in [executor.submit(ask) for _ in range(4)]:
            asked.result()
