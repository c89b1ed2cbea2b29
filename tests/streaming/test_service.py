"""The service: only the declared may fetch, nonsense is refused, and nobody holds up another."""

import gc
import threading
import weakref
from contextlib import closing

import pytest
import torch
from halls import QUICK, Hall, fetch, open_hall
from hypothesis import given, settings
from hypothesis import strategies as st
from support import assert_same_tensors, tensor

from flstream.errors import (
    AbortedError,
    ChannelClosedError,
    DeadlineError,
    FlstreamError,
    ProtocolError,
    RefusedError,
)
from flstream.model.memory import MemoryBody
from flstream.streaming.download import Receiver, RemoteSource
from flstream.streaming.refs import Outcome, Ref
from flstream.streaming.service import DownloadService
from flstream.streaming.wire import (
    FRAME,
    HEADER_BYTES,
    MESSAGE,
    TOKEN_BYTES,
    Close,
    Fetch,
    Header,
    Open,
    Opened,
    digest_of,
    pack_message,
)
from flstream.transport.channel import Deadline, Signal
from flstream.transport.pipe import pipe

MODEL = {"w": tensor("F32", (300, 100)), "b": tensor("F16", (5,))}
NBYTES = 120_010


def offer(hall: Hall, *receivers: str) -> Ref:
    return hall.service.offer(MemoryBody.of(MODEL), receivers or ["site-1"])


def assert_serves(hall: Hall, name: str = "site-9") -> None:
    """The service is alive, and has a model for whoever it is for."""
    ref = offer(hall, name)
    assert_same_tensors(fetch(hall.receiver(name), ref.token).tensors, MODEL)


def refusal(receiver: Receiver, request: Open | Fetch) -> str:
    """The reason that the service gives for not answering a request."""
    receiver.send(request, 10)
    deadline = Deadline(10)
    header = receiver.await_header(request.token, request.request, deadline)
    with pytest.raises(RefusedError) as refused:
        receiver.read_message(header, deadline)
    return str(refused.value)


def test_a_receiver_that_was_not_declared_is_refused(hall):
    ref = offer(hall, "site-1")
    stranger = hall.receiver("site-2")
    with pytest.raises(RefusedError, match="not on offer"):
        fetch(stranger, ref.token)
    assert "not on offer" in refusal(
        stranger, Fetch(ref.token, stranger.next_number(), 0, 4096, 4096)
    )
    assert ref.deliveries.keys() == {"site-1"}
    assert_same_tensors(fetch(hall.receiver("site-1"), ref.token).tensors, MODEL)


def test_a_stranger_cannot_settle_a_ref(hall):
    ref = offer(hall, "site-1")
    stranger = hall.receiver("site-2")
    for ok in (True, False):
        stranger.send(Close(ref.token, stranger.next_number(), ok, "no good"), 10)
    assert "not on offer" in refusal(stranger, Open(ref.token, stranger.next_number()))
    assert ref.outcome is None


@given(st.binary(min_size=TOKEN_BYTES, max_size=TOKEN_BYTES))
@settings(max_examples=10)
def test_a_token_that_was_never_issued_is_refused(token):
    with open_hall() as hall:
        offer(hall)
        with pytest.raises(RefusedError, match="not on offer"):
            fetch(hall.receiver(), token)


def test_tokens_are_long_and_all_different(hall):
    tokens = {offer(hall).token for _ in range(100)}
    assert len(tokens) == 100
    assert {len(token) for token in tokens} == {TOKEN_BYTES}


