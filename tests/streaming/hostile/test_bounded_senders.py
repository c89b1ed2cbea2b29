"""Receivers that ask for much: the sender grows no further, and serves the others in turn."""

import socket
import threading
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from nightly_cases import first_and_nightly
from packets import greeting, message

from flstream.streaming.api import add_tensors, download_tensors
from flstream.streaming.settings import StreamSettings

MIB = 1 << 20
QUICK = StreamSettings(chunk_size=MIB, request_timeout=60)


@pytest.fixture
def honest(harness):
    """Downloads from the service what it has for an honest receiver."""
    receiver = harness.receiver("site-2")

    def download(array, settings=QUICK):
        ref = add_tensors(harness.service, {"a": array}, ["site-2"])
        return download_tensors(receiver, ref.token, settings=settings, optional=True)

    return download


def fetch(number, token, chunk_size, count=1):
    ranges = [(0, 64 * MIB)] * count
    return message("Fetch", number, token=token, ranges=ranges, chunk_size=chunk_size)


ATTACKS = {
    "layouts": lambda n, token: message("Open", n, token=token),
    "digests": lambda n, token: message("Open", n, token=token, digests=True),
    "one frame that is called off": lambda n, token: (
        fetch(2 * n, token, 64 * MIB) + message("Close", 2 * n + 1, token=bytes(16), ok=False)
    ),
    "frames of 16 bytes": lambda n, token: fetch(n, token, 16),
    "ranges": lambda n, token: fetch(n, token, 16, count=10_000),
    "specs": lambda n, token: message("Find", n, specs=[("a", n, [], False)] * 1000),
    "pings": lambda n, token: message("Ping", n, token=token),
    "closings": lambda n, token: message("Close", n, token=bytes(16), ok=True),
    "beats": lambda n, token: message("Ping", 0, token=token),
    "greetings": lambda n, token: greeting(),
}


def insist(sock, requests, reads):
    """Send requests without end, and read all answers or none."""
    with suppress(OSError):
        if reads:
            threading.Thread(target=drain, args=(sock,), daemon=True).start()
        while True:
            sock.sendall(requests)


def drain(sock):
    with suppress(OSError):
        while sock.recv(MIB):
            pass


@first_and_nightly(
    ("kind", "reads"),
    [*((kind, False) for kind in list(ATTACKS)[:3]), *((kind, True) for kind in ATTACKS)],
    brief=6,
)
def test_a_receiver_that_asks_without_end_has_its_turn_as_others_have(
    harness, honest, watch_growth, kind, reads
):
    # The layout has 1 MiB, and the large tensor is to be gathered.
    arrays = {f"{'a' * 30}{number}": np.zeros(1, np.uint8) for number in range(10_000)}
    arrays["a"] = np.ones((16, 4 * MIB), np.uint8).T
    ref = add_tensors(harness.service, arrays, ["site-1", "site-3"])
    asked = b"".join(ATTACKS[kind](n, ref.token) for n in range(1, 51))
    sock = harness.socket("site-1")
    growth = watch_growth()
    sock.sendall(greeting())
    thread = threading.Thread(target=insist, args=(sock, asked, reads), daemon=True)
    thread.start()
    for _ in range(2):
        status, got = honest(np.ones(MIB, np.uint8))
        assert status.ok
        assert got["a"].sum() == MIB
    assert ref.outcome is None
    assert growth() < 64 * MIB
    sock.shutdown(socket.SHUT_RDWR)
    thread.join(30)


def test_two_channels_of_one_name_do_not_end_each_others_downloads(harness):
    service, (first, last) = harness.service, [harness.receiver("site-4") for _ in range(2)]
    ref = add_tensors(service, {"a": np.ones(1000, np.uint8)}, ["site-4"])
    first.close()
    service.offer(ref.source, []).abort("only to have the service look at its channels")
    assert download_tensors(last, ref.token, settings=QUICK)[0].ok
    assert ref.wait(30).ok
    # Once the last one has ended, so has the receiver.
    again = add_tensors(service, {"a": np.ones(1000, np.uint8)}, ["site-4"])
    last.close()
    assert again.wait(30).status == "aborted"


def test_a_model_in_one_message_is_no_longer_than_the_sender_allows(honest):
    array = np.ones((96, MIB), np.uint8).T  # which has to be gathered
    status, _ = honest(array, replace(QUICK, chunk_size=0))
    assert status.code == "refused"
    assert "more than 67108864 bytes" in status.reason
    assert "Limits.scratch_bytes" in status.reason
