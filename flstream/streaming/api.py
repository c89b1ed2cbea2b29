"""The low-level API to move tensors, arrays, a file or a payload from one process to another.

After NVFlare's ``add_tensors`` and ``download_tensors`` (its guide to the Tensor Downloader). The
sender offers a snapshot through a download service, and sends the ref's token to the receivers by
any means. Each of them downloads at its own pace::

    with DownloadService() as service:                      # the sender
    service.attach(channel, receiver="site-1")
    ref = add_tensors(service, model.state_dict(), receivers=["site-1"])
    send(ref.token)
    outcome = ref.wait()

    receiver = Receiver(channel, peer="server")             # the receiver
    status, state_dict = download_tensors(receiver, token)

A payload is any nested structure with tensors in it, such as an ``FLModel``: see
:mod:`flstream.streaming.payload`. It also takes a single ref, and one call on each side::

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
    stall_timeout: float | None = None,
) -> Ref:
    """Offer tensors. Their storage is read when it is requested, so it must not change meanwhile.

    A change that torch counts is refused to whoever fetches; one by NumPy or through ``.data`` is
    not seen.

    Args:
        service: Service that serves them.
        tensors: Dense tensors by name, such as a state dict, on any device.
        receivers: Names under which the receivers' channels are attached; no other is served.
        on_settled: Called once, with the ref, when every receiver is done or the offer has ended
            otherwise; on a thread for such calls.
        quorum: Number of receivers that must have the tensors, from 1 to all. The ref is finished
            as soon as they have them, and aborted as soon as that is no longer possible; late
            receivers are refused. By default it stays open until every receiver is done, and all
            must have them.
        push: Settings with which to send them before the receivers ask: in frames of this chunk
            size, and at first as much as this window covers. By default the receivers pull them.
        stall_timeout: Seconds after which a receiver is lost that takes nothing and asks for
            nothing. By default the offer waits for it.

    Returns:
        The ref, whose ``token`` the receivers need and whose ``wait()`` returns how it ended.

    Raises:
        LayoutError: A tensor cannot be streamed; the message names it and says what to do.
        ValueError: The quorum is not from 1 to the number of receivers, the timeout is not above 0,
            or the receivers are one text.
    """
    return service.offer(MemoryBody.of(tensors), receivers, on_settled, push, quorum, stall_timeout)


def add_arrays(
    service: DownloadService,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    receivers: Iterable[str],
    on_settled: Callable[[Ref], None] | None = None,
    quorum: int | None = None,
    push: StreamSettings | None = None,
    stall_timeout: float | None = None,
) -> Ref:
    """Offer NumPy arrays: see :func:`add_tensors`."""
    return service.offer(MemoryBody.of(arrays), receivers, on_settled, push, quorum, stall_timeout)


def add_file(
    service: DownloadService,
    path: Path,
    receivers: Iterable[str],
    on_settled: Callable[[Ref], None] | None = None,
    quorum: int | None = None,
    push: StreamSettings | None = None,
    stall_timeout: float | None = None,
) -> Ref:
    """Offer the tensors of a ``.safetensors`` file, which is read range by range.

    The other arguments are those of :func:`add_tensors`.

    Args:
        service: Service that serves them.
        path: Path of the file.
        receivers: Names under which the receivers' channels are attached.
        on_settled: Called once, with the ref, when the offer has ended.
        quorum: Number of receivers that must have the tensors; None for all.
        push: Settings with which to send them before the receivers ask.
        stall_timeout: Seconds after which a silent receiver is lost.

    Raises:
        CheckpointError: The file cannot be read or is not a sound safetensors file.
        ValueError: The quorum is not from 1 to the number of receivers.
    """
    return service.offer(FileSource(path), receivers, on_settled, push, quorum, stall_timeout)


def add_payload(
    service: DownloadService,
    value: object,
    receivers: Iterable[str],
    on_settled: Callable[[Ref], None] | None = None,
    quorum: int | None = None,
    *,
    native: bool = False,
    registry: Registry = default_registry,
    stall_timeout: float | None = None,
) -> Ref:
    """Offer a payload: a nested structure of what :func:`~flstream.streaming.payload.pack` takes.

    Its tensors are read when they are requested, so they must not change meanwhile; the rest may.

    Args:
        service: Service that serves it.
        value: The payload.
        receivers: As for :func:`add_tensors`.
        on_settled: As for :func:`add_tensors`.
        quorum: As for :func:`add_tensors`.
        native: Whether to serialise it at once in one piece, each tensor by the safetensors
            library, as needed where streaming is off. That takes the memory of two more models.
        registry: Types that it may hold beyond the built-in ones.
        stall_timeout: As for :func:`add_tensors`.

    Raises:
        PayloadError: A part of it cannot be sent, or is too large; the message names its path.
        ValueError: The quorum is not from 1 to the number of receivers.
    """
    body = native_body(value, registry) if native else streamed_body(value, registry)
    return service.offer(body, receivers, on_settled, quorum=quorum, stall_timeout=stall_timeout)


def download_tensors(
    receiver: Receiver,
    token: bytes,
    settings: StreamSettings | None = None,
    into: torch.nn.Module | Mapping[str, torch.Tensor] | None = None,
    on_progress: OnProgress | None = None,
    on_tensors: OnTensors | None = None,
) -> tuple[Status, Params]:
    """Download tensors.

    To cancel the download from another thread, give the receiver an abort signal and set that.

    Args:
        receiver: Receiving side of the channel.
        token: Token of the ref.
        settings: Sizes, window and per-request timeout; None for the defaults.
        into: Module, or its state dict, whose own parameters receive the bytes; None for new
            memory.
        on_progress: Called with the number of bytes received so far and in all.
        on_tensors: Called with tensors as soon as all their bytes have arrived.

    Returns:
        How the download ended, and the tensors by name: none unless it ended ``ok``. After any
            other end, the content of ``into`` is undefined.

    Raises:
        LayoutError: ``into`` does not fit the offer, or cannot be written to.
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
    """Download as NumPy arrays: see :func:`download_tensors`.

    Raises:
        LayoutError: ``into`` does not fit the offer, or cannot be written to, or NumPy lacks the
            type of a tensor; the message names it.
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
    """Download into a ``.safetensors`` file, with memory for a single chunk.

    Args:
        receiver: Receiving side of the channel.
        token: Token of the ref.
        path: Path of the file.
        settings: Sizes, window and per-request timeout; None for the defaults.
        on_progress: Called with the number of bytes received so far and in all.
        resume: Whether to keep the bytes of a failed download in ``<path>.tmp``, and to continue it
            the next time. Each chunk of an earlier attempt is compared with the offer by its
            digest; only those that are missing or differ are fetched.

    Returns:
        How the download ended, and the path of the whole file, or None.

    Raises:
        CheckpointError: The file cannot be written, or someone else is writing it.
    """
    with ExitStack() as stack:

        def sink_for(layout: Layout) -> FileSink:
            return stack.enter_context(FileSink(path, layout, resume=resume))

        status, sink = fetch(
            receiver, token, settings, sink_for, on_progress, finish=FileSink.finish
        )
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
    """Download a payload, streamed or in one piece as it was offered.

    Args:
        receiver: Receiving side of the channel.
        token: Token of the ref.
        settings: Sizes, window and per-request timeout; None for the defaults.
        into: Value whose tensors and arrays receive the bytes of those at the same paths, such as
        ``{"model": net.state_dict()}``. Tensors that it lacks get new memory.
        on_progress: Called with the number of bytes received so far and in all, message included.
        on_tensors: Called with tensors by their paths, as soon as all their bytes have arrived;
            with
        all at the end if they come in one piece.
        framework: Kind of the new memory. Either way, the value has tensors where tensors were sent
            and
        arrays where arrays were, over the same memory; ``numpy`` lets a process do without torch
        if it is sent only arrays, and streamed.
        registry: Types that may arrive beyond the built-in ones.

    Returns:
        How the download ended, and the value: None unless it ended ``ok``. After any other end, the
        content of ``into`` is undefined.

    Raises:
        PayloadError: The offer is not a payload, or one that cannot be rebuilt here, or ``into`` is
        not a payload. The sender is informed.
        LayoutError: ``into`` does not fit the offer, or cannot be written to, or there is not
            enough
        memory; the message names the path.
    """

    def sink_for(layout: Layout) -> PayloadSink:
        targets = {} if into is None else pack(into, registry=registry).tensors
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
    def sink_for(layout: Layout) -> MemoryBody:
        if into is not None:
            return MemoryBody.over(into)
        return MemoryBody.allocate(layout, framework)

    watch = arrivals(on_tensors)
    status, body = fetch(receiver, token, settings, sink_for, on_progress, watch)
    return status, {} if body is None else body.tensors
