"""Receivers that ask for much: the sender grows no further, and serves the others in turn."""

import socket
import threading
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
from liars import greeting
from nightly_cases import first_and_nightly
from packets import message

from flstream.streaming.api import add_arrays, download_arrays
from flstream.streaming.settings import StreamSettings

MIB = 1 << 20
QUICK = StreamSettings(chunk_size=MIB, request_timeout=60)


@pytest.fixture
def honest(harness):
    """Downloads from the service what it has for an honest receiver."""
    receiver = harness.receiver("site-2")

    def download(array, settings=QUICK):
        ref = add_arrays(harness.service, {"a": array}, ["site-2"])
        return download_arrays(receiver, ref.token, settings=settings, optional=True)

    return download


def fetch(number, token, nbytes, chunk_size, count=1):
    ranges = [(0, nbytes)] * count
    return message("Fetch", number, token=token, ranges=ranges, chunk_size=chunk_size)


def close(number, token, *, ok=False):
    return message("Close", number, token=token, ok=ok)


def opens(number, token, *, digests=False):
    return message("Open", number, token=token, digests=digests)


def ping(number, token):
    return message("Ping", number, token=token)


ATTACKS = {
    "layouts": lambda n, token, _: opens(n, token),
    "digests": lambda n, token, _: opens(n, token, digests=True),
    "one frame that is called off": lambda n, token, nbytes: (
        fetch(2 * n, token, nbytes, nbytes) + close(2 * n + 1, bytes(16))
    ),
    "frames of 16 bytes": lambda n, token, nbytes: fetch(n, token, nbytes, 16),
    "ranges": lambda n, token, nbytes: fetch(n, token, nbytes, 16, count=10_000),
    "labels": lambda n, token, _: message("Find", n, labels=[(n, [], False)] * 1000),
    "pings": lambda n, token, _: ping(n, token),
    "closings": lambda n, token, _: close(n, bytes(16), ok=True),
    "beats": lambda n, token, _: b"FLST" * 10_000 + ping(n, token),
    "greetings": lambda n, token, _: bytes(MIB) + ping(n, token),
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
    ref = add_arrays(harness.service, arrays, ["site-1", "site-3"])
    asked = b"".join(ATTACKS[kind](n, ref.token, 64 * MIB) for n in range(1, 51))
    sock = harness.socket("site-1")
    growth = watch_growth()
    sock.sendall(greeting())
    thread = threading.Thread(target=insist, args=(sock, asked, reads), daemon=True)
    thread.start()
    for _ in range(2):
        status, got = honest(np.ones(MIB, np.uint8))
        assert status.ok
        assert got["a"].sum() == MIB
    assert ref.outcome is None or kind in ("beats", "greetings")
    assert growth() < 64 * MIB
    sock.shutdown(socket.SHUT_RDWR)
    thread.join(30)


def test_two_channels_of_one_name_do_not_end_each_others_downloads(harness):
    service, (first, last) = harness.service, [harness.receiver("site-4") for _ in range(2)]
    ref = add_arrays(service, {"a": np.ones(1000, np.uint8)}, ["site-4"])
    first.close()
    service.offer(ref.source, []).abort("only to have the service look at its channels")
    assert download_arrays(last, ref.token, settings=QUICK)[0].ok
    assert ref.wait(30).ok
    # Once the last one has ended, so has the receiver.
    again = add_arrays(service, {"a": np.ones(1000, np.uint8)}, ["site-4"])
    last.close()
    assert again.wait(30).status == "aborted"


def test_a_model_in_one_message_is_no_longer_than_the_sender_allows(honest):
    array = np.ones((96, MIB), np.uint8).T  # which has to be gathered
    status, _ = honest(array, replace(QUICK, chunk_size=0))
    assert status.code == "refused"
    assert "more than 67108864 bytes" in status.reason
    assert "Limits.scratch_bytes" in status.reason
