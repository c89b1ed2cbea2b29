"""Repairs: what is damaged or lost on the way is fetched again, and only that."""

from dataclasses import replace

import pytest
from harness import QUICK, fetch, flip
from support import assert_same_tensors, body_of, tensor

from flstream.errors import IntegrityError, RefusedError
from flstream.model.memory import MemoryBody
from flstream.streaming import requesting
from flstream.streaming.download import download
from flstream.streaming.receiver import StreamSettings
from flstream.streaming.remote import RemoteSource
from flstream.streaming.wire import Close, Closed, Fetch, Opened, Probe, Refused
from flstream.telemetry.events import Transfer

MODEL = {"large": tensor("F32", (300, 100)), "small": tensor("F16", (5,)), "flag": tensor("U8", ())}
ALL, FRAMES = 120_011, 30  # bytes of MODEL, and frames of a download of it


@pytest.fixture
def no_backoff(monkeypatch):
    """Repairs of the same chunk follow one another at once."""
    monkeypatch.setattr(requesting, "_BACKOFF_SECONDS", 0.0)


def at_frame(turn, change):
    """Change one frame of the download: the ``turn``-th, from 1."""
    seen = 0

    def on_frame(header, packet):
        nonlocal seen
        seen += 1
        if seen == turn:
            change(packet)

    return on_frame


