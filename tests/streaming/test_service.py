"""A ref settles once, when all are done, and lets go of its tensors; a quorum may be waited for.

Whatever receivers do and sources fail with, the service serves the others. What it answers to each
request, test_stranger.py has.
"""

import gc
import re
import socket
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from harness import MODEL, QUICK, fetch
from hypothesis import given
from hypothesis import strategies as st
from packets import HEADER_BYTES, TRAILER_BYTES, BrokenError, exactly
from stranger import RefusedError as Refused
from stranger import Stranger
from support import assert_same_tensors, body_of, tensor

from flstream.errors import ChannelClosedError, LayoutError, RefusedError
from flstream.model.memory import MemoryBody
from flstream.streaming import Channel, DownloadService, Limits, Outcome, Ref, connection
from flstream.streaming.api import download_tensors
from flstream.streaming.download import RemoteSource

NAMES = ["site-1", "site-2", "site-3"]
LARGE = {"w": tensor("U8", (32 << 20,))}
LARGE_BYTES = 32 << 20


def test_a_ref_settles_once_also_if_its_callback_interrupts_and_keeps_its_outcome():
    settled: list[Ref] = []
    ref = Ref(MemoryBody.of(MODEL), ["site-1"], after_settled=settled.append)
    barrier = threading.Barrier(8)

    def settle(reason: str) -> None:
        barrier.wait()
        ref.abort(reason)

    with ThreadPoolExecutor(8) as executor:
        assert list(executor.map(settle, "12345678")) == [None] * 8
    first = ref.outcome
    ref.receiver_done("site-1", None)
    ref.abort("too late")
    assert settled == [ref]
    assert ref.outcome is first
    assert ref.wait(0) is first
    assert not first.ok
    settled = []

    def interrupt(ref):
        settled.append(ref.outcome.status)
        raise KeyboardInterrupt

    ref = Ref(MemoryBody.of(MODEL), ["site-1"], after_settled=interrupt)
    with pytest.raises(KeyboardInterrupt):
        ref.receiver_done("site-1", None)
    ref.receiver_done("site-1", "too late")
    ref.abort("too late")
    assert ref.wait(0) == Outcome("finished")
    assert settled == ["finished"]
    assert ref.deliveries["site-1"].failure is None


@st.composite
def closings(draw):
    """A quorum, and what each receiver says: why it failed, or None; in the order they say it."""
    words = draw(st.lists(st.sampled_from([None, "no room", ""]), min_size=1, max_size=7))
    receivers = draw(st.permutations([f"site-{number}" for number in range(len(words))]))
    quorum = draw(st.none() | st.integers(1, len(words)))
    return quorum, list(zip(receivers, words, strict=True))


@given(closings())
def test_a_quorum_is_certain_with_the_first_word_that_decides_it(drawn):
    quorum, said = drawn
    settled = []
    receivers = [name for name, _ in said]
    ref = Ref(MemoryBody.of(MODEL), receivers, after_settled=settled.append)
    have, failed = 0, []
    for number, (name, failure) in enumerate(said, 1):
        ref.receiver_done(name, failure)
        ref.receiver_done(name, None if failure else "changed its mind")  # the first word counts
        have += failure is None
        failed += [name] if failure is not None else []
        if quorum is not None and have >= quorum:
            status = "finished"
        elif quorum is not None and len(said) - len(failed) < quorum:
            status = "aborted"
        elif number < len(said):
            status = "waiting"
        else:
            status = "aborted" if failed else "finished"
        outcome = ref.wait(0, quorum)
        # Once all are done it has settled, whoever waits for how many.
        if number == len(said) and quorum is not None:
            status = "aborted" if failed else "finished"
        assert outcome.status == status
        assert bool(settled) == (number == len(said))
    assert settled == [ref]
    assert ref.source is None
    if ref.outcome.ok:
        assert ref.outcome == Outcome("finished")
    else:
        assert all(
            re.search(rf"{name}: (no room|it gave no reason)", ref.outcome.reason)
            for name in failed
        )


def test_who_is_still_fetching_when_the_offer_is_withdrawn_is_refused_the_rest(harness):
    ref = harness.offer(LARGE, *NAMES)
    receiver = harness.receiver("site-2")
    late = RemoteSource(receiver, ref.token, QUICK)
    part = memoryview(bytearray(LARGE_BYTES))
    late.read(0, 16384, part[:16384])
    ref.abort("enough of them have it")
    with pytest.raises(RefusedError, match="settled"):
        late.read(16384, LARGE_BYTES, part[16384:])
    late.leave()
    # Its channel is none the worse for it.
    again = harness.offer(MODEL, "site-2")
    assert_same_tensors(fetch(receiver, again.token).tensors, MODEL)


