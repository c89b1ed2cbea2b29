"""The service: only the declared may fetch, nonsense is refused, and nobody holds up another."""

import gc
import re
import threading
import weakref
from collections.abc import Callable
from contextlib import closing

import pytest
import torch
from halls import IMPATIENT, QUICK, Hall, WatchedChannel, fetch, open_hall
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
from flstream.streaming import conversation
from flstream.streaming import packets as packets_module
from flstream.streaming.download import download
from flstream.streaming.receiver import Receiver
from flstream.streaming.refs import Outcome, Ref
from flstream.streaming.remote import RemoteSource
from flstream.streaming.service import DownloadService
from flstream.streaming.wire import (
    FRAME,
    HEADER_BYTES,
    MESSAGE,
    TOKEN_BYTES,
    Close,
    Closed,
    Fetch,
    Header,
    Open,
    Opened,
    Probe,
    Refused,
    Reply,
    Request,
    Waiting,
    decode_reply,
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


def waits_for(receiver: Receiver) -> Callable[[], bool]:
    """Waits for the service, which is to say something."""

    def wait() -> bool:
        assert receiver.wait(10), "the service says nothing"
        return True

    return wait


def reply_to(receiver: Receiver, number: int) -> Reply:
    """The service's message about a request, past all that comes before it."""
    wait = waits_for(receiver)
    while True:
        header = receiver.packets.header(wait)
        payload = bytearray(header.length)
        assert receiver.packets.payload([memoryview(payload)], wait)
        if header.kind == MESSAGE and header.request == number:
            return decode_reply(bytes(payload), "server")


def ask(receiver: Receiver, request: Request) -> Reply:
    """Send a request, and get the service's message about it."""
    receiver.send(request, 10)
    return reply_to(receiver, request.request)


def refusal(receiver: Receiver, request: Request) -> str:
    """The reason that the service gives for not answering a request."""
    refused = ask(receiver, request)
    assert isinstance(refused, Refused)
    return refused.reason


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
        number = stranger.next_number()
        assert ask(stranger, Close(ref.token, number, ok, "no good")) == Closed(number)
    for request in (Open, Probe):
        assert "not on offer" in refusal(stranger, request(ref.token, stranger.next_number()))
    assert ref.outcome is None
    assert ref.deliveries["site-1"].closed_at is None


def test_a_close_is_answered_every_time_also_for_a_ref_that_is_gone_or_never_was(hall):
    mine, shared = offer(hall, "site-1"), offer(hall, "site-1", "site-2")
    receiver = hall.receiver()
    for token in (mine.token, shared.token, bytes(TOKEN_BYTES)):
        for ok in (True, False, True):
            close = Close(token, receiver.next_number(), ok, "changed my mind")
            assert ask(receiver, close) == Closed(close.request)
    # The first word counts.
    assert mine.outcome == Outcome("finished")
    assert shared.deliveries["site-1"].failure is None
    assert shared.outcome is None
    assert_same_tensors(fetch(hall.receiver("site-2"), shared.token).tensors, MODEL)


def test_a_close_calls_off_what_was_asked_for_of_that_ref_alone(hall):
    ref, other = offer(hall), offer(hall)
    receiver = hall.receiver()
    wanted = Fetch(other.token, 5, 0, 4096, 4096)
    packets = [Fetch(ref.token, number, 0, NBYTES, 16) for number in range(1, 5)]
    packets += [wanted, Close(ref.token, 6, False, "enough"), Probe(other.token, 7)]
    data = b"".join(pack_message(each, each.token) for each in packets)
    receiver._channel.send([memoryview(data)], Deadline(10))
    assert reply_to(receiver, 6) == Closed(6)
    assert reply_to(receiver, 7) == Waiting(7, [5])
    assert ref.deliveries["site-1"].chunks <= 1


def test_a_probe_is_told_what_is_still_to_be_answered_of_its_own_ref(hall):
    ref, other = offer(hall), offer(hall)
    receiver = hall.receiver()
    packets = [
        Fetch(ref.token, 1, 0, NBYTES, 16),
        Fetch(other.token, 2, 0, NBYTES, 16),
        Fetch(ref.token, 3, 0, 4096, 4096, urgent=True),
        Probe(ref.token, 4),
        Probe(other.token, 5),
    ]
    data = b"".join(pack_message(each, each.token) for each in packets)
    receiver._channel.send([memoryview(data)], Deadline(10))
    assert reply_to(receiver, 4) == Waiting(4, [3, 1])
    assert reply_to(receiver, 5) == Waiting(5, [2])
    assert ask(hall.receiver(), Probe(ref.token, 6)) == Waiting(6, [])


def test_what_is_urgent_is_sent_before_what_waits(hall):
    ref = offer(hall)
    receiver = hall.receiver()
    packets = [
        Fetch(ref.token, 1, 0, 16384, 4096),
        Fetch(ref.token, 2, 65536, 69632, 4096, urgent=True),
        Fetch(ref.token, 3, 69632, 73728, 4096, urgent=True),
        Fetch(ref.token, 4, 16384, 20480, 4096),
    ]
    data = b"".join(pack_message(each, each.token) for each in packets)
    receiver._channel.send([memoryview(data)], Deadline(10))
    numbers = []
    for _ in range(7):
        header = receiver.packets.header(waits_for(receiver))
        receiver.packets.skip(header.length, waits_for(receiver))
        numbers.append(header.request)
    assert numbers == [2, 3, 1, 1, 1, 1, 4]


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
    refused = reply_to(receiver, first.request + 256)
    assert isinstance(refused, Refused)
    assert "more than 256 requests" in refused.reason


def packet(payload: bytes, kind: int = MESSAGE, length: int | None = None) -> bytes:
    size = len(payload) if length is None else length
    header = Header(kind, 1, bytes(TOKEN_BYTES), 0, size, digest_of([payload]))
    return header.pack() + payload


@pytest.mark.parametrize(
    "message",
    [
        packet(b"not msgpack at all"),
        packet(pack_message(Open(bytes(16), 1), bytes(16))),
        packet(b"\x81\xa1z" + b"\x91" * 60_000 + b"\x00"),
        packet(
            pack_message(Close(bytes(16), 1, False, "WORD"), b"")[HEADER_BYTES:].replace(
                b"WORD", b"\xff" * 4
            )
        ),
        packet(pack_message(Open(bytes(16), 1), b"")[HEADER_BYTES:-1] + b"\xff"),
        pack_message(Closed(1), bytes(16)),
    ],
    ids=["payload", "twice", "deep", "no text", "negative", "reply"],
)
def test_a_receiver_whose_sound_packets_are_no_requests_loses_its_channel_and_nobody_else_does(
    hall, message
):
    other = hall.receiver("site-2")
    ref = offer(hall, "site-1")
    channel = hall.channel("site-1")
    channel.send([memoryview(message)], Deadline(10))
    with pytest.raises(ChannelClosedError):
        channel.receive([memoryview(bytearray(1))], Deadline(10))
    outcome = ref.wait(30)
    assert outcome.status == "aborted"
    assert "site-1" in outcome.reason
    assert_same_tensors(fetch(other, offer(hall, "site-2").token).tensors, MODEL)


JUNK = {
    "text": b"GET / HTTP/1.1\r\nHost: a-place-that-is-not-here\r\n\r\n",
    "frame": packet(b"", kind=FRAME),
    "frame of bytes": packet(bytes(5000), kind=FRAME),
    "huge": packet(b"", length=1 << 40),
    "digest": packet(b"x" * 99)[:-1] + b"y",
    "what begins as packets do": b"FLST" * 50_000,
    "a header but for its end": packet(b"")[:-1],
    "zeros": bytes(300_000),
}


@pytest.mark.parametrize("junk", JUNK.values(), ids=JUNK)
def test_a_receiver_that_sends_junk_is_answered_as_soon_as_it_sends_requests(hall, junk):
    ref = offer(hall, "site-1")
    receiver = hall.receiver("site-1")
    for _ in range(3):
        receiver._channel.send([memoryview(junk)], Deadline(10))
        number = receiver.next_number()
        assert isinstance(ask(receiver, Open(ref.token, number)), Opened)
    receiver._channel.send([memoryview(junk)], Deadline(10))
    assert_same_tensors(fetch(receiver, ref.token).tensors, MODEL)
    assert ref.wait(30).ok


@pytest.mark.parametrize("junk", [bytes(1 << 20), b"no packet " * 100_000])
def test_a_receiver_that_sends_junk_without_end_loses_its_channel_and_nobody_else_does(hall, junk):
    other = hall.receiver("site-2")
    ref = offer(hall, "site-1")
    channel = hall.channel("site-1")
    channel.send([memoryview(junk)] * 15, Deadline(10))
    assert ref.outcome is None
    with pytest.raises(ChannelClosedError):
        channel.send([memoryview(junk)] * 15, Deadline(10))
    outcome = ref.wait(30)
    assert outcome.status == "aborted"
    assert re.search(r"site-1 sent \d+ bytes that are no request", outcome.reason)
    assert_same_tensors(fetch(other, offer(hall, "site-2").token).tensors, MODEL)


def test_much_junk_is_borne_if_there_are_requests_in_it(hall):
    ref = offer(hall)
    receiver = hall.receiver()
    for _ in range(3):
        receiver._channel.send([memoryview(bytes(12 << 20))], Deadline(10))
        assert isinstance(ask(receiver, Open(ref.token, receiver.next_number())), Opened)
    assert ref.outcome is None


@given(st.integers(0, 8 * 300), st.integers(0, 3))
@settings(max_examples=40)
def test_a_request_with_a_flipped_bit_is_not_answered_and_the_next_ones_are(bit, which):
    with open_hall() as hall:
        ref = offer(hall)
        receiver = hall.receiver()
        number = receiver.next_number()
        damaged = bytearray(
            pack_message(
                (
                    Open(ref.token, number),
                    Fetch(ref.token, number, 0, NBYTES, 4096),
                    Probe(ref.token, number),
                    Close(ref.token, number, True, ""),
                )[which],
                ref.token,
            )
        )
        bit %= 8 * len(damaged)
        damaged[bit // 8] ^= 1 << bit % 8
        receiver._channel.send([memoryview(damaged)], Deadline(10))
        probe = Probe(ref.token, receiver.next_number())
        receiver.send(probe, 10)
        # The first answer is to the probe: nothing was said to the damaged request.
        header = receiver.packets.header(waits_for(receiver))
        assert header.request == probe.request
        assert ref.outcome is None
        assert ref.deliveries["site-1"].requests == 0


def test_a_request_that_was_cut_is_given_up_for_the_ones_that_follow(hall):
    ref = offer(hall)
    receiver = hall.receiver()
    whole = pack_message(Fetch(ref.token, receiver.next_number(), 0, NBYTES, 4096), ref.token)
    receiver._channel.send([memoryview(whole)[:-9]], Deadline(10))
    # It takes its end from the next one, so that is lost too; a receiver says it again.
    assert_same_tensors(fetch(receiver, ref.token).tensors, MODEL)
    assert ref.wait(30).ok


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
    assert isinstance(reply_to(receiver, request.request), Opened)


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


@pytest.mark.parametrize("takes", [0, 100, 3 << 20])
def test_a_settled_ref_lets_go_of_its_tensors_though_a_frame_of_it_is_on_its_way(hall, takes):
    weight = torch.zeros(4 << 20)
    storage = weakref.ref(weight.untyped_storage())
    ref = hall.service.offer(MemoryBody.of({"w": weight}), ["site-1"])
    del weight
    receiver, other = hall.receiver(), hall.receiver()
    # The frame is longer than what the kernel takes, and nobody, or hardly anybody, reads it.
    receiver.send(Fetch(ref.token, receiver.next_number(), 0, 16 << 20, 16 << 20), 10)
    receiver.send(Fetch(ref.token, receiver.next_number(), 0, 16 << 20, 16 << 20), 10)
    receiver.packets.header(waits_for(receiver))
    receiver.packets.skip(takes, waits_for(receiver))
    ref.abort("enough")
    for _ in range(2):
        assert "not on offer" in refusal(other, Open(ref.token, other.next_number()))
    gc.collect()
    kept = storage() is not None  # not in the assertion, which would print every byte of it
    assert not kept
    # The frame ends where it should, so that what comes after it is found at once.
    receiver.packets.skip((16 << 20) - takes, waits_for(receiver))
    assert receiver.packets.header(waits_for(receiver)).kind == MESSAGE
    assert receiver.packets.junk == 0


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
def test_a_silent_peer_is_asked_again_and_then_a_deadline_error(chunk_size):
    ours, theirs = pipe("server", "site-1")
    channel = WatchedChannel(theirs)
    how = IMPATIENT._replace(chunk_size=chunk_size)
    with (
        closing(ours),
        closing(theirs),
        pytest.raises(DeadlineError, match=r"server did not send an answer to Open within 0\.2 s"),
    ):
        fetch(Receiver(channel, "server"), bytes(16), how)
    # The same request, so that an answer to any of them will do.
    assert len(channel.requests) >= 2
    assert set(channel.requests) == {Open(bytes(16), 1)}


def test_a_peer_that_falls_silent_in_the_middle_is_a_deadline_error(hall):
    ref = offer(hall)
    receiver = hall.receiver()
    remote = RemoteSource(receiver, ref.token, IMPATIENT._replace(window=1))
    # The first request's frames come; then nobody reads requests any more.
    into = memoryview(bytearray(NBYTES))
    remote.receive(0, 16384, [into[:16384]])
    receiver._channel.send = lambda views, deadline: None
    with pytest.raises(DeadlineError, match=r"server did not send the bytes from 16384 on .*'w'"):
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


@given(
    st.lists(
        st.one_of(
            st.tuples(
                st.just("frame"),
                st.integers(0, 4),
                st.sampled_from([0, 16, 4096, 8192, 118_784, 2**63]),
                st.sampled_from([0, 16, 4096, 8192]),
                st.sampled_from([b"\0", b"\1"]),
                st.booleans(),
            ),
            st.tuples(st.just("message"), st.integers(0, 4), st.lists(st.integers(0, 9))),
            st.tuples(st.just("junk"), st.binary(max_size=100)),
        ),
        max_size=6,
    )
)
@settings(max_examples=60)
def test_whatever_a_sender_sends_is_a_typed_error_and_no_wrong_byte_is_taken(sent):
    stream = opened(TOKEN, LAYOUT)
    for kind, *rest in sent:
        if kind == "frame":
            number, start, length, byte, sound = rest
            data = byte * length
            packet = bytearray(frame(number, start, data))
            if not sound and data:
                packet[-1] ^= 1
            stream += packet
        elif kind == "message":
            stream += pack_message(Waiting(*rest), TOKEN)
        else:
            stream += rest[0]
    taken = []

    class Taken(MemoryBody):
        def commit(self, start, stop):
            taken.append(b"".join(self.views(start, stop)))

    ours, theirs = pipe("server", "site-1")
    how = QUICK._replace(request_timeout=0.02, probe_after=0.01)
    with closing(ours), closing(theirs):
        ours.send([memoryview(stream)], Deadline(10))
        with pytest.raises(FlstreamError, match="server"):
            download(Receiver(theirs, "server"), TOKEN, how, Taken.allocate)
    # Every chunk was once sent so, with a digest that says so.
    assert all(set(chunk) in ({0}, {1}) and len(chunk) == 4096 for chunk in taken)


def opened(token: bytes, layout: bytes) -> bytes:
    return pack_message(Opened(1, layout), token)


LAYOUT = MemoryBody.of(MODEL).layout.plain_header[8:]
TOKEN = bytes(range(16))
DATA = bytes(4096)
OPENED = [opened(TOKEN, LAYOUT)]


def frame(request: int = 2, start: int = 0, data: bytes = DATA, token: bytes = TOKEN) -> bytes:
    return Header(FRAME, request, token, start, len(data), digest_of([data])).pack() + data


@pytest.mark.parametrize(
    ("packets", "error", "sentence"),
    [
        ([opened(TOKEN, b"{")], ProtocolError, "header that cannot be read"),
        ([pack_message(Open(TOKEN, 1), TOKEN)], ProtocolError, "cannot be read"),
        ([pack_message(Refused(1, "no"), TOKEN)], RefusedError, "server refused: no"),
        # Stale answers, and what is no answer, are passed over.
        ([opened(bytes(16), LAYOUT)], DeadlineError, "an answer to Open"),
        ([frame(request=1)], DeadlineError, "an answer to Open"),
        ([pack_message(Opened(7, LAYOUT), TOKEN)], DeadlineError, "an answer to Open"),
        ([pack_message(Closed(1), TOKEN)], DeadlineError, "an answer to Open"),
        ([Header(MESSAGE, 1, TOKEN, 0, 2**40, 0).pack()], ProtocolError, "repeats itself"),
        ([Header(FRAME, 1, TOKEN, 0, 2**63, 0).pack()], ProtocolError, "repeats itself"),
        # The layout is there: two requests, 2 and 3, are under way.
        (OPENED, DeadlineError, r"the bytes from 0 on \(tensor 'w'\)"),
        ([*OPENED, frame(start=16)], ProtocolError, "sent bytes 16 to 4112, which are no chunk"),
        ([*OPENED, frame(data=bytes(16))], ProtocolError, "sent bytes 0 to 16, which are no chunk"),
        ([*OPENED, frame(data=bytes(8192))], ProtocolError, "0 to 8192, which are no chunk"),
        ([*OPENED, frame(data=b"")], ProtocolError, "0 to 0, which are no chunk"),
        ([*OPENED, frame(start=2**63)], ProtocolError, "which are no chunk"),
        ([*OPENED, frame(start=16384)], ProtocolError, "16384 to 20480, which are no chunk"),
        ([*OPENED, frame(request=9)], DeadlineError, "the bytes from 0 on"),
        ([*OPENED, frame(token=bytes(16))], DeadlineError, "the bytes from 0 on"),
        ([*OPENED, frame(), frame()], DeadlineError, "the bytes from 4096 on"),
        ([*OPENED, pack_message(Refused(3, "no"), TOKEN)], RefusedError, "server refused: no"),
        ([*OPENED, pack_message(Refused(1, "no"), TOKEN)], DeadlineError, "from 0 on"),
        ([*OPENED, pack_message(Refused(2, "no"), bytes(16))], DeadlineError, "from 0 on"),
        ([*OPENED, pack_message(Fetch(TOKEN, 2, 0, 0, 0), TOKEN)], ProtocolError, "cannot be read"),
    ],
)
def test_a_sender_that_breaks_the_protocol_is_found_out(packets, error, sentence):
    ours, theirs = pipe("server", "site-1")
    with closing(ours), closing(theirs):
        ours.send([memoryview(b"".join(packets))], Deadline(10))
        with pytest.raises(error, match=sentence):
            fetch(Receiver(theirs, "server"), TOKEN, IMPATIENT._replace(request_timeout=0.1))


class Endless:
    """A channel on which one thing comes over and over, after what comes first."""

    def __init__(self, first: bytes, again: bytes) -> None:
        self._data = first
        self._again = again * (1 + (64 << 10) // len(again))

    def receive_some(self, views):
        count = 0
        for view in views:
            while len(self._data) < len(view):
                self._data += self._again
            view[:] = self._data[: len(view)]
            self._data = self._data[len(view) :]
            count += len(view)
        return count

    def send(self, views, deadline):
        pass

    def wait(self, seconds, abort=None):
        return True


ENDLESS = {
    "a frame that is here": frame(),
    "a frame of a number not asked for": frame(request=99, start=4096),
    "a frame of another token": frame(token=bytes(16)),
    "an empty frame of another token": frame(token=bytes(16), data=b""),
    "what it opened": opened(TOKEN, LAYOUT),
    "a refusal of something else": pack_message(Refused(0, "no"), TOKEN),
    "what waits": pack_message(Waiting(9, [2, 3]), TOKEN),
    "a damaged message": pack_message(Closed(2), TOKEN)[:-1] + b"\0",
    "a message of another token": pack_message(Closed(2), bytes(16)),
    "junk": bytes(1000),
    "what begins as packets do": b"FLST",
}


@pytest.mark.parametrize("again", ENDLESS.values(), ids=ENDLESS)
@pytest.mark.parametrize("first", [b"", opened(TOKEN, LAYOUT) + frame()], ids=["closed", "open"])
def test_a_sender_that_goes_on_without_end_is_given_up(first, again, monkeypatch):
    monkeypatch.setattr(conversation, "_MOST_REPEATED", 1 << 20)
    monkeypatch.setattr(packets_module, "_MOST_JUNK", 1 << 20)
    if not first and again is ENDLESS["what it opened"]:
        first = again
    receiver = Receiver(Endless(first, again), "server")
    with pytest.raises(ProtocolError, match=r"server (repeats itself|sent \d+ bytes that are no)"):
        fetch(receiver, TOKEN)
