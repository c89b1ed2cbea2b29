"""Receivers that fail for reasons of their own, of which the sender learns; or that ask for much.

The sender grows no further, and serves the others in turn.
"""

import os
import re
import socket
import threading
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pytest
import torch
from nightly_cases import first_and_nightly
from packets import greeting, message

from flstream.errors import CheckpointError, LayoutError, PayloadError
from flstream.streaming import StreamSettings, add_payload, add_tensors
from flstream.streaming.api import download_file, download_payload, download_tensors

MIB = 1 << 20
QUICK = StreamSettings(chunk_size=1 << 16, request_timeout=30)


def ones(nbytes=MIB):
    return {"w": np.ones(nbytes, np.uint8)}


@pytest.fixture
def fails(harness):
    """Expects of a download that it fails, and that the sender learns why."""
    receiver = harness.receiver()

    def fails(error, sentence, download, *args, add=add_tensors, of=None, **options):
        ref = add(harness.service, of or ones(), ["site-1"])
        with pytest.raises(error, match=sentence):
            download(receiver, ref.token, *args, settings=QUICK, **options)
        outcome = ref.wait(10)
        assert outcome.status == "aborted"
        assert re.match(f"site-1: .*{sentence}", outcome.reason)
        # The channel is as good as before.
        assert download_tensors(receiver, add_tensors(harness.service, ones(), ["site-1"]).id)[0].ok

    return fails


def raises(*_):
    raise ZeroDivisionError("of the user's")


@pytest.mark.parametrize("argument", ["on_progress", "on_tensors"])
@pytest.mark.parametrize("nbytes", [1000, MIB])
def test_an_error_of_a_callback_reaches_the_sender(fails, argument, nbytes):
    options = {argument: raises, "of": ones(nbytes)}
    fails(ZeroDivisionError, "of the user's", download_tensors, **options)


def test_a_sink_that_cannot_be_written_reaches_the_sender(fails):
    turned = {"into": {"w": torch.ones(10, 10).T}, "of": {"w": np.ones((10, 10), np.float32)}}
    fails(LayoutError, "tensor 'w' is not contiguous", download_tensors, **turned)
    sentence = "cannot be received into a int; give a module"
    fails(LayoutError, sentence, download_tensors, into=5)
    for into, sentence in (
        ({"v": np.zeros(9)}, "'w' is selected"),
        ({"w": np.zeros(3)}, "does not fit"),
    ):
        fails(LayoutError, sentence, download_tensors, into=into, select=["w"])
    into = {"w": object()}
    fails(PayloadError, "cannot be sent", download_payload, into=into, add=add_payload)


