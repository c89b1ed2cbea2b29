"""Measure an honest download while another receiver attacks the same service.

    python benchmarks/fairness.py [--scale N] [--only PART] [--json FILE]

The service, the honest receiver and the attacker are processes of their own. Beside each attack
stands the same download beside a process that computes, which takes as much from the machine and
nothing from the service. The two alternate; the figures are medians.
"""

from __future__ import annotations

import multiprocessing
import socket
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from rows import MIB, Part, Row, measure_parts

from flstream.streaming.api import add_tensors, download_tensors
from flstream.streaming.receiver import Receiver
from flstream.streaming.service import DownloadService
from flstream.streaming.wire import (
    TOKEN_BYTES,
    VERSION,
    Close,
    Fetch,
    Hello,
    Open,
    Ping,
    Request,
    pack_message,
)
from flstream.transport.channel import Channel

REPEAT = 5
HONEST_BYTES = 256 * MIB
ATTACKED_BYTES = 64 * MIB

Requests = Callable[[int, bytes, int], list[Request]]
"""Function that returns requests, given a number, a token and the length of the body."""


ATTACKS: dict[str, Requests] = {
    "layouts": lambda number, token, _: [Open(token, number)],
    "digests": lambda number, token, _: [Open(token, number, digests=True)],
    "frames_of_16_bytes": lambda number, token, nbytes: [Fetch(token, number, [(0, nbytes)], 16)],
    "ranges_of_16_bytes": lambda number, token, _: [
        Fetch(token, number, [(start, start + 16) for start in range(0, 32 << 12, 32)], 16)
    ],
    "one_frame_that_is_called_off": lambda number, token, nbytes: [
        Fetch(token, 2 * number, [(0, nbytes)], nbytes),
        Close(token, 2 * number + 1, False, "no"),
    ],
    "pings": lambda number, token, _: [Ping(token, number)],
    "closings": lambda number, _token, _nbytes: [Close(bytes(TOKEN_BYTES), number, True, "")],
}


def _attacker(control: Any, sock: socket.socket, greeting: bytes, packets: bytes) -> None:
    """Ask for the same without end, and read all answers."""

    def read() -> None:
        while sock.recv(1 << 20):
            pass

    threading.Thread(target=read, daemon=True).start()
    sock.sendall(greeting + packets)
    control.send("asked")
    while True:
        sock.sendall(packets)


def _honest(control: Any, sock: socket.socket, nbytes: int) -> None:
    """Download whatever the control connection names, and send back the seconds."""
    receiver = Receiver(Channel(sock, "server"), "server")
    into = {"w": np.zeros(nbytes, np.uint8)}
    while True:
        token = control.recv()
        began = time.perf_counter()
        status, _ = download_tensors(receiver, token, into=into)
        assert status.ok, status.reason
        control.send(time.perf_counter() - began)


@contextmanager
def _beside(
    service: DownloadService, receiver: str, function: Callable[..., None], *args: Any
) -> Iterator[Any]:
    """Run a receiver in a process of its own; yield the connection to it."""
    ours, theirs = socket.socketpair()
    control, end = multiprocessing.Pipe()
    service.attach(Channel(ours, receiver), receiver)
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=function, args=(end, theirs, *args), daemon=True)
    process.start()
    theirs.close()
    end.close()
    try:
        yield control
        assert process.is_alive(), f"{receiver} was put out"
    finally:
        process.kill()
        process.join()


def _download(service: DownloadService, control: Any, arrays: dict[str, Any]) -> float:
    """Return the seconds of one honest download."""
    ref = add_tensors(service, arrays, ["honest"])
    control.send(ref.token)
    seconds = float(control.recv())
    assert ref.wait(60).ok
    return seconds


@contextmanager
def _busy() -> Iterator[None]:
    process = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def _attack(service: DownloadService, requests: Requests) -> Iterator[None]:
    # Of two dimensions that are not in order, so that frames of it are gathered.
    array = np.ones((16, ATTACKED_BYTES // 16), np.uint8).T
    many = {f"layer.{number}": np.zeros(1, np.uint8) for number in range(10_000)}
    offered = many if requests is ATTACKS["layouts"] else {"a": array}
    ref = add_tensors(service, offered, ["attacker", "nobody"])
    flood = [request for n in range(1, 51) for request in requests(n, ref.token, array.nbytes)]
    greeting = pack_message(Hello(VERSION))
    packets = b"".join(pack_message(request) for request in flood)
    with _beside(service, "attacker", _attacker, greeting, packets) as control:
        assert control.recv() == "asked"
        yield
    ref.abort("it has been measured")


def _measured(name: str, _folder: Path, scale: int) -> Iterator[Row]:
    beside_attack: list[float] = []
    beside_busy: list[float] = []
    nbytes = HONEST_BYTES // scale
    arrays = {"w": np.ones(nbytes, np.uint8)}
    with DownloadService() as service, _beside(service, "honest", _honest, nbytes) as control:
        _download(service, control, arrays)  # its memory is fresh
        for _ in range(REPEAT):
            with _busy():
                beside_busy.append(_download(service, control, arrays))
            with _attack(service, ATTACKS[name]):
                beside_attack.append(_download(service, control, arrays))
    ours, theirs = statistics.median(beside_attack), statistics.median(beside_busy)
    what = f"download beside {name.replace('_', ' ')} without end"
    yield Row(what, ours, "s", theirs, "beside a busy loop", most=3)


if __name__ == "__main__":
    print(f"Medians of {REPEAT}, {HONEST_BYTES // MIB} MiB, chunks of 2 MiB.")
    parts: Mapping[str, Part] = {name: partial(_measured, name) for name in ATTACKS}
    measure_parts(parts, "Measure an honest download beside attacks.")
