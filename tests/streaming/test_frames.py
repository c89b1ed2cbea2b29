"""Frames: each a chunk with its digest, copied only where the bytes do not stay where they are."""

import gc
import os
import weakref

import numpy as np
import pytest
from halls import fetch, open_hall

from flstream.errors import IntegrityError, RefusedError
from flstream.model.body import Scratch
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.digests import ChunkDigester
from flstream.model.memory import MemoryBody
from flstream.streaming.frames import Demand, Frame
from flstream.streaming.receiver import StreamSettings
from flstream.streaming.wire import FRAME, HEADER_BYTES, Header, digest_of

MIB = 1 << 20
LARGE = StreamSettings(chunk_size=MIB, request_timeout=30, probe_after=0.05)


class Counting:
    """A channel that notes how it was asked to send, and takes everything."""

    def __init__(self):
        self.sent = b""
        self.ways = []

    def send_some(self, views):
        return self._take("copied", b"".join(views))

    def lend_some(self, pages):
        count = self._take("lent", b"".join(pages.rest()))
        pages.advance(count)
        return count

    def send_file_some(self, fd, offset, count):
        return self._take("file", os.pread(fd, count, offset))

    def _take(self, way, data):
        self.ways.append(way)
        self.sent += data
        return len(data)


def in_file(path, body, digester=None):
    with FileSink(path, body.layout, digester=digester) as sink:
        for start, stop in body.layout.ranges(MIB):
            (view,) = sink.views(start, stop)
            view[:] = b"".join(body.views(start, stop))
            sink.commit(start, stop)
        sink.finish()
    return FileSource(path)


def strided(tmp_path):
    return MemoryBody.of({"t": np.arange(1 << 20, dtype=np.float32).reshape(1024, 1024).T})


def one(tmp_path):
    return MemoryBody.of({"t": np.arange(1 << 20, dtype=np.float32)})


def tiny_tensors(tmp_path):
    return MemoryBody.of({f"t{i}": np.full(600, i, np.float32) for i in range(1000)})


def of_a_file(tmp_path):
    return in_file(tmp_path / "model.safetensors", one(tmp_path))


@pytest.mark.parametrize(
    ("make", "chunk_size", "way"),
    [
        (one, MIB, "lent"),
        (one, 64 << 10, "copied"),
        (strided, MIB, "copied"),
        (tiny_tensors, MIB, "copied"),
        (of_a_file, MIB, "file"),
        (of_a_file, 64 << 10, "copied"),
        (one, 0, "copied"),
    ],
)
def test_a_frame_is_the_chunk_with_its_digest(tmp_path, make, chunk_size, way):
    source, channel = make(tmp_path), Counting()
    stop = source.layout.nbytes
    start = chunk_size if chunk_size else 0
    frame = Frame.read(Demand(bytes(16), 7, start, stop, stop, chunk_size), source, Scratch())
    while frame.left:
        frame.send_some(channel)
    header = Header.parse(channel.sent[:HEADER_BYTES])
    payload = channel.sent[HEADER_BYTES:]
    expected = b"".join(source.views(start, frame.stop, Scratch()))
    if not chunk_size:
        expected = source.layout.plain_header + expected
    assert payload == expected
    assert header == Header(FRAME, 7, bytes(16), start, len(payload), digest_of([payload]))
    assert set(channel.ways) == {"copied", way}


@pytest.mark.parametrize("make", [one, strided, tiny_tensors, of_a_file])
def test_large_frames_arrive_as_they_are(tmp_path, make):
    source = make(tmp_path)
    with open_hall() as hall:
        names = ["site-1", "site-2"]
        receivers = [hall.receiver(name) for name in names]
        ref = hall.service.offer(source, names)
        for receiver in receivers:
            body = fetch(receiver, ref.token, LARGE)
            got = b"".join(body.views(0, body.layout.nbytes))
            assert got == b"".join(source.views(0, source.layout.nbytes, Scratch()))


