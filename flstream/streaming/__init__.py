"""Streamed and checked transfer of tensors, arrays, files and payloads between processes.

The names are those of NVFlare's guide to the Tensor Downloader. The sender offers a snapshot
through a download service, and sends the ref's id to the receivers by any means. Each receiver
downloads at its own pace::

    # the sender
    with DownloadService() as service, listen(service, "127.0.0.1:7707") as listener:
        key = listener.admit("site-1")
        ref = add_tensors(service, model.state_dict(), receivers=["site-1"])
        print(listener.address, key, ref.id)
        outcome = ref.wait()

    # the receiver
    with connect("127.0.0.1:7707", key) as receiver:
        status, state_dict = download_tensors(receiver, ref_id)

A payload is any nested structure with tensors in it, such as an ``FLModel``. It also takes a single
ref, and one call on each side::

    ref = add_payload(service, {"model": net.state_dict(), "round": 3}, receivers=["site-1"])
    status, value = download_payload(receiver, ref.id)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from flstream.model.layout import Layout
from flstream.model.source import Source
from flstream.streaming.receiver import Receiver
from flstream.streaming.refs import Outcome, Ref
from flstream.streaming.service import DownloadService
from flstream.streaming.settings import Limits, StreamSettings
from flstream.transport.channel import Channel, Signal, pipe

if TYPE_CHECKING:
    from flstream.streaming.api import (
        Status,
        add_blob,
        add_file,
        add_payload,
        add_tensors,
        connect,
        download_blob,
        download_file,
        download_payload,
        download_specs,
        download_tensors,
        listen,
    )
    from flstream.streaming.payload import Decomposer, Registry, default_registry
    from flstream.streaming.selection import TensorSpec
    from flstream.transport.tcp import StartToken, TcpListener

__all__ = [
    "Channel",
    "Decomposer",
    "DownloadService",
    "Layout",
    "Limits",
    "Outcome",
    "Receiver",
    "Ref",
    "Registry",
    "Signal",
    "Source",
    "StartToken",
    "Status",
    "StreamSettings",
    "TcpListener",
    "TensorSpec",
    "add_blob",
    "add_file",
    "add_payload",
    "add_tensors",
    "connect",
    "default_registry",
    "download_blob",
    "download_file",
    "download_payload",
    "download_specs",
    "download_tensors",
    "listen",
    "pipe",
]


def __getattr__(name: str) -> Any:
    """Import the low-level API once somebody uses it: a run's processes do without."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module("flstream.streaming.api"), name)
