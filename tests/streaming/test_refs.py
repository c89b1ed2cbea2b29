"""A ref settles once, lets go of its tensors, and tells whoever waits how it ended."""

import gc
import threading
import weakref

import pytest
import torch
from asking import MODEL, Asker, refusal
from harness import fetch

from flstream.model.memory import MemoryBody
from flstream.streaming.refs import Outcome, Ref
from flstream.streaming.wire import FRAME, MESSAGE, Fetch, Open


def test_a_ref_settles_once_and_keeps_its_first_outcome():
    settled: list[Ref] = []
    ref = Ref(MemoryBody.of(MODEL), ["site-1"], after_settled=settled.append)
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


def test_the_first_word_of_a_receiver_counts_and_each_failure_is_told():
    ref = Ref(MemoryBody.of(MODEL), ["site-1", "site-2", "site-3"])
    ref.receiver_done("site-1", "no room")
    ref.receiver_done("site-1", None)
    ref.receiver_done("site-2", None)
    assert ref.outcome is None
    ref.receiver_done("site-3", "no time")
    assert ref.outcome == Outcome("aborted", "site-1: no room; site-3: no time")


@pytest.mark.parametrize("ending", ["finished", "aborted"])
def test_a_settled_ref_lets_go_of_its_tensors(harness, ending):
    weight = torch.zeros(5000)
    storage = weakref.ref(weight.untyped_storage())
    source = MemoryBody.of({"w": weight})
    watched = weakref.ref(source)
    ref = harness.service.offer(source, ["site-1"])
    del source, weight
    receiver = harness.receiver()
    assert watched() is not None
    if ending == "finished":
        fetch(receiver, ref.token)
        ref.wait(30)
    else:
        ref.abort("enough")
    assert ref.outcome.status == ending
    # An answer to this says that the service's thread is through with all that came before.
    assert "not on offer" in refusal(Asker(harness.channel()), Open(ref.token, 1))
    gc.collect()
    assert watched() is None
    assert storage() is None


@pytest.mark.parametrize("takes", [0, 100, 3 << 20])
def test_a_settled_ref_lets_go_of_its_tensors_though_a_frame_of_it_is_on_its_way(harness, takes):
    weight = torch.zeros(4 << 20)
    storage = weakref.ref(weight.untyped_storage())
    ref = harness.service.offer(MemoryBody.of({"w": weight}), ["site-1"])
    del weight
    receiver, other = Asker(harness.channel()), Asker(harness.channel())
    # The frame is longer than what the kernel takes, and nobody, or hardly anybody, reads it.
    for number in (1, 2):
        receiver.send(Fetch(ref.token, number, 0, 16 << 20, 16 << 20))
    while receiver.header().kind != FRAME:
        pass
    receiver.packets.payload([memoryview(bytearray(takes))], receiver)
    ref.abort("enough")
    for number in (1, 2):
        assert "not on offer" in refusal(other, Open(ref.token, number))
    gc.collect()
    kept = storage() is not None  # not in the assertion, which would print every byte of it
    assert not kept
    # The frame ends where it should, so that what comes after it is found at once.
    assert receiver.header().kind == MESSAGE
