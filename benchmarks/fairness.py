"""Measure an honest download while another receiver attacks the same service.

    python benchmarks/fairness.py [--quick] [--only PART] [--json FILE]

The service, the honest receiver and the attacker are processes of their own. Beside each attack
stands the same download beside a process that computes, which takes as much from the machine and
nothing from the service. The two alternate; the figures are medians.
"""

from __future__ import annotations

import functools
import socket
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from rows import Part, Row, measure_parts

from flstream.streaming.api import add_arrays
from flstream.streaming.service import DownloadService
from flstream.streaming.wire import (
    NOBODY,
    VERSION,
    Close,
    Digest,
    Fetch,
    Hello,
    Open,
    Ping,
    Request,
    pack_message,
)
from flstream.transport.sockets import SocketChannel

REPEAT = 5
MIB = 1 << 20
HONEST_BYTES = 256 * MIB
ATTACKED_BYTES = 64 * MIB
MOST = 3.0

Requests = Callable[[int, bytes, int], list[Request]]
"""Function that returns requests, given a number, a token and the length of the body."""


def _digests(chunk_size: int) -> Requests:
    def ask(number: int, token: bytes, nbytes: int) -> list[Request]:
        return [Digest(token, number, 0, min(nbytes, chunk_size << 12), chunk_size)]

    return ask


ATTACKS: dict[str, Requests] = {
    "layouts": lambda number, token, _: [Open(token, number)],
    "digests": _digests(16 * MIB),
    "digests_of_16_bytes": _digests(16),
    "frames_of_16_bytes": lambda number, token, nbytes: [
        Fetch(token, number, 0, nbytes, 16, urgent=True)
    ],
    "one_frame_that_is_called_off": lambda number, token, nbytes: [
        Fetch(token, 2 * number, 0, nbytes, nbytes, urgent=True),
        Close(token, 2 * number + 1, False, "no"),
    ],
    "pings": lambda number, token, _: [Ping(token, number)],
    "closings": lambda number, _token, _nbytes: [Close(NOBODY, number, True, "")],
}

# Asks for the same without end, and reads all answers.
_ATTACKER = """
import socket
import sys
import threading

sock = socket.socket(fileno=int(sys.argv[1]))
greeting, requests = (bytes.fromhex(line) for line in sys.stdin.readline().split())


def read():
    while sock.recv(1 << 20):
        pass


threading.Thread(target=read, daemon=True).start()
sock.sendall(greeting + requests)
print("asked", flush=True)
while True:
    sock.sendall(requests)
"""

_HONEST = """
import socket
import sys
import time

import numpy as np

from flstream.streaming.api import download_arrays
from flstream.streaming.receiver import Receiver
from flstream.transport.sockets import SocketChannel

receiver = Receiver(SocketChannel(socket.socket(fileno=int(sys.argv[1])), "server"), "server")
into = {"w": np.zeros(int(sys.argv[2]), np.uint8)}
for line in sys.stdin:
    began = time.perf_counter()
    status, _ = download_arrays(receiver, bytes.fromhex(line), into=into)
    assert status.ok, status.reason
    print(time.perf_counter() - began, flush=True)
"""


class Honest:
    """A receiver that keeps to the rules, in a process of its own."""

    def __init__(self, service: DownloadService, stack: ExitStack, nbytes: int) -> None:
        self._service = service
        self._arrays = {"w": np.ones(nbytes, np.uint8)}
        words = ["-c", _HONEST]
        self._process = _start(service, stack, "honest", words, str(nbytes))

    def download(self) -> float:
        """Return the seconds of one download."""
        ref = add_arrays(self._service, self._arrays, ["honest"])
        stdin, stdout = self._process.stdin, self._process.stdout
        assert stdin is not None
        assert stdout is not None
        stdin.write(ref.token.hex() + "\n")
        stdin.flush()
        seconds = float(stdout.readline())
        assert ref.wait(60).ok
        return seconds


def _start(
    service: DownloadService, stack: ExitStack, receiver: str, words: list[str], *more: str
) -> subprocess.Popen[str]:
    ours, theirs = socket.socketpair()
    service.attach(SocketChannel(ours, receiver), receiver)
    words = [sys.executable, *words, str(theirs.fileno()), *more]
    pipe = subprocess.PIPE
    process = subprocess.Popen(
        words, stdin=pipe, stdout=pipe, text=True, pass_fds=[theirs.fileno()]
    )
    theirs.close()
    stack.callback(process.wait)
    stack.callback(process.kill)
    return process


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
    ref = add_arrays(service, offered, ["attacker", "nobody"])
    asked = [each for n in range(1, 51) for each in requests(n, ref.token, array.nbytes)]
    with ExitStack() as stack:
        process = _start(service, stack, "attacker", ["-c", _ATTACKER])
        assert process.stdin is not None
        assert process.stdout is not None
        greeting = pack_message(Hello(VERSION, b"attacker"))
        packets = b"".join(pack_message(each, each.token) for each in asked)
        process.stdin.write(f"{greeting.hex()} {packets.hex()}\n")
        process.stdin.flush()
        assert process.stdout.readline() == "asked\n"
        yield
        assert process.poll() is None, "the attacker was put out"
    ref.abort("it has been measured")


def _measured(name: str, requests: Requests, _folder: Path, reduction: int) -> Iterator[Row]:
    beside_attack: list[float] = []
    beside_busy: list[float] = []
    with DownloadService() as service, ExitStack() as stack:
        honest = Honest(service, stack, HONEST_BYTES // reduction)
        honest.download()  # its memory is fresh
        for _ in range(REPEAT):
            with _busy():
                beside_busy.append(honest.download())
            with _attack(service, requests):
                beside_attack.append(honest.download())
    ours, theirs = statistics.median(beside_attack), statistics.median(beside_busy)
    what = f"download beside {name.replace('_', ' ')} without end"
    yield Row(what, f"{ours:.3f} s", f"{theirs:.3f} s beside a busy loop", ours / theirs, most=MOST)


def _part(name: str, requests: Requests) -> Part:
    part = functools.partial(_measured, name, requests)
    part.__name__ = name  # type: ignore[attr-defined]
    return part


if __name__ == "__main__":
    print(f"Medians of {REPEAT}, {HONEST_BYTES // MIB} MiB, chunks of 2 MiB.")
    parts = [_part(name, requests) for name, requests in ATTACKS.items()]
    measure_parts(parts, "Measure an honest download beside attacks.", 10)
