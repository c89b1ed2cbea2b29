"""What is damaged on the way is fetched again, and only that; after a break, what is missing is.

Where a download ends early, the other side is told, and the connection serves the next one.
"""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from harness import MODEL, QUICK, Slow, fetch, received
from packets import HEADER_BYTES
from support import assert_same_tensors, body_of, tensor

from flstream.errors import AbortedError, ChannelClosedError, RefusedError
from flstream.model.memory import MemoryBody
from flstream.streaming import Receiver, Signal, TensorSpec, connection
from flstream.streaming import receiver as receiver_module
from flstream.streaming.api import add_tensors, download_specs, download_tensors
from flstream.streaming.download import RemoteSource
from flstream.streaming.settings import StreamSettings
from flstream.streaming.wire import Close, Fetch, Open, Ping, Refused
from flstream.telemetry.events import Transfer

ALL, FRAMES = 120_011, 30  # bytes of MODEL, and frames of a download of it


def damaged(turn, place=HEADER_BYTES):
    """Flip a bit of a frame: of its header, its payload or its digest."""

    def on_frame(number, packet):
        if number == turn:
            packet[place] ^= 4

    return on_frame


def ranges(watch):
    return [each.ranges for each in watch.requests if isinstance(each, Fetch)]


@pytest.mark.parametrize("returns", [False, True], ids=["pair", "connects again"])
@pytest.mark.parametrize(("turn", "place"), [(1, HEADER_BYTES), (17, -1), (FRAMES, -1)])
def test_a_frame_that_is_damaged_is_fetched_again_and_only_it(harness, turn, place, returns):
    receiver, watch = harness.watched(damaged(turn, place), returns=returns)
    sink, cost, ref = harness.fetched(MemoryBody.of(MODEL), receiver=receiver)
    assert_same_tensors(sink.tensors, MODEL)
    start = 4096 * (turn - 1)
    stop = min(start + 4096, ALL)
    assert ranges(watch) == [[(0, ALL)], [(start, stop)]]
    sent = [frame.start for frame in watch.frames]
    assert sent == [*range(0, ALL, 4096), start]
    assert cost == Transfer(ALL, 2, FRAMES, 1, cost.seconds)
    assert ref.deliveries["site-1"].bytes == ALL + stop - start
    assert watch.connections == 1


def test_who_reads_from_front_to_back_has_a_damaged_frame_at_once(harness):
    receiver, watch = harness.watched(damaged(3))
    body, ref = MemoryBody.of(MODEL), harness.offer(MODEL)
    remote = RemoteSource(receiver, ref.token, QUICK)
    got, step = bytearray(), 5000  # neither a frame nor a multiple of one
    for start, stop in body.layout.ranges(step):
        into = bytearray(stop - start)
        remote.read(start, stop, memoryview(into))
        got += into
    remote.close()
    assert got == body_of(body)
    assert ranges(watch) == [[(0, ALL)], [(8192, ALL)]]
    assert ref.wait(30).ok


@pytest.mark.parametrize("turn", [3, FRAMES], ids=["at once", "by a ping"])
def test_a_frame_that_is_lost_is_missed_and_the_rest_fetched_again(harness, turn):
    def lose(number, packet):
        if number == turn:
            packet.clear()

    receiver, watch = harness.watched(lose)
    sink, _, _ = harness.fetched(MemoryBody.of(MODEL), receiver=receiver)
    assert_same_tensors(sink.tensors, MODEL)
    assert ranges(watch)[-1] == [(4096 * (turn - 1), ALL)]
    if turn < FRAMES:
        assert watch.connections == 2
    else:
        assert watch.connections == 1
        kinds = [type(each) for each in watch.requests]
        assert kinds == [Open, Fetch, Ping, Fetch, Close]


def test_a_refusal_that_is_lost_is_given_again_to_a_ping(harness):
    def lose(reply, packet):
        if isinstance(reply, Refused) and Ping not in map(type, watch.requests):
            packet.clear()

    receiver, watch = harness.watched(on_reply=lose)
    ref = harness.offer(MODEL)
    remote = RemoteSource(receiver, ref.token, QUICK)
    ref.abort("enough")
    with pytest.raises(RefusedError, match="settled"):
        remote.read(0, ALL, memoryview(bytearray(ALL)))
    assert Ping in map(type, watch.requests)


