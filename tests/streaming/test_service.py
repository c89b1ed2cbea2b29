"""The service: whatever its receivers do and its sources fail with, it serves the others.

What it answers to each request, test_stranger.py has.
"""

import socket
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from harness import MODEL, QUICK, fetch
from packets import BrokenError, exactly
from stranger import RefusedError as Refused
from stranger import Stranger
from support import assert_same_tensors, body_of, tensor

from flstream.errors import ChannelClosedError, LayoutError, RefusedError
from flstream.model.memory import MemoryBody
from flstream.streaming import Channel, DownloadService, Limits
from flstream.streaming.download import RemoteSource


def test_closing_the_service_aborts_what_is_on_offer_and_its_receivers_see_the_end(harness):
    ref, unattached = harness.offer(MODEL), harness.offer(MODEL, "nobody")
    remote = RemoteSource(harness.receiver(), ref.token, QUICK)
    harness.service.close()
    for each in (ref, unattached):
        assert each.outcome.status == "aborted"
        assert "the service was closed" in each.outcome.reason
    # What the service had put on its way may arrive; then comes the end.
    with pytest.raises(ChannelClosedError):
        remote.read(0, remote.layout.nbytes, memoryview(bytearray(remote.layout.nbytes)))


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
    assert body_of(fetch(receiver, harness.offer(MODEL).token)) == body_of(MemoryBody.of(MODEL))


def test_a_service_can_be_closed_while_it_is_being_woken():
    for _ in range(100):
        with DownloadService() as service:
            ours, theirs = socket.socketpair()
            service.attach(Channel(ours, "site-1"), "site-1")
        with theirs, pytest.raises((BrokenError, ConnectionError)):
            exactly(theirs, 1000)  # longer than a greeting
    assert not [t for t in threading.enumerate() if t.name.startswith("sends to")]


@pytest.mark.parametrize("limits", [Limits(layout_bytes=64), Limits(layout_tensors=1)])
def test_a_layout_for_which_there_is_no_room_is_refused_before_it_is_offered(limits):
    with (
        DownloadService(limits=limits) as service,
        pytest.raises(LayoutError, match=r"names and shapes of 2 tensors .* in several parts"),
    ):
        service.offer(MemoryBody.of({"a": tensor("F32", ()), "b": tensor("F32", ())}), ["s"])


def test_settled_refs_are_remembered_for_a_while_only(harness):
    refs = [harness.offer(MODEL) for _ in range(1100)]
    for ref in refs:
        ref.abort("enough")
    receiver = Stranger(lambda: harness.socket("site-1"))
    for ref, reason in ((refs[-1], "had settled .* enough"), (refs[0], "not on offer")):
        with pytest.raises(Refused, match=reason):
            receiver.call("Close", token=ref.token, ok=True)


@pytest.mark.parametrize("ends", ["itself", "after it was let go"])
def test_a_receiver_that_is_detached_is_forgotten_and_what_was_on_offer_to_it_is_settled(
    harness, ends
):
    for number in range(50):
        name = f"worker-1/{number}"
        sock, ref = harness.socket(name), harness.offer(MODEL, name)
        if ends == "itself":
            sock.shutdown(socket.SHUT_RDWR)
            assert ref.wait(20).status == "aborted"
        harness.service.detach(name)
        assert ref.wait(20).status == "aborted"
        assert ends == "itself" or ref.outcome.reason == f"{name}: its channel was closed here"
        while sock.recv(1000):  # its greeting, if there was time for it
            pass
        assert harness.offer(MODEL, name).outcome is None  # as one to who is yet to come
    # The next one is served as ever.
    ref = harness.offer(MODEL, name)
    assert_same_tensors(fetch(harness.receiver(name), ref.token).tensors, MODEL)


def test_sixty_four_receivers_are_served_at_once(harness):
    names = [f"site-{number}" for number in range(64)]
    receivers = [harness.receiver(name) for name in names]
    ref = harness.offer(MODEL, *names)
    with ThreadPoolExecutor(len(names)) as executor:
        for body in executor.map(lambda receiver: fetch(receiver, ref.token), receivers):
            assert_same_tensors(body.tensors, MODEL)
    assert ref.wait(30).ok
    assert {each.bytes for each in ref.deliveries.values()} == {MemoryBody.of(MODEL).layout.nbytes}
