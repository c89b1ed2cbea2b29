"""Signals that stop a run or a bench, also while it takes away what it made."""

import signal
import sys
import threading

import pytest

from flstream.simulation.interruption import STOPS, stoppable, undisturbed


@pytest.mark.parametrize("number", STOPS)
def test_every_way_of_being_stopped_is_like_ctrl_c(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stoppable():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


def test_on_another_thread_nothing_is_changed():
    before, within = [signal.getsignal(number) for number in STOPS], []

    def enter():
        with stoppable(), undisturbed():
            within.extend(signal.getsignal(number) for number in STOPS)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert within == before


def test_a_signal_waits_until_what_must_be_whole_is_done():
    done = []

    def take_away():
        with undisturbed():
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            done.append("taken away")
        done.append("not reached")

    with stoppable(), pytest.raises(KeyboardInterrupt):
        take_away()
    assert done == ["taken away"]


def test_what_a_stop_leaves_half_made_ends_in_silence(monkeypatch):
    class HalfMade:
        def __init__(self):
            signal.raise_signal(signal.SIGTERM)
            self.part = 1

        def __del__(self):
            ended.append(self)
            assert self.part

    def make():
        made = HalfMade.__new__(HalfMade)
        made.__init__()

    ended, complaints = [], []
    monkeypatch.setattr(sys, "unraisablehook", complaints.append)
    with pytest.raises(KeyboardInterrupt), stoppable():
        make()
    assert len(ended) == 1
    assert complaints == []
    sys.unraisablehook("restored")
    assert complaints == ["restored"]
