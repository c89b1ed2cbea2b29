"""Frames: each a chunk with its digest, copied only where the bytes do not stay where they are."""

import os
import socket
from contextlib import closing

import numpy as np
import pytest
from harness import fetch, open_harness
from support import body_of

from flstream.errors import IntegrityError, RefusedError
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.digests import ChunkDigester
from flstream.model.memory import MemoryBody
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.transport.sockets import SocketChannel

MIB = 1 << 20
LARGE = StreamSettings(chunk_size=MIB, request_timeout=30, ping_after=0.05)


def in_file(path, body, digester=None):
    with FileSink(path, body.layout, digester=digester) as sink:
        for start, stop in body.layout.ranges(MIB):
            (view,) = sink.views(start, stop)
            view[:] = b"".join(body.views(start, stop))
            sink.commit(start, stop)
        sink.finish()
    return FileSource(path)


ARRAY = np.arange(1 << 20, dtype=np.float32)


def one(tmp_path):
    return MemoryBody.of({"t": ARRAY})


def strided(tmp_path):
    return MemoryBody.of({"t": ARRAY.reshape(1024, 1024).T})


def tiny_tensors(tmp_path):
    return MemoryBody.of({f"t{i}": np.full(600, i, np.float32) for i in range(1000)})


def of_a_file(tmp_path):
    return in_file(tmp_path / "model.safetensors", one(tmp_path))


@pytest.mark.parametrize("lends", [True, False], ids=["lent", "copied"])
@pytest.mark.parametrize("make", [one, strided, tiny_tensors, of_a_file])
def test_large_frames_arrive_as_they_are(harness, tmp_path, make, lends):
    source, names = make(tmp_path), ["site-1", "site-2"]
    channels = [harness.channel(name, lends=lends) for name in names]
    ref = harness.service.offer(source, names)
    for channel in channels:
        body = fetch(Receiver(channel, "server"), ref.token, LARGE)
        assert body_of(body) == body_of(source)


class Cutting(SocketChannel):
    """A sender's end that makes a file shorter once the header of a frame of it was sent."""

    def __init__(self, sock, peer, path):
        super().__init__(sock, peer)
        self._path = path

    def send_file_some(self, fd, offset, count, *, immutable):
        os.truncate(self._path, 64 << 10)
        return super().send_file_some(fd, offset, count, immutable=immutable)


def test_a_file_that_became_shorter_after_a_frame_began_is_refused_by_its_name(tmp_path):
    source = of_a_file(tmp_path)
    ours, theirs = socket.socketpair()
    with open_harness() as harness, closing(SocketChannel(theirs, "server")) as channel:
        harness.service.attach(Cutting(ours, "site-1", tmp_path / "model.safetensors"), "site-1")
        ref = harness.service.offer(source, ["site-1"])
        with pytest.raises(RefusedError, match=r"model\.safetensors ends at byte"):
            fetch(Receiver(channel, "server"), ref.token, LARGE)


class Watched(FileSource):
    """A file that notes what is read of it."""

    def __init__(self, path, digests=None):
        super().__init__(path, digests)
        self.ranges = []

    def read(self, start, stop, into):
        self.ranges.append((start, stop))
        super().read(start, stop, into)


@pytest.mark.parametrize("rots", [False, True])
def test_a_file_is_sent_by_the_digests_of_its_writing_without_being_read(harness, tmp_path, rots):
    path, body = tmp_path / "m.safetensors", one(tmp_path)
    digester = ChunkDigester(body.layout.nbytes, MIB)
    in_file(path, body, digester)
    source, before = Watched(path, digester.digests), path.stat()
    if rots:
        with path.open("r+b") as file:
            file.seek(-1000, os.SEEK_END)
            file.write(b"rot")
        # A disk does not say that it has changed something.
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    ref = harness.service.offer(source, ["site-1"])
    if rots:
        with pytest.raises(IntegrityError, match="never matched their digest"):
            fetch(harness.receiver(), ref.token, LARGE)
    else:
        assert body_of(fetch(harness.receiver(), ref.token, LARGE)) == body_of(body)
    assert source.ranges == []
