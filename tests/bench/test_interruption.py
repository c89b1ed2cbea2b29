"""Signals while a bench measures, and while it takes away what it made."""

import signal

import pytest

from flstream.bench.interruption import stoppable, undisturbed


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_every_way_of_being_stopped_is_like_ctrl_c(number):
    before = signal.getsignal(number)
    with pytest.raises(KeyboardInterrupt), stoppable():
        signal.raise_signal(number)
    assert signal.getsignal(number) is before


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
