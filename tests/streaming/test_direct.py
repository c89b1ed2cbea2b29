"""Bytes that a receiver reads by itself: right or refused, and as frames where they cannot be."""

import errno
import os
import socket
from dataclasses import replace
from unittest.mock import patch

import numpy as np
import pytest
import torch
from harness import QUICK, fetch, received
from packets import greeting, message, read_packet
from support import body_of, open_files

from flstream.errors import ChannelClosedError, ProtocolError, RefusedError
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.memory import MemoryBody
from flstream.streaming.direct import FileReader, MemoryReader
from flstream.streaming.download import RemoteSource
from flstream.streaming.receiver import Receiver
from flstream.transport.channel import Channel

MIB = 1 << 20
RANDOM = np.random.default_rng(3)
MODEL = {f"w{size}": RANDOM.integers(0, 256, size, np.uint8) for size in (9 * MIB, 1, 70_001)}
BODY = MemoryBody.of(MODEL)


@pytest.fixture(params=["memory", "file"])
def source(request, tmp_path):
    if request.param == "memory":
        return BODY
    write_checkpoint(tmp_path / "model.safetensors", BODY)
    return FileSource(tmp_path / "model.safetensors")


def fetched(harness, source, settings=QUICK, **how):
    return harness.fetched(source, settings, receiver=harness.receiver(direct=True), **how)