@pytest.mark.parametrize("ends", ["time", "abort"])
def test_a_sender_that_is_gone_for_good_is_given_up_after_a_while(harness, monkeypatch, ends):
    monkeypatch.setattr(receiver_module, "RECONNECT_SECONDS", 0.3)
    attempts, abort = [], Signal()

    def connect():
        attempts.append(1)
        if ends == "abort":
            abort.set()
        raise ChannelClosedError("server at 127.0.0.1:9 cannot be reached")

    receiver = Receiver(harness.channel(), "server", abort, connect=connect)
    harness.service.close()
    error = AbortedError if ends == "abort" else ChannelClosedError
    with pytest.raises(error, match=r"called off|cannot be reached"):
        fetch(receiver, bytes(16))
    assert len(attempts) == 1 if ends == "abort" else len(attempts) > 2
    abort.close()


@pytest.mark.parametrize("breaks", [False, True], ids=["whole", "breaks"])
def test_downloads_of_several_threads_share_a_connection_also_one_that_breaks(harness, breaks):
    models = [{"w": tensor("F32", (40_000 + n,), seed=n)} for n in range(6)]

    def break_some(number, packet):
        # Also what a connection that broke still has on its way.
        if breaks and number >= 7 and watch.connections < 3:
            packet[20] ^= 4

    receiver, watch = harness.watched(break_some)
    refs = [harness.offer(model) for model in models]
    with ThreadPoolExecutor(len(refs)) as executor:
        bodies = list(executor.map(lambda ref: fetch(receiver, ref.token), refs))
    for model, body in zip(models, bodies, strict=True):
        assert_same_tensors(body.tensors, model)
    assert all(ref.wait(30).ok for ref in refs)
    assert watch.connections == (3 if breaks else 1)


def test_a_download_that_is_called_off_does_not_hold_up_the_next_of_its_connection(harness):
    receiver, abort = harness.receiver(), Signal()
    large = {"w": tensor("U8", (4 << 20,))}
    refs = [harness.offer(large) for _ in range(2)]

    def stop_half_way(start, _stop):
        if start == 1 << 20:
            abort.set()

    remote = RemoteSource(receiver, refs[0].token, QUICK, abort)
    with pytest.raises(AbortedError):
        received(remote, on_range=stop_half_way)
    assert_same_tensors(fetch(receiver, refs[1].token).tensors, large)
    assert "called off" in refs[0].wait(10).reason
    abort.close()


MIB = 1 << 20
ARRAYS = {"a": np.arange(4 * MIB, dtype=np.uint8), "b": np.arange(8 * MIB, dtype=np.uint32)}


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


@pytest.mark.parametrize("change", ["it was repainted", True, OSError("no such disk")])
def test_whatever_a_source_says_of_a_change_is_refused(harness, change):
    source = Slow(change=change)
    ref = harness.service.offer(source, ["site-1"])
    with pytest.raises(RefusedError, match=r"repainted|it was changed|cannot be told: OSError"):
        fetch(harness.receiver(), ref.token)
    assert ref.wait(10).status == "aborted"


def test_an_abort_while_digests_are_taken_costs_no_other_offer(harness):
    receiver, signal = harness.receiver(), Signal()
    ref = harness.service.offer(Slow(0.02), ["site-1"])  # for each of 32 blocks
    other = add_tensors(harness.service, ARRAYS, ["site-1"])
    timer = threading.Timer(0.1, signal.set)
    timer.start()
    with pytest.raises(AbortedError):
        RemoteSource(receiver, ref.token, QUICK, signal, digests=True)
    timer.join()
    assert ref.wait(10).status == "aborted"
    assert body_of(fetch(receiver, other.token)) == body_of(MemoryBody.of(ARRAYS))
    signal.close()


def test_who_takes_little_at_a_time_or_has_a_slow_source_is_not_stalled(harness, monkeypatch):
    monkeypatch.setattr(connection, "_LOOK_SECONDS", 0.05)
    arrays = {"w": np.zeros(24 * MIB, np.uint8)}
    # What the sender's socket holds takes the receiver 0.4 s, and all of it 1.2 s.
    ref = add_tensors(harness.service, arrays, ["site-1"], stall_timeout=1.0)
    remote = RemoteSource(harness.receiver(), ref.token, QUICK)
    for start, stop in remote.layout.ranges(MIB):
        remote.read(start, stop, memoryview(bytearray(stop - start)))
        time.sleep(0.05)
    remote.close()
    assert ref.wait(10).ok
    ref = harness.service.offer(Slow(0.35), ["site-1"], stall_timeout=0.3)
    fetch(harness.receiver(), ref.token, StreamSettings())  # in two pieces
    assert ref.wait(10).ok
