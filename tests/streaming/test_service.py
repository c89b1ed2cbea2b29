"""The service: only the declared may fetch, and nobody holds up another."""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from asking import MODEL, NBYTES, Asker, ask, offer, refusal, reply_to
from harness import QUICK, fetch
from support import assert_same_tensors, body_of, tensor

from flstream.errors import ChannelClosedError, LayoutError, RefusedError
from flstream.model.memory import MemoryBody
from flstream.streaming.download import RemoteSource
from flstream.streaming.refs import Outcome
from flstream.streaming.service import DownloadService
from flstream.streaming.settings import Limits
from flstream.streaming.wire import (
    FRAME,
    MESSAGE,
    TOKEN_BYTES,
    VERSION,
    Close,
    Closed,
    Fetch,
    Hello,
    Open,
    Opened,
    Ping,
    Pong,
    Refused,
    pack_message,
)
from flstream.transport.channel import Deadline, pipe


def test_a_stranger_cannot_settle_a_ref(harness):
    ref = offer(harness, "site-1")
    stranger = Asker(harness.channel("site-2"))
    for ok in (True, False):
        number = stranger.next_number()
        answer = ask(stranger, Close(ref.token, number, ok, "no good"))
        assert answer == (Refused(number, "this ref is not on offer") if ok else Closed(number))
    for request in (Open, Ping):
        assert "not on offer" in refusal(stranger, request(ref.token, stranger.next_number()))
    assert ref.outcome is None
    assert ref.deliveries["site-1"].closed_at is None


def test_a_close_is_answered_every_time_also_for_a_ref_that_is_gone_or_never_was(harness):
    mine, shared = offer(harness, "site-1"), offer(harness, "site-1", "site-2")
    receiver = Asker(harness.channel())
    for token in (mine.token, shared.token):
        for ok in (True, False, True):
            close = Close(token, receiver.next_number(), ok, "changed my mind")
            assert ask(receiver, close) == Closed(close.number)
    never = b"never".ljust(TOKEN_BYTES)
    assert ask(receiver, Close(never, 90, False, "")) == Closed(90)
    assert isinstance(ask(receiver, Close(never, 91, True, "")), Refused)
    # The first word counts.
    assert mine.outcome == Outcome("finished")
    assert shared.deliveries["site-1"].failure is None
    assert shared.outcome is None
    assert_same_tensors(fetch(harness.receiver("site-2"), shared.token).tensors, MODEL)


def test_a_new_request_ends_what_is_being_sent_and_a_close_does(harness):
    ref, other = offer(harness), offer(harness)
    receiver = Asker(harness.channel())
    # All in one call, so that the sender has them before its first frame is on its way.
    receiver.send(
        *(Fetch(ref.token, number, [(0, NBYTES)], 16) for number in range(1, 5)),
        Fetch(other.token, 5, [(0, NBYTES)], 16),
        Close(ref.token, 6, False, "enough"),
        Ping(other.token, 7),
    )
    assert reply_to(receiver, 6) == Closed(6)
    assert reply_to(receiver, 7) == Pong(7, 0)
    assert ref.deliveries["site-1"].chunks <= 20
    wanted = Fetch(other.token, 8, [(0, 4096), (8192, 8196)], 4096)
    receiver.send(wanted)
    got = [receiver.header() for _ in range(2)]
    assert [(each.number, each.start, each.length) for each in got] == [(8, 0, 4096), (8, 8192, 4)]


def test_a_ping_is_told_which_request_is_being_answered(harness):
    ref = harness.service.offer(MemoryBody.of({"w": tensor("U8", (64 << 20,))}), ["site-1"])
    receiver = Asker(harness.channel())
    receiver.send(Fetch(ref.token, 3, [(0, 64 << 20)], 1 << 20))
    assert receiver.header().kind == MESSAGE  # its greeting
    assert receiver.header().number == 3
    receiver.send(Ping(ref.token, 4))
    assert reply_to(receiver, 4) == Pong(4, 3)
    assert ask(Asker(harness.channel()), Ping(ref.token, 6)) == Pong(6, 0)