def test_a_quorum_that_takes_too_long_is_told_of_and_those_beyond_it_are_served(harness):
    ref = Ref(MemoryBody.of(MODEL), NAMES)
    ref.receiver_done("site-1", None)
    outcome = ref.wait(0.01, 2)
    assert outcome.status == "waiting"
    reason = outcome.reason
    late = "fewer than 2 of 3 receivers were done within 0.01 s, without site-2 (sent 0 B of 117.2"
    assert reason.startswith(late)
    assert "site-3 (sent 0 B" in reason
    ref = harness.offer(MODEL, *NAMES)
    for name in NAMES[:2]:
        assert ref.wait(0, 2).status == "waiting"
        fetch(harness.receiver(name), ref.token)
    assert ref.wait(30, 2).ok
    assert ref.outcome is None
    assert_same_tensors(fetch(harness.receiver(NAMES[2]), ref.token).tensors, MODEL)
    assert ref.wait(30).ok


@pytest.mark.parametrize("ending", ["finished", "by a selection", "aborted"])
def test_a_settled_ref_lets_go_of_its_tensors(harness, ending):
    weight = torch.zeros(5000)
    storage = weakref.ref(weight.untyped_storage())
    source = MemoryBody.of({"w": weight, "v": torch.ones(2)})
    watched = weakref.ref(source)
    ref = harness.service.offer(source, ["site-1"])
    del source, weight
    receiver = harness.receiver()
    assert watched() is not None
    if ending == "aborted":
        ref.abort("enough")
    else:
        names = ["w"] if ending == "by a selection" else None
        download_tensors(receiver, ref.token, select=names)
    assert ref.wait(30).ok == (ending != "aborted")
    gc.collect()
    assert watched() is None
    assert storage() is None


def test_who_asks_much_rests_while_another_is_sent_something(harness, monkeypatch):
    monkeypatch.setattr(connection, "_LEAST_REST_SECONDS", 0.1)
    monkeypatch.setattr(connection, "_LOOK_SECONDS", 0.05)
    size = 16 << 20
    ref = harness.offer({"w": torch.zeros(4 << 20)}, "site-1", "site-2")
    other, asking = (Stranger(lambda name=name: harness.socket(name)) for name in ref.deliveries)
    other.step()  # the greeting
    other.ask("Fetch", token=ref.token, ranges=[(0, size)], chunk_size=size)
    exactly(other.sock, HEADER_BYTES)  # and hardly anybody reads the rest
    began = time.monotonic()
    for _ in range(4):
        asking.call("Ping", token=ref.token)
    assert time.monotonic() - began > 0.2


@pytest.mark.parametrize("takes", [0, 100, 3 << 20])
def test_a_settled_ref_lets_go_of_its_tensors_though_a_frame_of_it_is_on_its_way(harness, takes):
    weight, size = torch.zeros(4 << 20), 16 << 20
    storage = weakref.ref(weight.untyped_storage())
    ref = harness.offer({"w": weight})
    del weight
    receiver = Stranger(lambda: harness.socket("site-1"))
    receiver.step()  # the greeting
    # The frame is longer than what the kernel takes, and nobody, or hardly anybody, reads it.
    receiver.ask("Fetch", token=ref.token, ranges=[(0, size)], chunk_size=size)
    exactly(receiver.sock, HEADER_BYTES + takes)
    ref.abort("enough")
    for _ in range(100):  # the thread that has sent the header may be about to let go
        expect_refused(harness, ref)
        gc.collect()
        if storage() is None:
            break
    kept = storage() is not None  # not in the assertion, which would print every byte of it
    assert not kept
    # The frame ends where it should, so that what comes after it is found at once.
    exactly(receiver.sock, size - takes + TRAILER_BYTES)
    with pytest.raises(Refused, match="not on offer"):
        receiver.call("Ping", token=ref.token)


def expect_refused(harness, ref):
    """By an answer to this, the service is through with what came before."""
    with pytest.raises(Refused, match="not on offer"):
        Stranger(lambda: harness.socket("site-2")).call("Open", token=ref.token)


# The service.
def test_closing_the_service_aborts_what_is_on_offer_and_its_receivers_see_the_end(harness):
    ref, unattached = harness.offer(MODEL), harness.offer(MODEL, "nobody")
    remote = RemoteSource(harness.receiver(), ref.token, QUICK)
    harness.service.close()
    for outcome in (ref.outcome, unattached.outcome):
        assert (outcome.status, "the service was closed" in outcome.reason) == ("aborted", True)
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
def test_who_is_detached_is_forgotten_and_what_was_on_offer_to_it_settled(harness, ends):
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