@pytest.mark.parametrize(
    ("start", "stop", "chunk_size", "reason"),
    [
        (-16, 16, 16, "not a range"),
        (0, NBYTES + 1, 4096, "not a range"),
        (0, 2**63, 4096, "not a range"),
        (0, -16, 4096, "not a range"),
        (4096, 4096, 4096, "not a range"),
        (4096, 16, 4096, "not a range"),
        (2**40, 2**41, 4096, "not a range"),
        (8, 4096, 4096, "multiples of 16"),
        (0, 4096, 100, "multiples of 16"),
        (0, 4096, -16, "multiples of 16"),
        (0, 4096, 0, "only be had whole"),
        (16, NBYTES, 0, "only be had whole"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused_and_the_service_goes_on(
    hall, start, stop, chunk_size, reason
):
    ref = offer(hall)
    receiver = hall.receiver()
    fetch_request = Fetch(ref.token, receiver.next_number(), start, stop, chunk_size)
    assert reason in refusal(receiver, fetch_request)
    assert ref.deliveries["site-1"].requests == 0
    assert_same_tensors(fetch(receiver, ref.token).tensors, MODEL)


@given(
    st.integers(-(2**63), 2**64 - 1), st.integers(-(2**63), 2**64 - 1), st.integers(-(2**63), 2**20)
)
@settings(max_examples=40)
def test_no_range_at_all_stops_the_service(start, stop, chunk_size):
    with open_hall() as hall:
        ref = offer(hall)
        receiver = hall.receiver()
        receiver.send(Fetch(ref.token, receiver.next_number(), start, stop, chunk_size), 10)
        assert_same_tensors(fetch(receiver, ref.token).tensors, MODEL)


def test_more_requests_than_a_window_ever_has_are_refused(hall):
    ref = offer(hall)
    receiver = hall.receiver()
    first = Fetch(ref.token, receiver.next_number(), 0, NBYTES, 16)
    packets = pack_message(first, ref.token)
    for _ in range(300):
        again = Fetch(ref.token, receiver.next_number(), 0, NBYTES, 16)
        packets += pack_message(again, ref.token)
    receiver._channel.send([memoryview(packets)], Deadline(10))
    due, deadline = first.request + 256, Deadline(10)
    header = receiver.await_header(ref.token, due, deadline)
    with pytest.raises(RefusedError, match="more than 256 requests"):
        receiver.read_message(header, deadline)


def packet(payload: bytes, kind: int = MESSAGE, length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    header = Header(kind, 1, bytes(TOKEN_BYTES), 0, size, digest_of([payload]))
    return header.pack() + payload


@pytest.mark.parametrize(
    "junk",
    [
        b"GET / HTTP/1.1\r\nHost: a-place-that-is-not-here\r\n\r\n",
        packet(b"not msgpack at all"),
        packet(b"", kind=FRAME),
        packet(b"", length=1 << 40),
        packet(b"x" * 99)[:-1] + b"y",
        packet(pack_message(Open(bytes(16), 1), bytes(16))),
        packet(b"\x81\xa1z" + b"\x91" * 60_000 + b"\x00"),
        packet(
            pack_message(Close(bytes(16), 1, False, "WORD"), b"")[HEADER_BYTES:].replace(
                b"WORD", b"\xff" * 4
            )
        ),
        packet(pack_message(Open(bytes(16), 1), b"")[HEADER_BYTES:-1] + b"\xff"),
    ],
    ids=["text", "payload", "frame", "huge", "digest", "twice", "deep", "no text", "negative"],
)
def test_a_receiver_that_sends_junk_loses_its_channel_and_nobody_else_does(hall, junk):
    other = hall.receiver("site-2")
    ref = offer(hall, "site-1")
    channel = hall.channel("site-1")
    channel.send([memoryview(junk)], Deadline(10))
    with pytest.raises(ChannelClosedError):
        channel.receive([memoryview(bytearray(1))], Deadline(10))
    outcome = ref.wait(30)
    assert outcome.status == "aborted"
    assert "site-1" in outcome.reason
    assert_same_tensors(fetch(other, offer(hall, "site-2").token).tensors, MODEL)


@given(st.binary(min_size=HEADER_BYTES, max_size=400))
@settings(max_examples=40)
def test_no_junk_stops_the_service(junk):
    with open_hall() as hall:
        hall.channel("site-1").send([memoryview(junk)], Deadline(10))
        assert_serves(hall)


def test_a_request_that_arrives_byte_by_byte_is_answered(hall):
    ref = offer(hall)
    receiver = hall.receiver()
    request = Open(ref.token, receiver.next_number())
    for byte in pack_message(request, ref.token):
        receiver._channel.send([memoryview(bytes([byte]))], Deadline(10))
    assert receiver.await_header(ref.token, request.request, Deadline(10)).kind == MESSAGE


def test_a_receiver_that_never_reads_does_not_hold_up_another(hall):
    lazy = hall.receiver("site-1")
    big = {"w": tensor("F32", (1 << 20,))}
    ref = hall.service.offer(MemoryBody.of(big), ["site-1", "site-2"])
    for _ in range(3):
        lazy.send(Fetch(ref.token, lazy.next_number(), 0, 4 << 20, 1 << 20), 10)
    assert_same_tensors(fetch(hall.receiver("site-2"), ref.token).tensors, big)
    assert ref.outcome is None
    assert ref.deliveries["site-2"].failure is None
    assert ref.deliveries["site-1"].closed_at is None


def test_a_receiver_that_hangs_up_settles_what_was_for_it_alone(hall):
    mine, shared = offer(hall, "site-1"), offer(hall, "site-1", "site-2")
    channel = hall.channel("site-1")
    channel.close()
    outcome = mine.wait(30)
    assert outcome.status == "aborted"
    assert "site-1: site-1 closed the channel" in outcome.reason
    assert shared.outcome is None
    fetch(hall.receiver("site-2"), shared.token)
    assert shared.wait(30).reason.startswith("site-1: ")


def test_what_is_offered_to_a_receiver_that_hung_up_settles_at_once(hall):
    first = offer(hall, "site-1")
    hall.channel("site-1").close()
    first.wait(30)
    late = offer(hall, "site-1")
    assert late.outcome is not None
    assert "site-1 closed the channel" in late.outcome.reason
    # One that comes back is served again.
    receiver = hall.receiver("site-1")
    assert_same_tensors(fetch(receiver, offer(hall, "site-1").token).tensors, MODEL)


def test_a_ref_can_be_offered_before_its_receivers_channel_is_there(hall):
    ref = offer(hall, "site-1")
    assert ref.outcome is None
    assert_same_tensors(fetch(hall.receiver("site-1"), ref.token).tensors, MODEL)


def test_a_ref_settles_once_and_keeps_its_first_outcome():
    settled: list[Ref] = []
    ref = Ref.issue(MemoryBody.of(MODEL), ["site-1"], settled.append)
    barrier = threading.Barrier(8)

    def settle(number: int) -> None:
        barrier.wait()
        ref.abort(f"reason {number}")

    threads = [threading.Thread(target=settle, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    first = ref.outcome
    ref.receiver_done("site-1", None)
    ref.abort("too late")
    assert settled == [ref]
    assert ref.outcome is first
    assert ref.wait(0) is first
    assert not first.ok


def test_a_ref_that_nobody_fetches_times_out():
    ref = Ref.issue(MemoryBody.of(MODEL), ["site-1"], lambda ref: None)
    assert ref.wait(0.01) == Outcome("timed out", "not every receiver was done within 0.01 s")
    assert ref.source is None


def test_the_first_word_of_a_receiver_counts_and_each_failure_is_told():
    ref = Ref.issue(MemoryBody.of(MODEL), ["site-1", "site-2", "site-3"], lambda ref: None)
    ref.receiver_done("site-1", "no room")
    ref.receiver_done("site-1", None)
    ref.receiver_done("site-2", None)
    assert ref.outcome is None
    ref.receiver_done("site-3", "no time")
    assert ref.outcome == Outcome("aborted", "site-1: no room; site-3: no time")


def test_whoever_waits_for_a_ref_is_woken_when_it_settles(hall):
    ref = offer(hall)
    outcomes: list[Outcome] = []
    waiters = [threading.Thread(target=lambda: outcomes.append(ref.wait())) for _ in range(3)]
    for waiter in waiters:
        waiter.start()
    fetch(hall.receiver(), ref.token)
    for waiter in waiters:
        waiter.join(30)
    assert outcomes == [Outcome("finished")] * 3


@pytest.mark.parametrize("ending", ["finished", "aborted", "timed out"])
def test_a_settled_ref_lets_go_of_its_tensors(hall, ending):
    weight = torch.zeros(5000)
    storage = weakref.ref(weight.untyped_storage())
    source = MemoryBody.of({"w": weight})
    watched = weakref.ref(source)
    ref = hall.service.offer(source, ["site-1"])
    del source, weight
    receiver = hall.receiver()
    assert watched() is not None
    if ending == "finished":
        fetch(receiver, ref.token)
        ref.wait(30)
    elif ending == "aborted":
        ref.abort("enough")
    else:
        ref.wait(0.01)
    assert ref.outcome.status == ending
    # An answer to this says that the service's thread is through with all that came before.
    assert "not on offer" in refusal(receiver, Open(ref.token, receiver.next_number()))
    gc.collect()
    assert watched() is None
    assert storage() is None


def test_closing_the_service_aborts_what_is_on_offer_and_its_receivers_see_the_end(hall):
    ref, unattached = offer(hall, "site-1"), offer(hall, "nobody")
    receiver = hall.receiver("site-1")
    remote = RemoteSource(receiver, ref.token, QUICK)
    hall.service.close()
    for each in (ref, unattached):
        assert each.outcome.status == "aborted"
        assert "the service was closed" in each.outcome.reason
    # What the service had put on its way may arrive; then comes the end.
    with pytest.raises(ChannelClosedError):
        remote.receive(0, NBYTES, [memoryview(bytearray(NBYTES))])


def test_a_closed_service_can_be_closed_again_and_aborts_what_is_offered_later(hall):
    hall.service.close()
    hall.service.close()
    assert offer(hall).outcome == Outcome("aborted", "the service was closed")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_service_that_meets_a_defect_ends_its_channels_instead_of_falling_silent(hall):
    class Defective(MemoryBody):
        def views(self, start, stop, scratch=None):
            raise MemoryError

    body = MemoryBody.of(MODEL)
    views = dict.fromkeys(MODEL, memoryview(b""))
    ref = hall.service.offer(Defective(body.layout, MODEL, views), ["site-1"])
    with pytest.raises(ChannelClosedError):
        fetch(hall.receiver(), ref.token)
    assert ref.wait(30).status == "aborted"
    assert offer(hall, "site-1").outcome.status == "aborted"


def test_a_service_can_be_closed_while_it_is_being_woken():
    for _ in range(100):
        with DownloadService() as service:
            ours, theirs = pipe("server", "site-1")
            service.attach(ours, "site-1")
        with pytest.raises(ChannelClosedError):
            theirs.receive([memoryview(bytearray(1))], Deadline(10))
        theirs.close()
    assert not [t for t in threading.enumerate() if t.name == "download-service"]


@pytest.mark.parametrize("chunk_size", [0, 4096])
def test_a_silent_peer_is_a_deadline_error(chunk_size):
    ours, theirs = pipe("server", "site-1")
    how = QUICK._replace(chunk_size=chunk_size, request_timeout=0.1)
    with pytest.raises(DeadlineError, match="server did not answer"):
        fetch(Receiver(theirs, "server"), bytes(16), how)
    ours.close()
    theirs.close()


def test_a_peer_that_falls_silent_in_the_middle_is_a_deadline_error(hall):
    ref = offer(hall)
    receiver = hall.receiver()
    remote = RemoteSource(receiver, ref.token, QUICK._replace(request_timeout=0.2, window=1))
    # The first request's frames come; then nobody reads requests any more.
    into = memoryview(bytearray(NBYTES))
    remote.receive(0, 16384, [into[:16384]])
    receiver._channel.send = lambda views, deadline: None
    with pytest.raises(DeadlineError, match="server did not answer"):
        remote.receive(16384, NBYTES, [into[16384:]])


def test_an_abort_wakes_a_receiver_that_waits():
    ours, theirs = pipe("server", "site-1")
    abort = Signal()
    raised: list[FlstreamError] = []

    def wait() -> None:
        try:
            fetch(Receiver(theirs, "server", abort), bytes(16), QUICK)
        except FlstreamError as error:
            raised.append(error)

    waiter = threading.Thread(target=wait)
    waiter.start()
    abort.set()
    waiter.join(20)
    assert not waiter.is_alive()
    assert isinstance(raised[0], AbortedError)
    for end in (ours, theirs, abort):
        end.close()


@given(st.binary(max_size=300))
@settings(max_examples=60)
def test_a_sender_of_junk_gives_only_typed_errors(junk):
    ours, theirs = pipe("server", "site-1")
    with closing(ours), closing(theirs):
        ours.send([memoryview(junk)], Deadline(10))
        with pytest.raises(FlstreamError, match="server"):
            fetch(Receiver(theirs, "server"), bytes(16), QUICK._replace(request_timeout=0.01))


def opened(token: bytes, layout: bytes) -> bytes:
    return pack_message(Opened(1, layout), token)


LAYOUT = MemoryBody.of(MODEL).layout.plain_header[8:]
TOKEN = bytes(range(16))
DATA = bytes(4096)


def frame(request: int = 2, start: int = 0, data: bytes = DATA, token: bytes = TOKEN) -> bytes:
    return Header(FRAME, request, token, start, len(data), digest_of([data])).pack() + data


@pytest.mark.parametrize(
    ("packets", "sentence"),
    [
        ([opened(TOKEN, b"{")], "header that cannot be read"),
        ([opened(bytes(16), LAYOUT)], "answered a request that was not due"),
        ([pack_message(Open(TOKEN, 1), TOKEN)], "cannot be read"),
        ([frame(request=1)], "where a message was due"),
        ([Header(MESSAGE, 1, TOKEN, 0, 2**40, 0).pack()], "where a message was due"),
        ([opened(TOKEN, LAYOUT), frame(start=16)], "sent bytes 16 to 4112 where 0 to 4096"),
        ([opened(TOKEN, LAYOUT), frame(data=bytes(16))], "sent bytes 0 to 16 where 0 to 4096"),
        ([opened(TOKEN, LAYOUT), frame(request=9)], "answered a request that was not due"),
        ([opened(TOKEN, LAYOUT), frame(token=bytes(16))], "answered a request that was not due"),
        ([opened(TOKEN, LAYOUT), frame(), frame()], "sent bytes 0 to 4096 where 4096 to 8192"),
    ],
)
def test_a_sender_that_breaks_the_protocol_is_found_out(packets, sentence):
    ours, theirs = pipe("server", "site-1")
    with closing(ours), closing(theirs):
        ours.send([memoryview(b"".join(packets))], Deadline(10))
        with pytest.raises(ProtocolError, match=sentence):
            fetch(Receiver(theirs, "server"), TOKEN, QUICK._replace(request_timeout=1))
