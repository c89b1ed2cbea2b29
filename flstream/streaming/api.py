"""The low-level way to move tensors, arrays, a file or a payload from one process to another.

After NVFlare's ``add_tensors`` and ``download_tensors`` (its guide to the Tensor Downloader). The
sender offers a snapshot through a download service, and sends the ref's token to the receivers by
whatever way it has; each of them downloads at its own pace::

    with DownloadService() as service:                      # the sender
        service.attach(channel, receiver="site-1")
        ref = add_tensors(service, model.state_dict(), receivers=["site-1"])
        send(ref.token)
        outcome = ref.wait()

    receiver = Receiver(channel, peer="server")             # the receiver
    status, state_dict = download_tensors(receiver, token)

A payload is any nested structure with tensors in it, such as an ``FLModel``: see
:mod:`flstream.streaming.payload`. It takes one ref, and one call a side, as well::

    ref = add_payload(service, {"model": net.state_dict(), "round": 3}, receivers=["site-1"])
    status, value = download_payload(receiver, token)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.layout import Layout
from flstream.model.memory import Framework, MemoryBody, Params
from flstream.streaming.decomposers import Registry, default_registry
from flstream.streaming.fetching import OnProgress as OnProgress
from flstream.streaming.fetching import OnTensors as OnTensors
from flstream.streaming.fetching import Status as Status
from flstream.streaming.fetching import arrivals, fetch
from flstream.streaming.payload import pack
from flstream.streaming.payload_body import PayloadSink, native_body, streamed_body
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.refs import Ref
from flstream.streaming.service import DownloadService

if TYPE_CHECKING:
    import torch


def add_tensors(
    service: DownloadService,
    tensors: Mapping[str, torch.Tensor],
    receivers: Iterable[str],
    on_settled: Callable[[Ref], None] | None = None,
    quorum: int | None = None,
    push: StreamSettings | None = None,
) -> Ref:
    """Offer tensors. Their storage is read as it is asked for, so it must not change meanwhile.

    Args:
        service: what serves them.
        tensors: dense tensors on the CPU by name, such as a state dict.
        receivers: the names under which the receivers' channels are attached; nobody else is
            served.
        on_settled: called once, with the ref, when every receiver is done or the offer has ended
            otherwise.
        quorum: how many receivers have to have the tensors, from 1 to all. Once they do, the ref is
            finished, and who is late is refused; once they no longer can, it is aborted. By default
            it stays on offer until every receiver is done, and all of them have to have them.
        push: send them to the receivers before they ask, in frames of this size, and at first as
            much as this window covers. By default the receivers pull them.

    Returns:
        The ref, whose ``token`` the receivers need and whose ``wait()`` tells how it ended.

    Raises:
        LayoutError: a tensor cannot be streamed; the message names it and says what to do.
        ValueError: there is no such quorum of these receivers.
    """
    return service.offer(MemoryBody.of(tensors), receivers, on_settled, push, quorum)


def add_arrays(
    service: DownloadService,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    receivers: Iterable[str],
    on_settled: Callable[[Ref], None] | None = None,
    quorum: int | None = None,
    push: StreamSettings | None = None,
) -> Ref:
    """Offer NumPy arrays: as :func:`add_tensors`."""
    return service.offer(MemoryBody.of(arrays), receivers, on_settled, push, quorum)


def add_file(
    service: DownloadService,
    path: Path,
    receivers: Iterable[str],
    on_settled: Callable[[Ref], None] | None = None,
    quorum: int | None = None,
    push: StreamSettings | None = None,
) -> Ref:
    """Offer the tensors of a ``.safetensors`` file, which is read range by range.

    Raises:
        CheckpointError: the file cannot be read or is not a sound safetensors file.
        ValueError: there is no such quorum of these receivers.
    """
    return service.offer(FileSource(path), receivers, on_settled, push, quorum)


def add_payload(
    service: DownloadService,
    value: object,
    receivers: Iterable[str],
    on_settled: Callable[[Ref], None] | None = None,
    quorum: int | None = None,
    *,
    native: bool = False,
    registry: Registry = default_registry,
) -> Ref:
    """Offer a payload: a nested structure of what :func:`~flstream.streaming.payload.pack` takes.

    Its tensors are read as they are asked for, so they must not change meanwhile; the rest may.

    Args:
        service: what serves it.
        value: the payload.
        receivers: as for :func:`add_tensors`.
        on_settled: as for :func:`add_tensors`.
        quorum: as for :func:`add_tensors`.
        native: serialise it here and now in one piece, each tensor by the safetensors library, as
            is due where streaming is off; it takes the memory of two more models.
        registry: the types that it may hold beyond the built-in ones.

    Raises:
        PayloadError: something in it cannot be sent, or is too large to be; the message names the
            path to it.
        ValueError: there is no such quorum of these receivers.
    """
    body = native_body(value, registry) if native else streamed_body(value, registry)
    return service.offer(body, receivers, on_settled, quorum=quorum)


def download_tensors(
    receiver: Receiver,
    token: bytes,
    settings: StreamSettings | None = None,
    into: torch.nn.Module | Mapping[str, torch.Tensor] | None = None,
    on_progress: OnProgress | None = None,
    on_tensors: OnTensors | None = None,
) -> tuple[Status, Params]:
    """Download tensors.

    To call it off from another thread, give the receiver an abort signal and set that.

    Args:
        receiver: where to fetch.
        token: of the ref.
        settings: sizes, window and per-request timeout; None for the defaults.
        into: a module, or its state dict, whose own parameters are to receive the bytes; None for
            new memory.
        on_progress: told how far it is.
        on_tensors: given tensors as soon as all their bytes are there.

    Returns:
        How it ended, and the tensors by name: none unless it ended ``ok``. What lies in ``into``
        after any other end is of no use.

    Raises:
        LayoutError: ``into`` does not fit what is offered, or cannot be received into.
    """
    return _download_params(receiver, token, settings, into, "pytorch", on_progress, on_tensors)


def download_arrays(
    receiver: Receiver,
    token: bytes,
    settings: StreamSettings | None = None,
    into: Mapping[str, np.ndarray[Any, Any]] | None = None,
    on_progress: OnProgress | None = None,
    on_tensors: OnTensors | None = None,
) -> tuple[Status, Params]:
    """Download as NumPy arrays: as :func:`download_tensors`.

    Raises:
        LayoutError: besides, a tensor has a type that NumPy lacks; the message names it.
    """
    return _download_params(receiver, token, settings, into, "numpy", on_progress, on_tensors)


def download_file(
    receiver: Receiver,
    token: bytes,
    path: Path,
    settings: StreamSettings | None = None,
    on_progress: OnProgress | None = None,
    *,
    resume: bool = False,
) -> tuple[Status, Path | None]:
    """Download into a ``.safetensors`` file, with memory for a chunk alone.

    Args:
        receiver: where to fetch.
        token: of the ref.
        path: of the file.
        settings: sizes, window and per-request timeout; None for the defaults.
        on_progress: told how far it is.
        resume: keep what has arrived if the download fails, in ``<path>.tmp``, and go on with it
            the next time. What is there is compared by digest with what is offered, chunk by
            chunk, never trusted; only what is missing or differs is fetched.

    Returns:
        How it ended, and the file: whole, or None.

    Raises:
        CheckpointError: the file cannot be written.
    """
    with ExitStack() as stack:

        def sink_for(layout: Layout) -> FileSink:
            return stack.enter_context(FileSink(path, layout, resume=resume))

        status, sink = fetch(receiver, token, settings, sink_for, on_progress)
        if sink is not None:
            sink.finish()
    return status, path if sink is not None else None


def download_payload(
    receiver: Receiver,
    token: bytes,
    settings: StreamSettings | None = None,
    into: object = None,
    on_progress: OnProgress | None = None,
    on_tensors: OnTensors | None = None,
    *,
    framework: Framework = "pytorch",
    registry: Registry = default_registry,
) -> tuple[Status, Any]:
    """Download a payload, in whichever way it was offered.

    Args:
        receiver: where to fetch.
        token: of the ref.
        settings: sizes, window and per-request timeout; None for the defaults.
        into: a value whose tensors and arrays are to receive the bytes of those at the same paths,
            such as ``{"model": net.state_dict()}``. It may lack any; those get new memory.
        on_progress: told how far it is, the message included.
        on_tensors: given tensors by their paths, as soon as all their bytes are there; all at the
            end if they come in one piece.
        framework: what allocates new memory. Whatever it is, the value has tensors where tensors
            were sent and arrays where arrays were, over the same memory; ``numpy`` lets a process
            do without torch that is sent arrays alone, and streamed.
        registry: the types that may arrive beyond the built-in ones.

    Returns:
        How it ended, and the value: None unless it ended ``ok``. What lies in ``into`` after any
        other end is of no use.

    Raises:
        PayloadError: what is offered is no payload, or one that cannot be put together here, or
            ``into`` is none; the sender hears of it.
        LayoutError: ``into`` does not fit what is offered, or cannot be received into, or there is
            no memory; the message names the path.
    """
    targets = {} if into is None else pack(into, registry=registry).tensors

    def sink_for(layout: Layout) -> PayloadSink:
        return PayloadSink(layout, receiver.peer, targets, framework, registry)

    watch = arrivals(on_tensors)
    status, sink = fetch(receiver, token, settings, sink_for, on_progress, watch)
    if sink is None:
        return status, None
    if sink.in_one_piece and sink.tensors and on_tensors is not None:
        on_tensors(sink.tensors)
    return status, sink.value


def _download_params(
    receiver: Receiver,
    token: bytes,
    settings: StreamSettings | None,
    into: torch.nn.Module | Params | None,
    framework: Framework,
    on_progress: OnProgress | None,
    on_tensors: OnTensors | None,
) -> tuple[Status, Params]:
    existing = None if into is None else MemoryBody.over(into)

    def sink_for(layout: Layout) -> MemoryBody:
        return existing or MemoryBody.allocate(layout, framework)

    watch = arrivals(on_tensors)
    status, body = fetch(receiver, token, settings, sink_for, on_progress, watch)
    return status, {} if body is None else body.tensors
