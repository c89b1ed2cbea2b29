"""One model to one receiver over a pipe, against the same bytes over a bare socket pair.

Both send the same gigabyte of memory in pieces of the same size, alternating, so that the ratio
holds on a noisy machine. The bare pipe checks nothing and asks for nothing; a download verifies a
digest for every chunk.

    python benchmarks/transfer.py [SIZE] [REPEAT]
"""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import sys
import time

import numpy as np

from flstream.model.body import Scratch
from flstream.model.memory import MemoryBody
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.remote import RemoteSource
from flstream.streaming.service import DownloadService
from flstream.transport.pipe import PipeChannel
from flstream.units import format_bytes, parse_bytes

CHUNK = 2 << 20
TENSORS = 64


def sender(size: int, runs: list[str], end: socket.socket) -> None:
    """Hold a model, and send it once for each run, when told to."""
    each = size // TENSORS
    body = MemoryBody.of({f"t{i:02d}": np.full(each, i, np.uint8) for i in range(TENSORS)})
    for kind in runs:
        ours, theirs = socket.socketpair()
        socket.send_fds(end, [kind.encode()], [theirs.fileno()])
        theirs.close()
        if kind == "raw":
            send_raw(body, ours)
        else:
            with DownloadService() as service:
                ref = service.offer(body, ["receiver"])
                service.attach(PipeChannel(ours, "receiver"), "receiver")
                end.send(ref.token)
                outcome = ref.wait(600)
                assert outcome.ok, outcome.reason


def send_raw(body: MemoryBody, sock: socket.socket) -> None:
    """Send a body with nothing around it."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    for start, stop in body.layout.ranges(CHUNK):
        for view in body.views(start, stop):
            sock.sendall(view)
    sock.close()


def receive(end: socket.socket, size: int) -> tuple[str, float]:
    """Take one run in, and return its kind and its rate in bytes a second."""
    kind, fds, _, _ = socket.recv_fds(end, 16, 1)
    sock = socket.socket(fileno=fds[0])
    if kind == b"raw":
        buffer = memoryview(bytearray(CHUNK))
        began, left = time.perf_counter(), size
        while left:
            left -= sock.recv_into(buffer)
        sock.close()
    else:
        receiver = Receiver(PipeChannel(sock, "sender"), "sender")
        token = end.recv(16)
        scratch = Scratch()
        began = time.perf_counter()
        remote = RemoteSource(receiver, token, StreamSettings(chunk_size=CHUNK))
        for start, stop in remote.layout.ranges(CHUNK):
            remote.views(start, stop, scratch)
        remote.close()
    return kind.decode(), size / (time.perf_counter() - began)


def main(size: int, repeat: int) -> None:
    """Measure, and print medians and the ratio."""
    # The first of each is a warm-up.
    runs = ["raw", "flstream"] * (repeat + 1)
    end, theirs = socket.socketpair()
    process = multiprocessing.get_context("spawn").Process(target=sender, args=(size, runs, theirs))
    process.start()
    theirs.close()
    rates: dict[str, list[float]] = {"raw": [], "flstream": []}
    for _ in runs:
        kind, rate = receive(end, size)
        rates[kind].append(rate)
    process.join()
    raw, streamed = (statistics.median(rates[kind][1:]) for kind in ("raw", "flstream"))
    print(
        f"one receiver, {format_bytes(size)} in {TENSORS} tensors, {format_bytes(CHUNK)} chunks, "
        f"medians of {repeat}:\n"
        f"  bare socket pair     {raw / 1e9:5.2f} GB/s\n"
        f"  flstream, verified   {streamed / 1e9:5.2f} GB/s   {streamed / raw:.2f} of it"
    )


if __name__ == "__main__":
    words = [*sys.argv[1:], *["1GiB", "5"][len(sys.argv) - 1 :]]
    main(parse_bytes(words[0]) // TENSORS * TENSORS, int(words[1]))