@pytest.mark.parametrize("name", ["file/m.safetensors", "m" * 300, "folder", "n\0l", "pipe"])
def test_a_path_that_cannot_be_written_reaches_the_sender(fails, tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    sentence = "it is no regular file" if name == "pipe" else "cannot be written"
    fails(CheckpointError, sentence, download_file, tmp_path / name, resume=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder", "pipe"]


def test_a_disk_that_refuses_the_last_step_is_a_failure_for_both(fails, tmp_path, monkeypatch):
    def refuse(fd):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", refuse)
    fails(CheckpointError, "Input/output error", download_file, tmp_path / "m.safetensors")
    assert not list(tmp_path.iterdir())


def test_a_receiver_that_stalls_is_named_by_the_offer_itself(harness):
    service = harness.service
    settled = threading.Event()
    ref = add_tensors(
        service,
        {"w": np.ones(8 * MIB, np.uint8)},
        ["site-1", "site-2"],
        on_settled=lambda _: settled.set(),
        stall_timeout=0.5,
    )
    assert download_tensors(harness.receiver(), ref.token, settings=QUICK)[0].ok
    assert settled.wait(10)  # nobody waits for the ref
    assert ref.outcome.status == "aborted"
    assert ref.outcome.reason.startswith("site-2: it stalled (sent 0 B of 8 MiB, nothing from it")
    assert ref.deliveries["site-1"].failure is None


def test_an_offer_to_nobody_is_finished_and_a_callback_may_close_the_service(harness):
    service, closed = harness.service, threading.Event()
    assert add_tensors(service, {"w": np.ones(10)}, []).wait(0).ok

    def close(_):
        service.close()
        closed.set()

    ref = add_tensors(service, {"w": np.ones(10)}, ["site-1"], on_settled=close)
    assert download_tensors(harness.receiver(), ref.token, settings=QUICK)[0].ok
    assert closed.wait(10)


@pytest.mark.parametrize("timeout", [1e300, float("inf")])
def test_a_stall_timeout_without_end_does_not_stop_the_service(harness, timeout):
    array = {"w": np.ones(10)}
    ref = add_tensors(harness.service, array, ["site-1"], stall_timeout=timeout)
    assert download_tensors(harness.receiver(), ref.token, settings=QUICK)[0].ok
    assert ref.wait(10).ok


LARGE_CHUNKS = StreamSettings(chunk_size=MIB, request_timeout=60)


@pytest.fixture
def honest(harness):
    """Downloads from the service what it has for an honest receiver."""
    receiver = harness.receiver("site-2")

    def download(array, settings=LARGE_CHUNKS):
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


def insist(call, *args):
    """Send requests without end, or read all answers."""
    with suppress(OSError):
        while call(*args):
            pass


@first_and_nightly(
    ("kind", "reads"),
    [*((kind, False) for kind in list(ATTACKS)[:3]), *((kind, True) for kind in ATTACKS)],
    brief=6,
)
def test_who_asks_without_end_has_its_turn_as_others_do(harness, honest, watch_growth, kind, reads):
    # The layout has 1 MiB, and the large tensor is to be gathered.
    arrays = {f"{'a' * 30}{number}": np.zeros(1, np.uint8) for number in range(10_000)}
    arrays["a"] = np.ones((16, 4 * MIB), np.uint8).T
    ref = add_tensors(harness.service, arrays, ["site-1", "site-3"])
    asked = b"".join(ATTACKS[kind](n, ref.token) for n in range(1, 51))
    sock = harness.socket("site-1")
    growth = watch_growth()
    sock.sendall(greeting())
    calls = [(sock.send, asked), (sock.recv, MIB)][: 1 + reads]
    threads = [threading.Thread(target=insist, args=call, daemon=True) for call in calls]
    for thread in threads:
        thread.start()
    for _ in range(2):
        status, got = honest(np.ones(MIB, np.uint8))
        assert status.ok
        assert got["a"].sum() == MIB
    assert ref.outcome is None
    assert growth() < 64 * MIB
    sock.shutdown(socket.SHUT_RDWR)
    for thread in threads:
        thread.join(30)


def test_two_channels_of_one_name_do_not_end_each_others_downloads(harness):
    service, (first, last) = harness.service, [harness.receiver("site-4") for _ in range(2)]
    ref = add_tensors(service, {"a": np.ones(1000, np.uint8)}, ["site-4"])
    first.close()
    service.offer(ref.source, []).abort("only to have the service look at its channels")
    assert download_tensors(last, ref.token, settings=LARGE_CHUNKS)[0].ok
    assert ref.wait(30).ok
    # Once the last one has ended, so has the receiver.
    again = add_tensors(service, {"a": np.ones(1000, np.uint8)}, ["site-4"])
    last.close()
    assert again.wait(30).status == "aborted"


def test_a_model_in_one_message_is_no_longer_than_the_sender_allows(honest):
    array = np.ones((96, MIB), np.uint8).T  # which has to be gathered
    status, _ = honest(array, replace(LARGE_CHUNKS, chunk_size=0))
    assert status.code == "refused"
    assert "more than 67108864 bytes" in status.reason
    assert "Limits.scratch_bytes" in status.reason