@pytest.mark.parametrize(
    ("start", "stop", "chunk_size", "reason"),
    [
        (-16, 16, 16, "not a range"),
        (0, NBYTES + 1, 4096, "not a range"),
        (0, 2**63, 4096, "not a range"),
        (0, -16, 4096, "not a range"),
        (4096, 4096, 4096, "not a range"),
        (4096, 16, 4096, "not a range"),
        (0, 4096, 100, "multiple of 16"),
        (0, 4096, -16, "multiple of 16"),
    ],
)
def test_a_range_that_makes_no_sense_is_refused_and_the_service_goes_on(
    harness, start, stop, chunk_size, reason
):
    ref = offer(harness)
    receiver = Asker(harness.channel())
    fetch_request = Fetch(ref.token, receiver.next_number(), [(start, stop)], chunk_size)
    assert reason in refusal(receiver, fetch_request)
    if chunk_size == 100:  # nor does a body come together with its layout in such chunks
        receiver.send(Open(ref.token, 9, 2**62, chunk_size))
        assert isinstance(reply_to(receiver, 9), Opened)
        assert reason in reply_to(receiver, 9).reason
    assert ref.deliveries["site-1"].requests == 0
    assert_same_tensors(fetch(harness.receiver(), ref.token).tensors, MODEL)


def test_closing_the_service_aborts_what_is_on_offer_and_its_receivers_see_the_end(harness):
    ref, unattached = offer(harness, "site-1"), offer(harness, "nobody")
    receiver = harness.receiver("site-1")
    remote = RemoteSource(receiver, ref.token, QUICK)
    harness.service.close()
    for each in (ref, unattached):
        assert each.outcome.status == "aborted"
        assert "the service was closed" in each.outcome.reason
    # What the service had put on its way may arrive; then comes the end.
    with pytest.raises(ChannelClosedError):
        remote.read(0, NBYTES, memoryview(bytearray(NBYTES)))


def test_a_source_that_fails_is_refused_with_its_error_and_all_else_is_served(harness, capfd):
    class Defective(MemoryBody):
        def in_place(self, start, stop):
            raise MemoryError

    body = MemoryBody.of(MODEL)
    views = dict.fromkeys(MODEL, memoryview(b""))
    ref = harness.service.offer(Defective(body.layout, MODEL, views), ["site-1"])
    receiver = harness.receiver()
    with pytest.raises(RefusedError, match=r"what is on offer cannot be read: MemoryError"):
        fetch(receiver, ref.token)
    assert "MemoryError" in ref.wait(30).reason
    assert "in_place" in capfd.readouterr().err  # whose defect it is
    assert body_of(fetch(receiver, offer(harness, "site-1").token)) == body_of(MemoryBody.of(MODEL))


def test_a_service_can_be_closed_while_it_is_being_woken():
    for _ in range(100):
        with DownloadService() as service:
            ours, theirs = pipe("server", "site-1")
            service.attach(ours, "site-1")
        with pytest.raises(ChannelClosedError):
            theirs.receive([memoryview(bytearray(1000))], Deadline(10))  # longer than a greeting
        theirs.close()
    assert not [t for t in threading.enumerate() if t.name.startswith("sends to")]


@pytest.mark.parametrize("limits", [Limits(layout_bytes=64), Limits(layout_tensors=1)])
def test_a_layout_for_which_there_is_no_room_is_refused_before_it_is_offered(limits):
    with (
        DownloadService(limits=limits) as service,
        pytest.raises(LayoutError, match=r"names and shapes of 2 tensors .* in several parts"),
    ):
        service.offer(MemoryBody.of({"a": tensor("F32", ()), "b": tensor("F32", ())}), ["s"])


