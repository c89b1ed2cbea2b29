"""Downloads that end early, at whatever byte: the other side is told, and the connection lives."""

import threading
import time

import numpy as np
import pytest
from harness import QUICK, Slow, fetch
from packets import message
from support import body_of

from flstream.errors import AbortedError, LayoutError, RefusedError
from flstream.model.memory import MemoryBody
from flstream.streaming import TensorSpec
from flstream.streaming.api import add_tensors, download_specs, download_tensors
from flstream.streaming.download import RemoteSource
from flstream.streaming.settings import StreamSettings
from flstream.streaming.wire import HEADER_BYTES, PacketReader
from flstream.transport.channel import Deadline, Signal, pipe

MIB = 1 << 20
ARRAYS = {"a": np.arange(4 * MIB, dtype=np.uint8), "b": np.arange(8 * MIB, dtype=np.uint32)}


class Interrupted(Exception):  # noqa: N818
    pass


@pytest.mark.parametrize("cut", range(0, HEADER_BYTES, 7))
def test_a_reader_that_is_interrupted_in_a_header_goes_on_where_it_was(cut):
    ours, theirs = pipe("server", "site-1")
    packets = [message("Pong", number) for number in (1, 2)]
    reader = PacketReader(theirs, "server")

    def interrupt():
        raise Interrupted

    ours.send([memoryview(packets[0][:cut])] if cut else [], Deadline(5))
    with pytest.raises(Interrupted):
        reader.header(interrupt)
    ours.send([memoryview(packets[0][cut:] + packets[1])], Deadline(5))
    for number in (1, 2):
        header = reader.header(interrupt)
        assert header.number == number
        reader.message(header, 1000, interrupt)
    ours.close()
    theirs.close()


def failing(start, stop):
    raise ZeroDivisionError("of the caller")


@pytest.mark.parametrize("direct", [True, False])
def test_a_sender_in_the_middle_of_a_frame_learns_of_a_failure_at_once(harness, direct):
    receiver = harness.receiver(direct=direct)
    ref, other = (add_tensors(harness.service, ARRAYS, ["site-1"]) for _ in range(2))
    with pytest.raises(ZeroDivisionError):
        download_tensors(receiver, ref.id, on_progress=failing)
    assert ref.wait(10).reason == "site-1: ZeroDivisionError: of the caller"
    assert body_of(fetch(receiver, other.token)) == body_of(MemoryBody.of(ARRAYS))


def test_tensors_that_are_looked_up_stay_on_offer_when_that_fails(harness):
    receiver = harness.receiver()
    ref = add_tensors(harness.service, ARRAYS, ["site-1"], round=1)
    specs = [TensorSpec("a", 1, tags=()), TensorSpec("b", 1, tags=())]
    with pytest.raises(ZeroDivisionError):
        download_specs(receiver, specs, on_progress=failing, framework="numpy")
    assert ref.outcome is None
    _, arrays = download_specs(receiver, specs, framework="numpy")
    assert np.array_equal(arrays["b"], ARRAYS["b"])


@pytest.mark.parametrize("select", [["b"], ["b", "a"]])
def test_selected_tensors_go_to_those_of_their_names(harness, select):
    receiver = harness.receiver()
    for how in ("select", "specs"):
        into = {name: np.zeros_like(each) for name, each in ARRAYS.items()}
        ref = add_tensors(harness.service, ARRAYS, ["site-1"], round=1)
        if how == "select":
            download_tensors(receiver, ref.id, into=into, select=select)
        else:
            specs = [TensorSpec(name, 1, tags=()) for name in select]
            download_specs(receiver, specs, into=into, framework="numpy")
            ref.abort("it was fetched")
        for name, each in into.items():
            assert np.array_equal(each, ARRAYS[name] if name in select else np.zeros_like(each))


@pytest.mark.parametrize(
    ("into", "sentence"),
    [({"a": np.zeros(4 * MIB, np.uint8)}, "'b' is selected"), ({"b": np.zeros(3)}, "does not fit")],
)
def test_what_is_selected_must_fit_what_it_goes_into(harness, into, sentence):
    ref = add_tensors(harness.service, ARRAYS, ["site-1"])
    with pytest.raises(LayoutError, match=sentence):
        download_tensors(harness.receiver(), ref.id, into=into, select=["b"])


@pytest.mark.parametrize("change", ["it was repainted", True, OSError("no such disk")])
def test_whatever_a_source_says_of_a_change_is_refused(harness, change):
    source = Slow(change=change)
    ref = harness.service.offer(source, ["site-1"])
    with pytest.raises(RefusedError, match=r"repainted|it was changed|cannot be told: OSError"):
        fetch(harness.receiver(), ref.token)
    assert ref.wait(10).status == "aborted"


def test_an_abort_while_digests_are_taken_costs_no_other_offer(harness):
    receiver, signal = harness.receiver(), Signal()
    ref = harness.service.offer(Slow(0.05), ["site-1"])
    other = add_tensors(harness.service, ARRAYS, ["site-1"])
    timer = threading.Timer(0.3, signal.set)
    timer.start()
    with pytest.raises(AbortedError):
        RemoteSource(receiver, ref.token, QUICK, signal, digests=True)
    timer.join()
    assert ref.wait(10).status == "aborted"
    assert body_of(fetch(receiver, other.token)) == body_of(MemoryBody.of(ARRAYS))
    signal.close()


def test_a_slow_source_is_not_blamed_on_its_receiver(harness):
    ref = harness.service.offer(Slow(0.5), ["site-1"], stall_timeout=0.3)
    fetch(harness.receiver(), ref.token, StreamSettings())  # in two pieces
    assert ref.wait(10).ok


def test_a_receiver_that_takes_little_at_a_time_is_not_stalled(harness):
    arrays = {"w": np.zeros(24 * MIB, np.uint8)}
    # What the sender's socket holds takes the receiver 0.8 s, and all of it 2.4 s.
    ref = add_tensors(harness.service, arrays, ["site-1"], stall_timeout=2.0)
    remote = RemoteSource(harness.receiver(), ref.token, QUICK)
    for start, stop in remote.layout.ranges(MIB):
        remote.read(start, stop, memoryview(bytearray(stop - start)))
        time.sleep(0.1)
    remote.close()
    assert ref.wait(10).ok


@pytest.mark.parametrize("timeout", [float("nan"), "x"])
def test_a_time_that_is_none_is_refused(harness, timeout):
    with pytest.raises(ValueError, match="a timeout of"):
        add_tensors(harness.service, ARRAYS, ["site-1"]).wait(timeout)
