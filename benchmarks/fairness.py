"""Measure an honest download while another receiver attacks the same service.

    python benchmarks/fairness.py [--quick] [--only PART] [--json FILE]

The service, the honest receiver and the attacker are processes of their own. Beside each attack of
``tests/streaming/hostile/attack.py`` stands the same download beside a process that computes, which
takes as much from the machine and nothing from the service. The two alternate; the figures are
medians.
"""

from __future__ import annotations

import functools
import socket
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import numpy as np
from rows import Part, Row, measure_parts

from flstream.streaming.api import add_arrays
from flstream.streaming.service import DownloadService
from flstream.transport.sockets import SocketChannel

ATTACK = Path(__file__).resolve().parent.parent / "tests" / "streaming" / "hostile" / "attack.py"
REPEAT = 5
MIB = 1 << 20
HONEST_BYTES = 256 * MIB
ATTACKED_BYTES = 64 * MIB
MOST = 3.0

# Requests of attack.py's "insists", by their numbers there.
ATTACKS = {
    "layouts": 0,
    "digests": 1,
    "digests_of_16_bytes": 2,
    "frames_of_16_bytes": 3,
    "one_frame_that_is_called_off": 4,
    "pings": 5,
    "closings": 6,
    "beats": 7,
    "greetings": 8,
}

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
def _attack(service: DownloadService, kind: int) -> Iterator[None]:
    # Of two dimensions that are not in order, so that frames of it are gathered.
    array = np.ones((16, ATTACKED_BYTES // 16), np.uint8).T
    many = {f"layer.{number}": np.zeros(1, np.uint8) for number in range(10_000)}
    ref = add_arrays(service, many if kind == 0 else {"a": array}, ["attacker", "nobody"])
    with ExitStack() as stack:
        more = ["insists", ref.token.hex(), str(array.nbytes), str(kind)]
        process = _start(service, stack, "attacker", [str(ATTACK)], *more)
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        yield
    ref.abort("it has been measured")


def _measured(name: str, kind: int, _folder: Path, reduction: int) -> Iterator[Row]:
    beside_attack: list[float] = []
    beside_busy: list[float] = []
    with DownloadService() as service, ExitStack() as stack:
        honest = Honest(service, stack, HONEST_BYTES // reduction)
        honest.download()  # its memory is fresh
        for _ in range(REPEAT):
            with _busy():
                beside_busy.append(honest.download())
            with _attack(service, kind):
                beside_attack.append(honest.download())
    ours, theirs = statistics.median(beside_attack), statistics.median(beside_busy)
    what = f"download beside {name.replace('_', ' ')} without end"
    yield Row(what, f"{ours:.3f} s", f"{theirs:.3f} s beside a busy loop", ours / theirs, most=MOST)


def _part(name: str, kind: int) -> Part:
    part = functools.partial(_measured, name, kind)
    part.__name__ = name  # type: ignore[attr-defined]
    return part


if __name__ == "__main__":
    print(f"Medians of {REPEAT}, {HONEST_BYTES // MIB} MiB, chunks of 2 MiB.")
    parts = [_part(name, kind) for name, kind in ATTACKS.items()]
    measure_parts(parts, "Measure an honest download beside attacks.", 10)