def test_an_ok_that_comes_after_the_ref_settled_is_refused_with_the_reason(harness):
    ref = harness.service.offer(MemoryBody.of(MODEL), ["site-1", "site-2"])
    receiver = Asker(harness.channel())
    ref.abort("no more")
    answer = ask(receiver, Close(ref.token, receiver.next_number(), True, ""))
    assert isinstance(answer, Refused)
    assert "the ref had settled before this receiver was done" in answer.reason
    assert answer.reason.endswith(": no more")


def test_settled_refs_are_remembered_for_a_while_only(harness):
    first, *_, last = (offer(harness, "site-1") for _ in range(1100))
    for ref in list(harness.service._refs.values()):
        ref.abort("enough")
    assert len(harness.service.settled) == 1024
    assert last.token in harness.service.settled
    assert first.token not in harness.service.settled


def test_a_request_that_arrives_byte_by_byte_is_answered(harness):
    ref = offer(harness)
    asker = Asker(harness.channel())
    for byte in pack_message(Open(ref.token, 1)):
        asker.send_bytes(bytes([byte]))
    assert isinstance(reply_to(asker, 1), Opened)


def test_a_beat_is_not_answered(harness):
    ref = offer(harness)
    asker = Asker(harness.channel())
    asker.send(Ping(bytes(16), 0), Ping(ref.token, 0), Ping(ref.token, 5))
    assert asker.header().number == 0  # its greeting
    assert asker.header().number == 5


def test_an_instance_that_comes_back_supersedes_its_channel_and_another_one_coexists(harness):
    ref = offer(harness, "site-1")
    channels = [harness.channel() for _ in range(3)]
    hello = [pack_message(Hello(VERSION, instance)) for instance in (b"first", b"other", b"first")]
    askers = []
    for channel, greeting in zip(channels, hello, strict=True):
        asker = Asker(channel, greeting)
        assert isinstance(ask(asker, Open(ref.token, 1)), Opened)
        askers.append(asker)
    with pytest.raises(ChannelClosedError):
        ask(askers[0], Open(ref.token, 2))
    for asker in askers[1:]:
        assert isinstance(ask(asker, Open(ref.token, 2)), Opened)
    assert ref.outcome is None


@pytest.mark.parametrize("ends", ["itself", "after it was let go"])
def test_a_receiver_that_is_detached_is_forgotten_and_what_was_on_offer_to_it_is_settled(
    harness, ends
):
    service = harness.service
    for number in range(50):
        name = f"worker-1/{number}"
        sock, ref = harness.socket(name), offer(harness, name)
        if ends == "itself":
            sock.shutdown(socket.SHUT_RDWR)
            assert ref.wait(20).status == "aborted"
        service.detach(name)
        assert ref.wait(20).status == "aborted"
        assert ends == "itself" or ref.outcome.reason == f"{name}: its channel was closed here"
        while sock.recv(1000):  # its greeting, if there was time for it
            pass
    # The next one is served as ever.
    assert_same_tensors(fetch(harness.receiver(name), offer(harness, name).token).tensors, MODEL)
    ref = offer(harness, name)
    service.detach(name)
    assert ref.wait(20).status == "aborted"
    assert service._lost == {}


def test_sixty_four_receivers_are_served_at_once(harness):
    names = [f"site-{number}" for number in range(64)]
    receivers = [harness.receiver(name) for name in names]
    ref = offer(harness, *names)
    with ThreadPoolExecutor(len(names)) as executor:
        for body in executor.map(lambda receiver: fetch(receiver, ref.token), receivers):
            assert_same_tensors(body.tensors, MODEL)
    assert ref.wait(30).ok
    assert {each.bytes for each in ref.deliveries.values()} == {NBYTES}


def test_an_ok_for_what_was_changed_since_it_was_sent_is_refused(harness):
    weight = torch.zeros(100)
    ref = harness.service.offer(MemoryBody.of({"w": weight}), ["site-1"])
    receiver = Asker(harness.channel())
    receiver.send(Open(ref.token, 1, 4096, 4096))
    while receiver.header().kind != FRAME:
        pass
    weight.add_(1)
    assert "'w' was changed" in refusal(receiver, Close(ref.token, 2, True, ""))
    assert not ref.wait(30).ok