def test_bytes_are_read_without_a_frame_and_files_are_closed(harness, source):
    harness.receiver()  # what a connection takes
    before = open_files()
    sink, cost, ref = fetched(harness, source)
    assert body_of(sink) == body_of(BODY)
    assert cost.direct == cost.bytes == BODY.layout.nbytes
    # As many as of frames.
    assert (cost.requests, cost.chunks) == (1, -(-BODY.layout.nbytes // QUICK.chunk_size))
    assert ref.deliveries["site-1"].bytes == 0
    assert open_files() <= before + 2  # the sockets of one more pair


def test_ranges_are_read_in_order_and_some_alone(harness, source):
    ref = harness.service.offer(source, ["site-1"])
    remote = RemoteSource(harness.receiver(direct=True), ref.token, QUICK)
    whole = bytearray(BODY.layout.nbytes)
    for start, stop in BODY.layout.ranges(1_000_003):
        remote.read(start, stop, memoryview(whole)[start:stop])
    remote.close()
    assert whole == body_of(BODY)
    assert remote.cost.chunks == -(-len(whole) // QUICK.chunk_size)
    sink, cost, _ = fetched(harness, source, wanted=[(5, 99), (MIB, 2 * MIB)])
    assert cost.direct == 94 + MIB
    assert body_of(sink)[MIB : 2 * MIB] == body_of(BODY)[MIB : 2 * MIB]


@pytest.mark.parametrize("good", [0, 1], ids=["from the first on", "half-way"])
@pytest.mark.parametrize("code", [errno.EPERM, errno.ENOSYS, errno.ESRCH, errno.EFAULT])
def test_what_the_kernel_does_not_allow_comes_as_frames(harness, source, code, good):
    reader = FileReader if isinstance(source, FileSource) else MemoryReader
    refusal, calls, read = OSError(code, os.strerror(code)), [], reader.read

    def refuse(self, start, into):
        calls.append(start)
        if len(calls) > good:
            raise refusal
        read(self, start, into)

    with patch.object(reader, "read", refuse):
        sink, cost, ref = fetched(harness, source, replace(QUICK, chunk_size=1 << 16))
    assert len(calls) == good + 1
    assert body_of(sink) == body_of(BODY)
    assert cost.chunks > 0
    assert cost.bytes == BODY.layout.nbytes == cost.direct + ref.deliveries["site-1"].bytes


def test_memory_that_does_not_lie_in_order_comes_as_frames_and_what_settings_say(harness):
    turned = MemoryBody.of({"w": torch.arange(100_000).reshape(100, 1000).t()})
    for body, how in ((turned, QUICK), (BODY, replace(QUICK, direct=False))):
        sink, cost, _ = fetched(harness, body, how)
        assert body_of(sink) == body_of(body)
        assert cost.direct == 0


def test_what_was_read_does_not_count_if_its_sender_ends_before_the_close(harness, source):
    with pytest.raises(ChannelClosedError):
        fetched(harness, source, on_range=lambda start, stop: harness.service.close())


def test_a_file_is_handed_over_once_and_memory_is_not(harness, source):
    ref = harness.service.offer(source, ["site-1"])
    remote = RemoteSource(harness.receiver(direct=True), ref.token, QUICK)
    file = remote.take_file()
    if isinstance(source, FileSource):
        assert os.path.samestat(os.fstat(file.fd), source.path.stat())
    assert file is None or remote.take_file() is None
    remote.leave()


SPANS = {
    "too short": [(4096, BODY.layout.nbytes - 1)],
    "too long": [(4096, BODY.layout.nbytes), (9000, 1)],
    "negative": [(4096, BODY.layout.nbytes + 5), (4096, -5)],
    "nowhere": [(0, BODY.layout.nbytes)],
    "beyond all memory": [(2**63, BODY.layout.nbytes)],
    "nothing": [],
}


@pytest.mark.parametrize("place", [*SPANS, "a short file", "no file"])
def test_a_place_that_cannot_be_is_refused(place, tmp_path):
    ours, theirs = socket.socketpair()
    before, channel = open_files(), Channel(theirs, "server", direct=True)
    (tmp_path / "short").write_bytes(b"short")
    with ours, Receiver(channel, "server") as receiver, (tmp_path / "short").open("rb") as file:
        header = BODY.layout.plain_header[8:]
        where = {"type": "memory", "spans": SPANS.get(place)}
        if place not in SPANS:
            where = {"type": "file", "offset": 8}
        ours.sendall(greeting())
        answer = message("Opened", 1, layout=header, place=where) + message("Closed", 2)
        socket.send_fds(ours, [answer], [file.fileno()] * (place == "a short file"))
        with pytest.raises((ProtocolError, ChannelClosedError)):
            RemoteSource(receiver, bytes(16), QUICK)
        assert [read_packet(ours).message["type"] for _ in range(3)] == ["Hello", "Open", "Close"]
    assert open_files() == before - 2  # the pair


def test_memory_that_is_not_there_is_asked_for_as_frames():
    ours, theirs = socket.socketpair()
    with ours, Receiver(Channel(theirs, "server", direct=True), "server") as receiver:
        where = {"type": "memory", "spans": [(4096, BODY.layout.nbytes)]}
        ours.sendall(greeting())
        header = BODY.layout.plain_header[8:]
        ours.sendall(message("Opened", 1, layout=header, place=where))
        remote = RemoteSource(receiver, bytes(16), QUICK)
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(ChannelClosedError):
            remote.read(0, 16, memoryview(bytearray(16)))
        assert remote.cost.direct == 0
        kinds = [read_packet(ours).message["type"] for _ in range(3)]
    assert kinds == ["Hello", "Open", "Fetch"]


@pytest.mark.parametrize("by", ["another receiver", "another connection of the same one"])
def test_what_is_read_after_its_owner_had_it_back_does_not_count(harness, by):
    """A receiver that has a ref fetches it again, and it settles meanwhile."""
    model = {name: torch.ones(9 * MIB, dtype=torch.uint8) for name in "ab"}
    names = ["site-1", "site-2"] if by == "another receiver" else ["site-1"]
    ref = harness.service.offer(MemoryBody.of(model), names)
    receiver, other = (harness.receiver(name, direct=True) for name in ("site-1", names[-1]))
    if by == "another receiver":
        fetch(receiver, ref.token)

    def settle(start, stop):
        if ref.outcome is None:
            fetch(other, ref.token)
            assert ref.wait(10).ok
            model["b"].fill_(9)  # the ref has settled: its owner may

    remote = RemoteSource(receiver, ref.token, QUICK)
    with pytest.raises(RefusedError):
        received(remote, on_range=settle)


@pytest.mark.parametrize("direct", [True, False])
def test_a_change_is_refused_also_when_a_receiver_fetches_again(harness, direct):
    model = {name: torch.ones(9 * MIB, dtype=torch.uint8) for name in "ab"}
    ref = harness.service.offer(MemoryBody.of(model), ["site-1", "site-2"])
    receiver = harness.receiver(direct=direct)
    fetch(receiver, ref.token)
    remote = RemoteSource(receiver, ref.token, QUICK)
    with pytest.raises(RefusedError, match="'b' was changed"):
        received(remote, on_range=lambda start, stop: model["b"][:1].add_(1))
