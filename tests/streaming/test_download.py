"""Downloads: every tensor arrives bit by bit, in as many frames and requests as promised."""

from math import ceil

import pytest
import safetensors.torch
import torch
from halls import QUICK, fetch, flip, open_hall
from hypothesis import given, settings
from hypothesis import strategies as st
from support import as_bytes, assert_same_tensors, body_of, entries, every_kind, tensor

from flstream.errors import DeadlineError, IntegrityError, LayoutError, RefusedError
from flstream.model.checkpoint import FileSink, FileSource, write_checkpoint
from flstream.model.layout import Layout, TensorSpec
from flstream.model.memory import BufferSource, MemoryBody
from flstream.streaming import remote as remote_module
from flstream.streaming.download import download
from flstream.streaming.receiver import StreamSettings
from flstream.streaming.remote import RemoteSource
from flstream.streaming.wire import HEADER_BYTES, Close, Closed, Fetch, Opened, Probe, Refused
from flstream.telemetry.events import Transfer

MODEL = {"large": tensor("F32", (300, 100)), "small": tensor("F16", (5,)), "flag": tensor("U8", ())}
multiples_of_16 = st.integers(1, 40).map(lambda count: 16 * count)


@given(entries(), multiples_of_16, multiples_of_16, st.integers(1, 5))
@settings(max_examples=60)
def test_every_tensor_arrives_bit_by_bit_in_frames_and_requests_as_promised(
    given_entries, chunk_size, request_size, window
):
    tensors = {name: tensor(code, shape) for name, code, shape in given_entries}
    body = MemoryBody.of(tensors)
    how = StreamSettings(chunk_size, request_size, window, request_timeout=30)
    with open_hall() as hall:
        receiver, channel = hall.watched()
        ref = hall.service.offer(body, ["site-1"])
        sink, stats = download(receiver, ref.token, how, MemoryBody.allocate)
        assert ref.wait(30).ok
    assert_same_tensors(sink.tensors, tensors)
    frame_size = min(chunk_size, request_size)
    nbytes = body.layout.nbytes
    assert all(frame.length <= chunk_size for frame in channel.frames)
    assert len(channel.frames) == ceil(nbytes / frame_size)
    requests = ceil(nbytes / (request_size // frame_size * frame_size))
    assert stats == Transfer(nbytes, requests, len(channel.frames), 0, stats.seconds)
    delivery = ref.deliveries["site-1"]
    assert (delivery.bytes, delivery.requests, delivery.chunks) == (
        nbytes,
        requests,
        len(channel.frames),
    )


def test_every_dtype_arrives_scalars_and_empty_tensors_too(hall):
    ref = hall.service.offer(MemoryBody.of(every_kind()), ["site-1"])
    assert_same_tensors(fetch(hall.receiver(), ref.token).tensors, every_kind())


def test_one_tensor_larger_than_a_chunk_is_split(hall):
    tensors = {"w": tensor("F32", (1 << 18,))}
    receiver, channel = hall.watched()
    ref = hall.service.offer(MemoryBody.of(tensors), ["site-1"])
    how = StreamSettings(chunk_size=65536, request_size=262144)
    sink, stats = download(receiver, ref.token, how, MemoryBody.allocate)
    assert_same_tensors(sink.tensors, tensors)
    assert [frame.length for frame in channel.frames] == [65536] * 16
    assert stats.requests == 4


def test_many_small_tensors_share_one_frame(hall):
    # More of them than the kernel takes in one call, and than the service sends uncopied.
    tensors = {f"t{number:04}": torch.full((3,), float(number)) for number in range(2000)}
    receiver, channel = hall.watched()
    ref = hall.service.offer(MemoryBody.of(tensors), ["site-1"])
    sink, stats = download(receiver, ref.token, StreamSettings(), MemoryBody.allocate)
    assert_same_tensors(sink.tensors, tensors)
    assert [frame.length for frame in channel.frames] == [24_000]
    assert stats.requests == 1


def test_a_few_small_tensors_are_sent_from_their_own_storage(hall):
    tensors = {f"t{number}": torch.full((100,), float(number)) for number in range(50)}
    ref = hall.service.offer(MemoryBody.of(tensors), ["site-1"])
    assert_same_tensors(fetch(hall.receiver(), ref.token).tensors, tensors)


@pytest.mark.parametrize(
    "tensors", [MODEL, {}, {"none": torch.zeros(0)}], ids=["tensors", "none", "empty"]
)
@pytest.mark.parametrize("chunk_size", [0, 4096])
def test_a_model_arrives_streamed_or_as_one_message_even_if_it_has_no_bytes(
    hall, tensors, chunk_size
):
    ref = hall.service.offer(MemoryBody.of(tensors), ["site-1"])
    how = QUICK._replace(chunk_size=chunk_size)
    sink, stats = download(hall.receiver(), ref.token, how, MemoryBody.allocate)
    assert_same_tensors(sink.tensors, tensors)
    assert ref.wait(30).ok
    if chunk_size == 0:
        assert stats.chunks == stats.requests == (1 if sink.layout.nbytes else 0)


def test_one_message_of_the_whole_model_is_a_safetensors_file(hall):
    ref = hall.service.offer(MemoryBody.of(MODEL), ["site-1"])
    messages = []
    receiver, _ = hall.watched(lambda header, packet: messages.append(bytes(packet[HEADER_BYTES:])))
    download(receiver, ref.token, QUICK._replace(chunk_size=0), MemoryBody.allocate)
    assert_same_tensors(safetensors.torch.load(messages[0]), MODEL)


@pytest.mark.parametrize("chunk_size", [0, 16, 4096])
def test_a_model_arrives_in_a_modules_own_parameters(hall, chunk_size):
    torch.manual_seed(1)
    sent, module = torch.nn.Linear(30, 20), torch.nn.Linear(30, 20)
    ref = hall.service.offer(MemoryBody.of(sent.state_dict()), ["site-1"])
    where = module.weight.data_ptr()
    how = QUICK._replace(chunk_size=chunk_size)
    own = MemoryBody.of(module.state_dict(), writable=True)
    download(hall.receiver(), ref.token, how, lambda layout: own)
    assert torch.equal(module.weight, sent.weight)
    assert torch.equal(module.bias, sent.bias)
    assert module.weight.data_ptr() == where


@pytest.mark.parametrize("chunk_size", [0, 4096])
def test_a_file_arrives_as_a_file(hall, tmp_path, chunk_size):
    digest = write_checkpoint(tmp_path / "sent", MemoryBody.of(every_kind()))
    ref = hall.service.offer(FileSource(tmp_path / "sent"), ["site-1"])
    how = QUICK._replace(chunk_size=chunk_size)
    path = tmp_path / "received"
    sink, _ = download(hall.receiver(), ref.token, how, lambda layout: FileSink(path, layout))
    with sink:
        sink.finish()
    assert write_checkpoint(tmp_path / "again", FileSource(path)) == digest
    assert_same_tensors(safetensors.torch.load_file(path), every_kind())


def test_a_file_of_another_tools_order_arrives_tensor_by_tensor(hall, tmp_path):
    tensors = {"a": torch.arange(40, dtype=torch.int32), "b": torch.arange(40.0)}
    safetensors.torch.save_file(tensors, tmp_path / "theirs")
    order = Layout([TensorSpec("b", "F32", (40,), 0, 160), TensorSpec("a", "I32", (40,), 160, 320)])
    body = memoryview(body_of(MemoryBody.of({"b": tensors["b"]})) + as_bytes(tensors["a"]))
    for source in (FileSource(tmp_path / "theirs"), BufferSource(order, body)):
        ref = hall.service.offer(source, ["site-1"])
        assert_same_tensors(fetch(hall.receiver(), ref.token).tensors, tensors)


def test_a_sink_that_does_not_fit_is_refused_before_a_byte_arrives(hall):
    ref = hall.service.offer(MemoryBody.of(MODEL), ["site-1"])
    other = MemoryBody.of({**MODEL, "small": torch.zeros(6, dtype=torch.float16)})
    with pytest.raises(LayoutError, match=r"'small' has shape \[6\] instead of \[5\]"):
        download(hall.receiver(), ref.token, QUICK, lambda layout: other)
    assert ref.deliveries["site-1"].chunks == 0
    assert "'small'" in ref.wait(30).reason


def test_one_receiver_takes_one_download_after_another(hall):
    receiver = hall.receiver()
    for number in range(5):
        tensors = {"w": torch.full((5000,), float(number))}
        ref = hall.service.offer(MemoryBody.of(tensors), ["site-1"])
        assert_same_tensors(fetch(receiver, ref.token).tensors, tensors)


def test_several_receivers_have_one_ref_and_it_settles_with_the_last(hall):
    names = ["site-1", "site-2", "site-3"]
    ref = hall.service.offer(MemoryBody.of(MODEL), names)
    for name in names:
        assert ref.outcome is None
        assert_same_tensors(fetch(hall.receiver(name), ref.token).tensors, MODEL)
    assert ref.wait(30).ok
    assert all(delivery.closed_at for delivery in ref.deliveries.values())


@pytest.fixture
def no_backoff(monkeypatch):
    """Repairs of the same chunk follow one another at once."""
    monkeypatch.setattr(remote_module, "_BACKOFF_SECONDS", 0.0)


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
ALL, FRAMES = 120_011, 30  # bytes of MODEL, and frames of a download of it


@pytest.mark.parametrize("turn", [1, 2, 17, 30], ids="frame {}".format)
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_frame_that_breaks_once_is_repaired_and_only_it_is_fetched_again(hall, turn, change):
    receiver, channel = hall.watched(at_frame(turn, change))
    ref = hall.service.offer(MemoryBody.of(MODEL), ["site-1"])
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
def test_a_whole_model_that_breaks_once_is_fetched_again(hall, change):
    receiver, channel = hall.watched(at_frame(1, change))
    ref = hall.service.offer(MemoryBody.of(MODEL), ["site-1"])
    sink, stats = download(receiver, ref.token, QUICK._replace(chunk_size=0), MemoryBody.allocate)
    assert_same_tensors(sink.tensors, MODEL)
    assert stats == Transfer(ALL, 2, 1, 1, stats.seconds)
    assert len(channel.frames) == 2


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_a_reader_from_front_to_back_is_given_what_was_repaired_in_its_place(hall, change):
    body = MemoryBody.of(MODEL)
    receiver, channel = hall.watched(at_frame(3, change))
    ref = hall.service.offer(body, ["site-1"])
    remote = RemoteSource(receiver, ref.token, QUICK)
    read = bytearray(ALL)
    for start in range(0, ALL, 8192):
        stop = min(start + 8192, ALL)
        remote.receive(start, stop, [memoryview(read)[start:stop]])
    remote.close()
    assert read == body_of(body)
    assert len(channel.frames) <= FRAMES + 2


def test_frames_that_come_twice_are_taken_once(hall):
    receiver, channel = hall.watched(lambda header, packet: repeat(packet))
    ref = hall.service.offer(MemoryBody.of(MODEL), ["site-1"])
    sink, stats = download(receiver, ref.token, QUICK, MemoryBody.allocate)
    assert_same_tensors(sink.tensors, MODEL)
    assert stats == Transfer(ALL, 8, FRAMES, 0, stats.seconds)
    assert len(channel.frames) == FRAMES


def test_frames_in_another_order_are_put_where_they_belong(hall):
    held = []

    def swap(header, packet):
        if held:
            packet += held.pop()
        else:
            held.append(bytes(packet))
            packet.clear()

    receiver, _ = hall.watched(swap)
    ref = hall.service.offer(MemoryBody.of(MODEL), ["site-1"])
    sink, stats = download(receiver, ref.token, QUICK, MemoryBody.allocate)
    assert_same_tensors(sink.tensors, MODEL)
    assert (stats.bytes, stats.chunks) == (ALL, FRAMES)


@pytest.mark.parametrize("kind", [Fetch, Close], ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("damage", [bytearray.clear, flip, lambda packet: flip(packet, 20)])
def test_a_request_that_is_lost_or_damaged_is_found_out_and_made_again(hall, kind, damage):
    hit = []

    def once(request, packet):
        if isinstance(request, kind) and not hit:
            hit.append(request)
            damage(packet)

    receiver, channel = hall.watched(on_request=once)
    ref = hall.service.offer(MemoryBody.of(MODEL), ["site-1"])
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
def test_a_reply_that_is_lost_damaged_or_repeated_does_no_harm(hall, kind, damage):
    hit = []

    def once(reply, packet):
        if isinstance(reply, kind) and not hit:
            hit.append(reply)
            damage(packet)

    receiver, _ = hall.watched(on_reply=once)
    ref = hall.service.offer(MemoryBody.of(MODEL), ["site-1"])
    assert_same_tensors(fetch(receiver, ref.token).tensors, MODEL)
    assert len(hit) == 1
    assert ref.wait(30).ok


def test_a_refusal_that_is_lost_is_given_again_to_a_probe(hall):
    receiver, channel = hall.watched(
        on_reply=lambda reply, packet: (
            packet.clear() if isinstance(reply, Refused) and not probes() else None
        )
    )

    def probes():
        return [each for each in channel.requests if isinstance(each, Probe)]

    ref = hall.service.offer(MemoryBody.of(MODEL), ["site-1"])
    remote = RemoteSource(receiver, ref.token, QUICK)
    ref.abort("enough")
    with pytest.raises(RefusedError, match="settled"):
        remote.receive_whole()
    assert probes()


@pytest.mark.parametrize("chunk_size", [0, 4096])
def test_what_is_damaged_every_time_is_an_error_that_names_tensor_range_and_peer(
    hall, no_backoff, chunk_size
):
    broken = (0, 8192) if chunk_size else (0,)
    receiver, channel = hall.watched(
        lambda header, packet: flip(packet, -1) if header.start in broken else None
    )
    ref = hall.service.offer(MemoryBody.of(MODEL), ["site-1"])
    how = QUICK._replace(chunk_size=chunk_size)
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


def test_what_is_lost_every_time_is_an_error_that_says_so(hall, no_backoff):
    receiver, channel = hall.watched(
        lambda header, packet: packet.clear() if header.start == 4096 else None
    )
    ref = hall.service.offer(MemoryBody.of(MODEL), ["site-1"])
    how = QUICK._replace(probe_after=0.01)
    with pytest.raises(IntegrityError, match=r"bytes 4096 to 8192 .* 6 times .* lost on the way"):
        fetch(receiver, ref.token, how)
    assert [frame.start for frame in channel.frames].count(4096) == 6


def test_the_tensor_named_is_the_one_in_which_the_damaged_frame_begins(hall, no_backoff):
    tensors = {"a": tensor("F32", (1024,)), "b": tensor("F32", (1024,)), "c": tensor("F32", (9,))}
    receiver, _ = hall.watched(
        lambda header, packet: flip(packet) if header.start == 4096 else None
    )
    ref = hall.service.offer(MemoryBody.of(tensors), ["site-1"])
    with pytest.raises(IntegrityError, match=r"bytes 4096 to 8192 .*tensor 'b'"):
        fetch(receiver, ref.token)


def test_damage_all_over_a_model_is_repaired_without_more_requests_than_a_sender_takes(hall):
    tensors = {"w": tensor("U8", (32_000,))}
    seen = set()

    def every_other(header, packet):
        if header.start % 32 == 0 and header.start not in seen:
            seen.add(header.start)
            flip(packet)

    receiver, channel = hall.watched(every_other)
    ref = hall.service.offer(MemoryBody.of(tensors), ["site-1"])
    how = StreamSettings(chunk_size=16, request_size=32_000, request_timeout=30, probe_after=0.05)
    sink, stats = download(receiver, ref.token, how, MemoryBody.allocate)
    assert_same_tensors(sink.tensors, tensors)
    assert (stats.retries, stats.chunks, len(channel.frames)) == (1000, 2000, 3000)


def test_a_receiver_goes_on_with_the_next_ref_after_one_that_failed(hall, no_backoff):
    receiver, _ = hall.watched(
        lambda header, packet: flip(packet) if header.token == bad.token else None
    )
    bad = hall.service.offer(MemoryBody.of(MODEL), ["site-1"])
    good = hall.service.offer(MemoryBody.of(MODEL), ["site-1"])
    with pytest.raises(IntegrityError):
        fetch(receiver, bad.token)
    # What was asked for and not read yet is still on its way, and is skipped.
    assert_same_tensors(fetch(receiver, good.token).tensors, MODEL)


def test_a_ref_that_is_read_in_part_can_be_read_again_from_the_front(hall):
    receiver = hall.receiver()
    body = MemoryBody.of(MODEL)
    ref = hall.service.offer(body, ["site-1"])
    part = bytearray(8192)
    RemoteSource(receiver, ref.token, QUICK).receive(0, 8192, [memoryview(part)])
    assert part == body_of(body)[:8192]
    # The frames that were under way are of no use now, and are passed over.
    assert_same_tensors(fetch(receiver, ref.token).tensors, MODEL)
    assert ref.wait(30).ok


def test_a_sender_that_falls_silent_is_probed_until_the_request_times_out(hall):
    receiver, channel = hall.watched(
        on_request=lambda request, packet: (
            packet.clear() if isinstance(request, (Fetch, Probe)) else None
        )
    )
    ref = hall.service.offer(MemoryBody.of(MODEL), ["site-1"])
    remote = RemoteSource(receiver, ref.token, QUICK._replace(request_timeout=0.2))
    with pytest.raises(
        DeadlineError,
        match=r"server did not send the bytes from 0 on \(tensor 'large'\) within 0.2",
    ):
        remote.receive_whole()
    assert sum(isinstance(each, Probe) for each in channel.requests) >= 2


def test_a_download_is_read_from_front_to_back(hall):
    ref = hall.service.offer(MemoryBody.of(MODEL), ["site-1"])
    remote = RemoteSource(hall.receiver(), ref.token, QUICK)
    with pytest.raises(ValueError, match="goes on at byte 0, not at 4096"):
        remote.receive(4096, 8192, [memoryview(bytearray(4096))])


def test_a_file_that_is_cut_short_while_it_is_sent_is_refused_with_the_reason(hall, tmp_path):
    path = tmp_path / "model"
    write_checkpoint(path, MemoryBody.of(MODEL))
    ref = hall.service.offer(FileSource(path), ["site-1"])
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1000)
    with pytest.raises(RefusedError, match="model ends at byte"):
        fetch(hall.receiver(), ref.token)
    assert not ref.wait(30).ok


def test_a_ref_that_settles_while_it_is_read_is_refused(hall):
    ref = hall.service.offer(MemoryBody.of(MODEL), ["site-1"])
    remote = RemoteSource(hall.receiver(), ref.token, QUICK)
    ref.abort("enough")
    with pytest.raises(RefusedError, match="settled"):
        remote.receive(0, 4096, [memoryview(bytearray(4096))])