def test_a_file_that_became_shorter_after_a_frame_began_is_refused_by_its_name(tmp_path):
    source = of_a_file(tmp_path)
    path = tmp_path / "model.safetensors"

    def cut(header, _packet):
        if header.start == 0:
            os.truncate(path, 2 * MIB)

    with open_hall() as hall:
        receiver, _ = hall.watched(on_frame=cut)
        ref = hall.service.offer(source, ["site-1"])
        with pytest.raises(RefusedError, match=r"model\.safetensors ends at byte"):
            fetch(receiver, ref.token, LARGE)


def test_tensors_are_let_go_while_their_pages_are_on_the_way():
    array = np.random.default_rng(0).integers(0, 256, 16 * MIB, dtype=np.uint8)
    gone = weakref.ref(array)
    with open_hall() as hall:
        channel = hall.channel()
        ref = hall.service.offer(MemoryBody.of({"t": array}), ["site-1"], push=LARGE)
        assert channel.wait(5)  # the first pages are there, and the pipe is full
        del array
        ref.abort("enough")
        for _ in range(500):
            gc.collect()
            if gone() is None:
                break
            channel.wait(0.01)
        assert gone() is None


class Watched(FileSource):
    """A file that notes what is read of it."""

    def __init__(self, path, digests=None):
        super().__init__(path, digests)
        self.read = []

    def views(self, start, stop, scratch):
        self.read.append((start, stop))
        return super().views(start, stop, scratch)


def test_a_file_is_digested_once_for_all_who_get_the_same_chunk(tmp_path):
    body = MemoryBody.of({"t": np.arange(1 << 19, dtype=np.float32)})
    in_file(tmp_path / "m.safetensors", body)
    source = Watched(tmp_path / "m.safetensors")
    sent = []
    for _ in range(3):
        channel = Counting()
        frame = Frame.read(Demand(b"t" * 16, 1, 0, MIB, MIB, MIB), source, Scratch())
        while frame.left:
            frame.send_some(channel)
        sent.append(channel.sent)
    assert sum(stop - start for start, stop in source.read) == MIB
    assert len(set(sent)) == 1
    # Another chunk size is another chunk.
    Frame.read(Demand(b"t" * 16, 1, 0, MIB, MIB, MIB // 2), source, Scratch())
    assert source.digests.get(0, MIB) != source.digests.get(0, MIB // 2)
    assert len(source.digests) == 2


class TestDigestsTakenWhileWriting:
    BODY = MemoryBody.of({"t": np.arange(1 << 19, dtype=np.float32)})

    def written(self, path):
        digester = ChunkDigester(self.BODY.layout.nbytes, MIB)
        in_file(path, self.BODY, digester)
        return Watched(path, digester.digests)

    def test_a_file_is_sent_without_being_read(self, hall, tmp_path):
        source = self.written(tmp_path / "m.safetensors")
        ref = hall.service.offer(source, ["site-1"])
        body = fetch(hall.receiver(), ref.token, LARGE)
        assert b"".join(body.views(0, 2 * MIB)) == b"".join(self.BODY.views(0, 2 * MIB))
        assert source.read == []

    def test_what_the_disk_changed_since_is_found_by_who_receives_it(self, hall, tmp_path):
        path = tmp_path / "m.safetensors"
        source = self.written(path)
        with path.open("r+b") as file:
            file.seek(-1000, os.SEEK_END)
            file.write(b"rot")
        ref = hall.service.offer(source, ["site-1"])
        with pytest.raises(IntegrityError, match="does not match its digest"):
            fetch(hall.receiver(), ref.token, LARGE)

    def test_a_file_that_became_shorter_is_refused_by_its_name(self, hall, tmp_path):
        path = tmp_path / "m.safetensors"
        source = self.written(path)
        os.truncate(path, MIB)
        ref = hall.service.offer(source, ["site-1"])
        with pytest.raises(RefusedError, match=r"m\.safetensors ends at byte"):
            fetch(hall.receiver(), ref.token, LARGE)