def cut_in_half(packet):
    del packet[len(packet) // 2 :]


def repeat(packet):
    packet *= 2


CHANGES = {
    "flipped in its first byte": flip,
    "flipped in its last byte": lambda packet: flip(packet, -1),
    "flipped in its header": lambda packet: flip(packet, 20),
    "lost": bytearray.clear,
    "cut short": cut_in_half,
    "cut in its header": lambda packet: packet.__delitem__(slice(40, None)),
    "preceded by junk": lambda packet: packet.__setitem__(slice(0, 0), b"FLST" + bytes(99)),
}


@pytest.mark.parametrize("turn", [1, 2, 17, 30], ids="frame {}".format)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_frame_that_breaks_once_is_repaired_and_only_it_is_fetched_again(harness, turn, change):
    receiver, channel = harness.watched(at_frame(turn, change))
    ref = harness.service.offer(MemoryBody.of(MODEL), ["site-1"])
    sink, stats = download(receiver, ref.token, QUICK, MemoryBody.allocate)
    assert_same_tensors(sink.tensors, MODEL)
    assert ref.wait(30).ok
    start = 4096 * (turn - 1)
    stop = min(start + 4096, ALL)
    again = [each for each in channel.requests if isinstance(each, Fetch) and each.urgent]
    broken = [(start, stop)]
    if change is CHANGES["preceded by junk"]:
        broken = []
    elif change is CHANGES["cut short"] and turn < FRAMES:
        # Its end is taken from the beginning of the frame behind it.
        broken.append((stop, min(stop + 4096, ALL)))
    assert [(each.start, each.stop) for each in again] == broken
    sent = [frame.start for frame in channel.frames]
    assert sorted(sent) == sorted([*range(0, ALL, 4096), *(first for first, _ in broken)])
    assert stats == Transfer(ALL, 8 + len(broken), FRAMES, len(broken), stats.seconds)
    assert ref.deliveries["site-1"].bytes == ALL + sum(last - first for first, last in broken)


@pytest.mark.parametrize("change", [*list(CHANGES.values())[:6]], ids=list(CHANGES)[:6])
def test_a_whole_model_that_breaks_once_is_fetched_again(harness, change):
    receiver, channel = harness.watched(at_frame(1, change))
    ref = harness.service.offer(MemoryBody.of(MODEL), ["site-1"])
    sink, stats = download(receiver, ref.token, replace(QUICK, chunk_size=0), MemoryBody.allocate)
    assert_same_tensors(sink.tensors, MODEL)
    assert stats == Transfer(ALL, 2, 1, 1, stats.seconds)
    assert len(channel.frames) == 2


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_reader_from_front_to_back_is_given_what_was_repaired_in_its_place(harness, change):
    body = MemoryBody.of(MODEL)
    receiver, channel = harness.watched(at_frame(3, change))
    ref = harness.service.offer(body, ["site-1"])
    remote = RemoteSource(receiver, ref.token, QUICK)
    read = bytearray(ALL)
    for start in range(0, ALL, 8192):
        stop = min(start + 8192, ALL)
        remote.receive(start, stop, [memoryview(read)[start:stop]])
    remote.close()
    assert read == body_of(body)
    assert len(channel.frames) <= FRAMES + 2


def test_frames_that_come_twice_are_taken_once(harness):
    receiver, channel = harness.watched(lambda header, packet: repeat(packet))
    ref = harness.service.offer(MemoryBody.of(MODEL), ["site-1"])
    sink, stats = download(receiver, ref.token, QUICK, MemoryBody.allocate)
    assert_same_tensors(sink.tensors, MODEL)
    assert stats == Transfer(ALL, 8, FRAMES, 0, stats.seconds)
    assert len(channel.frames) == FRAMES


def test_frames_in_another_order_are_put_where_they_belong(harness):
    held = []

    def swap(header, packet):
        if held:
            packet += held.pop()
        else:
            held.append(bytes(packet))
            packet.clear()

    receiver, _ = harness.watched(swap)
    ref = harness.service.offer(MemoryBody.of(MODEL), ["site-1"])
    sink, stats = download(receiver, ref.token, QUICK, MemoryBody.allocate)
    assert_same_tensors(sink.tensors, MODEL)
    assert (stats.bytes, stats.chunks) == (ALL, FRAMES)


@pytest.mark.parametrize("kind", [Fetch, Close], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("damage", [bytearray.clear, flip, lambda packet: flip(packet, 20)])
def test_a_request_that_is_lost_or_damaged_is_found_out_and_made_again(harness, kind, damage):
    hit = []

    def once(request, packet):
        if isinstance(request, kind) and not hit:
            hit.append(request)
            damage(packet)

    receiver, channel = harness.watched(on_request=once)
    ref = harness.service.offer(MemoryBody.of(MODEL), ["site-1"])
    sink, stats = download(receiver, ref.token, QUICK, MemoryBody.allocate)
    assert_same_tensors(sink.tensors, MODEL)
    assert ref.wait(30).ok
    assert stats.bytes == ALL
    assert len(channel.frames) == FRAMES
    if kind is Fetch:
        again = [each for each in channel.requests if isinstance(each, Fetch) and each.urgent]
        assert [(each.start, each.stop) for each in again] == [(hit[0].start, hit[0].stop)]


@pytest.mark.parametrize("kind", [Opened, Closed], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("damage", [bytearray.clear, flip, cut_in_half, repeat])
def test_a_reply_that_is_lost_damaged_or_repeated_does_no_harm(harness, kind, damage):
    hit = []

    def once(reply, packet):
        if isinstance(reply, kind) and not hit:
            hit.append(reply)
            damage(packet)

    receiver, _ = harness.watched(on_reply=once)
    ref = harness.service.offer(MemoryBody.of(MODEL), ["site-1"])
    assert_same_tensors(fetch(receiver, ref.token).tensors, MODEL)
    assert len(hit) == 1
    assert ref.wait(30).ok


def test_a_refusal_that_is_lost_is_given_again_to_a_probe(harness):
    receiver, channel = harness.watched(
        on_reply=lambda reply, packet: (
            packet.clear() if isinstance(reply, Refused) and not probes() else None
        )
    )

    def probes():
        return [each for each in channel.requests if isinstance(each, Probe)]

    ref = harness.service.offer(MemoryBody.of(MODEL), ["site-1"])
    remote = RemoteSource(receiver, ref.token, QUICK)
    ref.abort("enough")
    with pytest.raises(RefusedError, match="settled"):
        remote.receive_whole()
    assert probes()


@pytest.mark.parametrize("chunk_size", [0, 4096])
def test_what_is_damaged_every_time_is_an_error_that_names_tensor_range_and_peer(
    harness, no_backoff, chunk_size
):
    broken = (0, 8192) if chunk_size else (0,)
    receiver, channel = harness.watched(
        lambda header, packet: flip(packet, -1) if header.start in broken else None
    )
    ref = harness.service.offer(MemoryBody.of(MODEL), ["site-1"])
    how = replace(QUICK, chunk_size=chunk_size)
    sentence = (
        rf"bytes (0 to {chunk_size or ALL}|8192 to 12288) from server \(tensor 'large'\) "
        "were fetched 6 times in vain: it does not match its digest"
    )
    with pytest.raises(IntegrityError, match=sentence):
        download(receiver, ref.token, how, MemoryBody.allocate)
    outcome = ref.wait(30)
    assert outcome.status == "aborted"
    assert "site-1: bytes" in outcome.reason
    # Nothing was fetched more often than that, and what was sound once only.
    starts = [frame.start for frame in channel.frames]
    assert max(map(starts.count, starts)) <= 6
    assert all(starts.count(start) == 1 for start in starts if start not in broken)


def test_what_is_lost_every_time_is_an_error_that_says_so(harness, no_backoff):
    receiver, channel = harness.watched(
        lambda header, packet: packet.clear() if header.start == 4096 else None
    )
    ref = harness.service.offer(MemoryBody.of(MODEL), ["site-1"])
    how = replace(QUICK, probe_after=0.01)
    with pytest.raises(IntegrityError, match=r"bytes 4096 to 8192 .* 6 times .* lost on the way"):
        fetch(receiver, ref.token, how)
    assert [frame.start for frame in channel.frames].count(4096) == 6


def test_the_tensor_named_is_the_one_in_which_the_damaged_frame_begins(harness, no_backoff):
    tensors = {"a": tensor("F32", (1024,)), "b": tensor("F32", (1024,)), "c": tensor("F32", (9,))}
    receiver, _ = harness.watched(
        lambda header, packet: flip(packet) if header.start == 4096 else None
    )
    ref = harness.service.offer(MemoryBody.of(tensors), ["site-1"])
    with pytest.raises(IntegrityError, match=r"bytes 4096 to 8192 .*tensor 'b'"):
        fetch(receiver, ref.token)


def test_damage_all_over_a_model_is_repaired_without_more_requests_than_a_sender_takes(harness):
    tensors = {"w": tensor("U8", (32_000,))}
    seen = set()

    def every_other(header, packet):
        if header.start % 32 == 0 and header.start not in seen:
            seen.add(header.start)
            flip(packet)

    receiver, channel = harness.watched(every_other)
    ref = harness.service.offer(MemoryBody.of(tensors), ["site-1"])
    how = StreamSettings(chunk_size=16, request_size=32_000, request_timeout=30, probe_after=0.05)
    sink, stats = download(receiver, ref.token, how, MemoryBody.allocate)
    assert_same_tensors(sink.tensors, tensors)
    assert (stats.retries, stats.chunks, len(channel.frames)) == (1000, 2000, 3000)


def test_a_receiver_goes_on_with_the_next_ref_after_one_that_failed(harness, no_backoff):
    receiver, _ = harness.watched(
        lambda header, packet: flip(packet) if header.token == bad.token else None
    )
    bad = harness.service.offer(MemoryBody.of(MODEL), ["site-1"])
    good = harness.service.offer(MemoryBody.of(MODEL), ["site-1"])
    with pytest.raises(IntegrityError):
        fetch(receiver, bad.token)
    # What was asked for and not read yet is still on its way, and is skipped.
    assert_same_tensors(fetch(receiver, good.token).tensors, MODEL)


def test_a_ref_that_is_read_in_part_can_be_read_again_from_the_front(harness):
    receiver = harness.receiver()
    body = MemoryBody.of(MODEL)
    ref = harness.service.offer(body, ["site-1"])
    part = bytearray(8192)
    RemoteSource(receiver, ref.token, QUICK).receive(0, 8192, [memoryview(part)])
    assert part == body_of(body)[:8192]
    # The frames that were under way are of no use now, and are passed over.
    assert_same_tensors(fetch(receiver, ref.token).tensors, MODEL)
    assert ref.wait(30).ok
