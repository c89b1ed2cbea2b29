"""What the other process does with payloads in a test."""

import os
import signal
import socket
import sys
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

from flstream.client.fl_model import FLModel, ParamsType
from flstream.streaming.api import add_payload, download_payload
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.service import DownloadService
from flstream.transport.sockets import SocketChannel


def arrays() -> dict[str, Any]:
    """A payload for which nobody needs torch."""
    random = np.random.default_rng(11)
    return {
        "model": FLModel(
            {"w": random.random((300, 500), np.float32), "b": random.integers(0, 9, 700)},
            ParamsType.DIFF,
            metrics={"loss": 0.25},
            meta={"num_examples": 17, "site": ("site-1", None, b"\x00")},
        ),
        "scalar": np.float16(1.5),
    }


def offer_arrays(end: socket.socket, reports: Connection, quorum: int | None) -> None:
    """Offer :func:`arrays` to a receiver and to one that never comes; report how the ref ended."""
    with DownloadService() as service:
        ref = add_payload(service, arrays(), ["receiver", "nobody"], quorum=quorum)
        service.attach(SocketChannel(end, "receiver"), "receiver")
        reports.send(ref.token)
        outcome = ref.wait(30)
    reports.send((outcome.status, outcome.reason))


def fetch_and_report(
    end: socket.socket, reports: Connection, token: bytes, settings: StreamSettings
) -> None:
    """Download a payload; report its status, its content, and whether torch was needed."""
    status, value = download_payload(
        Receiver(SocketChannel(end, "sender"), "sender"),
        token,
        settings=settings,
        framework="numpy",
    )
    reports.send((status.code, status.reason))
    if status.ok:
        same = all(
            np.array_equal(value["model"].params[name], due)
            for name, due in arrays()["model"].params.items()
        )
        meta = value["model"].meta
        reports.send((same, meta, type(value["scalar"]).__name__, "torch" in sys.modules))


def die_on_the_way(
    end: socket.socket, reports: Connection, token: bytes, settings: StreamSettings
) -> None:
    """Be killed by the system when half of a payload is there."""

    def die(done: int, size: int) -> None:
        if done > size // 2:
            reports.send("dying")
            os.kill(os.getpid(), signal.SIGKILL)

    receiver = Receiver(SocketChannel(end, "sender"), "sender")
    download_payload(receiver, token, settings=settings, on_progress=die, framework="numpy")


def send_back(end: socket.socket, reports: Connection, other: socket.socket, token: bytes) -> None:
    """Download a payload, double its tensors in place, and offer it at another pipe."""
    _, value = download_payload(Receiver(SocketChannel(end, "sender"), "sender"), token)
    for tensor in value["model"].params.values():
        tensor.mul_(2)
    with DownloadService() as service:
        service.attach(SocketChannel(other, "sender"), "sender")
        ref = add_payload(service, value, ["sender"])
        reports.send(ref.token)
        reports.send(ref.wait(30).status)
