"""The low-level API to move tensors, arrays, files or payloads from one process to another.

After NVFlare's ``add_tensors`` and ``download_tensors`` (its guide to the Tensor Downloader). The
sender offers a snapshot through a download service, and sends the ref's id to the receivers by any
means. Each of them downloads at its own pace::

    with DownloadService() as service, listen(service, "127.0.0.1:7707") as listener:   # the sender
        key = listener.admit("site-1")
        ref = add_tensors(service, model.state_dict(), receivers=["site-1"])
        print(listener.address, key, ref.id)
        outcome = ref.wait()

    with connect("127.0.0.1:7707", key) as receiver:                                  # the receiver
        status, state_dict = download_tensors(receiver, ref_id)

A payload is any nested structure with tensors in it, such as an ``FLModel``: see
:mod:`flstream.streaming.payload`. It also takes a single ref, and one call on each side::

    ref = add_payload(service, {"model": net.state_dict(), "round": 3}, receivers=["site-1"])
    status, value = download_payload(receiver, ref.id)
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

import msgspec
import numpy as np

from flstream.errors import CheckpointError, LayoutError
from flstream.model.checkpoint import FileSink, FileSource, open_blob
from flstream.model.layout import Layout
from flstream.model.memory import Framework, MemoryBody, Params
from flstream.streaming.fetching import DownloadOptions, OnTensors, Status, fetch, fetch_specs
from flstream.streaming.payload import (
    Registry,
    default_registry,
    pack,
    payload_body,
    payload_memory,
    value_of,
)
from flstream.streaming.receiver import Receiver
from flstream.streaming.refs import OfferOptions, Ref
from flstream.streaming.selection import TensorSpec
from flstream.streaming.service import DownloadService
from flstream.streaming.settings import DEFAULT_LIMITS, Limits
from flstream.transport.channel import AbortSignal
from flstream.transport.tcp import StartToken, TcpListener, dial

if TYPE_CHECKING:
    import torch


def add_tensors(
    service: DownloadService,
    tensors: Mapping[str, torch.Tensor],
    receivers: Iterable[str],
    **options: Unpack[OfferOptions],
) -> Ref:
    """Offer tensors. Their storage is read when it is requested, so it must not change meanwhile.

    A change that torch counts is refused to whoever fetches; one by NumPy or through ``.data`` is
    not seen.

    Args:
        service: Service that serves them.
        tensors: Dense tensors by name, such as a state dict, on any device.
        receivers: Names under which the receivers' channels are attached; no other is served.
        options: See :class:`~flstream.streaming.refs.OfferOptions`.

    Returns:
        The ref, whose ``id`` the receivers need and whose ``wait()`` returns how it ended.

    Raises:
        LayoutError: A tensor cannot be streamed; the message names it and says what to do.
        ValueError: An option makes no sense, or the receivers are one text.
    """
    return _offer_by_name(service, tensors, receivers, options)


def add_arrays(
    service: DownloadService,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    receivers: Iterable[str],
    **options: Unpack[OfferOptions],
) -> Ref:
    """Offer NumPy arrays: see :func:`add_tensors`."""
    return _offer_by_name(service, arrays, receivers, options)


def add_file(
    service: DownloadService,
    path: str | Path,
    receivers: Iterable[str],
    **options: Unpack[OfferOptions],
) -> Ref:
    """Offer the tensors of a ``.safetensors`` file, which is read range by range.

    The other arguments are those of :func:`add_tensors`.

    Raises:
        CheckpointError: The file cannot be read or is not a sound safetensors file.
        ValueError: An option makes no sense, or the receivers are one text.
    """
    return service.offer(FileSource(Path(path)), receivers, **options)


def add_blob(
    service: DownloadService,
    path: str | Path,
    receivers: Iterable[str],
    **options: Unpack[OfferOptions],
) -> Ref:
    """Offer the bytes of any file, for :func:`download_blob`: see :func:`add_file`.

    Raises:
        CheckpointError: The file cannot be read.
        ValueError: An option makes no sense, or the receivers are one text.
    """
    return service.offer(open_blob(Path(path)), receivers, **options)


def add_payload(
    service: DownloadService,
    value: object,
    receivers: Iterable[str],
    *,
    registry: Registry = default_registry,
    **options: Unpack[OfferOptions],
) -> Ref:
    """Offer a payload, a nested structure with tensors in it.

    It may hold None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict (with
    keys of str or int), ``OrderedDict``, ``torch.Size``, NumPy scalars and arrays, torch tensors,
    and registered types, such as enums, dataclasses and namedtuples; each arrives as the same type.
    A tensor that occurs twice is sent once and is one object on arrival; a container that occurs
    twice arrives as two. Gradients are not sent, and a ``Parameter`` arrives as a tensor. Tensors
    are read when they are requested, so they must not change meanwhile; the rest may.

    Args:
        service: Service that serves it.
        value: The payload.
        receivers: As for :func:`add_tensors`.
        registry: Types that it may hold beyond the built-in ones.
        options: As for :func:`add_tensors`.

    Raises:
        PayloadError: A part of it cannot be sent, or is too large; the message names its path.
        LayoutError: There are more tensors, or longer paths to them, than a layout may have.
        ValueError: An option makes no sense, or the receivers are one text.
    """
    return service.offer(payload_body(value, registry), receivers, **options)


def download_tensors(
    receiver: Receiver,
    ref_id: str | bytes,
    *,
    into: torch.nn.Module | Mapping[str, torch.Tensor] | None = None,
    select: Collection[str] | None = None,
    on_tensors: OnTensors | None = None,
    **options: Unpack[DownloadOptions],
) -> tuple[Status, Params]:
    """Download tensors.

    Args:
        receiver: Receiving side of the channel.
        ref_id: The ref's ``id``, or its ``token``.
        into: Module, or its state dict, whose own parameters receive the bytes; None for new
            memory.
        select: Names of the tensors that are wanted; None for all. Nothing else is sent.
        on_tensors: Called with tensors as soon as all their bytes have arrived.
        options: See :class:`~flstream.streaming.fetching.DownloadOptions`.

    Returns:
        How the download ended, and the tensors by name, in the order in which they were offered or
        selected. After a failure of an optional download there are none, and the content of
        ``into`` is undefined.

    Raises:
        StreamingError: The download failed, and is not ``optional``.
        LayoutError: ``into`` does not fit the offer, or cannot be written to.
    """
    names = _names(select)
    return _tensors(receiver, ref_id, into, "pytorch", on_tensors, options, names)


def download_arrays(
    receiver: Receiver,
    ref_id: str | bytes,
    *,
    into: Mapping[str, np.ndarray[Any, Any]] | None = None,
    select: Collection[str] | None = None,
    on_tensors: OnTensors | None = None,
    **options: Unpack[DownloadOptions],
) -> tuple[Status, Params]:
    """Download as NumPy arrays: see :func:`download_tensors`.

    Raises:
        StreamingError: The download failed, and is not ``optional``.
        LayoutError: ``into`` does not fit the offer, or cannot be written to, or NumPy lacks the
            type of a tensor; the message names it.
    """
    names = _names(select)
    return _tensors(receiver, ref_id, into, "numpy", on_tensors, options, names)


def download_specs(
    receiver: Receiver,
    specs: Iterable[TensorSpec],
    *,
    framework: Framework = "pytorch",
    into: torch.nn.Module | Params | None = None,
    on_tensors: OnTensors | None = None,
    **options: Unpack[DownloadOptions],
) -> tuple[Status, Params]:
    """Download tensors by what they are, all of a list together: see :func:`download_tensors`.

    They are looked up among all that the sender has on offer to this receiver with a ``round`` and
    ``tags``. What they are looked up in stays on offer; its owner withdraws it. After the list of
    specs with which OpenFL fetches tensors in batches (its pull request 1575).

    Args:
        receiver: Receiving side of the channel.
        specs: The tensors, no name twice.
        framework: Kind of the new memory.
        into: As for :func:`download_tensors`.
        on_tensors: As for :func:`download_tensors`.
        options: As for :func:`download_tensors`.

    Raises:
        ValueError: A spec is none.
        RefusedError: One of them is not on offer; the message names it.
        StreamingError: The download failed otherwise, and is not ``optional``.
    """
    wanted = [_sound(spec) for spec in specs]
    if len({spec.tensor_name for spec in wanted}) < len(wanted):
        raise ValueError("two specs have the same name; ask for one of them at a time")

    def sink_for(layout: Layout) -> MemoryBody:
        return MemoryBody.allocate(layout, framework) if into is None else _part_of(into, layout)

    return fetch_specs(receiver, wanted, sink_for, options, on_tensors)


def download_file(
    receiver: Receiver,
    ref_id: str | bytes,
    path: str | Path,
    *,
    resume: bool = False,
    **options: Unpack[DownloadOptions],
) -> tuple[Status, Path | None]:
    """Download into a ``.safetensors`` file, with memory for a single chunk.

    Args:
        receiver: Receiving side of the channel.
        ref_id: The ref's ``id``, or its ``token``.
        path: Path of the file.
        resume: Whether to keep the bytes of a failed download in ``<path>.tmp``, and to continue it
            the next time. Each chunk of an earlier attempt is compared with the offer by its
            digest; only those that are missing or differ are fetched.
        options: As for :func:`download_tensors`.

    Returns:
        How the download ended, and the path of the whole file; None after a failure of an optional
        download.

    Raises:
        StreamingError: The download failed, and is not ``optional``.
        CheckpointError: The file cannot be written, or someone else is writing it.
    """
    return _file(receiver, ref_id, Path(path), resume, False, options)


def download_blob(
    receiver: Receiver,
    ref_id: str | bytes,
    path: str | Path,
    *,
    resume: bool = False,
    **options: Unpack[DownloadOptions],
) -> tuple[Status, Path | None]:
    """Download the bytes that :func:`add_blob` offers: see :func:`download_file`.

    Raises:
        StreamingError: The download failed, and is not ``optional``.
        CheckpointError: The file cannot be written, or what is on offer are tensors.
    """
    return _file(receiver, ref_id, Path(path), resume, True, options)


def download_payload(
    receiver: Receiver,
    ref_id: str | bytes,
    *,
    into: object = None,
    on_tensors: OnTensors | None = None,
    framework: Framework = "pytorch",
    registry: Registry = default_registry,
    **options: Unpack[DownloadOptions],
) -> tuple[Status, Any]:
    """Download a payload.

    Args:
        receiver: Receiving side of the channel.
        ref_id: The ref's ``id``, or its ``token``.
        into: Value whose tensors and arrays receive the bytes of those at the same paths, such as
            ``{"model": net.state_dict()}``. Tensors that it lacks get new memory.
        on_tensors: Called with tensors by their paths, as soon as all their bytes have arrived.
        framework: Kind of the new memory. Either way, the value has tensors where tensors were sent
            and arrays where arrays were, over the same memory; ``numpy`` lets a process do without
            torch if it is sent only arrays.
        registry: Types that may arrive beyond the built-in ones.
        options: As for :func:`download_tensors`.

    Returns:
        How the download ended, and the value. After a failure of an optional download it is None,
        and the content of ``into`` is undefined.

    Raises:
        StreamingError: The download failed, and is not ``optional``.
        PayloadError: The offer is not a payload, or one that cannot be rebuilt here, or ``into`` is
            not a payload. The sender is informed.
        LayoutError: ``into`` does not fit the offer, or cannot be written to, or there is not
            enough memory; the message names the path.
    """

    def sink_for(layout: Layout) -> MemoryBody:
        targets = {} if into is None else pack(into, registry)[1]
        return payload_memory(layout, targets, framework, receiver.peer)

    values: list[Any] = []

    def finish(body: MemoryBody) -> None:
        values.append(value_of(body, registry))

    status, body, _ = fetch(receiver, ref_id, sink_for, options, on_tensors, finish)
    return status, None if body is None else values[0]


def listen(service: DownloadService, address: str, run: str = "") -> TcpListener:
    """Serve receivers that connect over TCP with a key: see :meth:`TcpListener.admit`.

    Args:
        service: The service.
        address: Address of this machine, ``HOST:PORT``; port 0 is a free one.
        run: What both sides are part of; a key opens nothing else.

    Raises:
        UsageError: The address cannot be listened on, or stands for all addresses.
    """
    return TcpListener(address, lambda channel, who: service.attach(channel, who.name), run)


def connect(
    address: str,
    key: str | StartToken,
    *,
    peer: str = "sender",
    run: str = "",
    abort: AbortSignal | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Receiver:
    """Connect to a sender over TCP, and again whenever the connection breaks.

    Args:
        address: Address on which it listens, ``HOST:PORT``.
        key: What ``admit`` of its listener returned, or its text.
        peer: Name of the sender, for messages.
        run: What both sides are part of.
        abort: Signal that cancels every download.
        limits: What the sender may cause.

    Raises:
        UsageError: The address or the key is none.
        ChannelClosedError: The sender cannot be reached, or has another key.
    """
    token = key if isinstance(key, StartToken) else StartToken.parse(key)
    again = partial(dial, address, token, peer, run=run)
    return Receiver(again(), peer, abort, limits, again)


def _offer_by_name(
    service: DownloadService, tensors: Params, receivers: Iterable[str], options: OfferOptions
) -> Ref:
    if not isinstance(tensors, Mapping):
        raise LayoutError(
            f"what is offered is a {type(tensors).__name__}; give tensors by name, such as the "
            "state_dict() of a module"
        )
    options.setdefault("order", list(tensors))
    return service.offer(MemoryBody.of(tensors), receivers, **options)


def _names(select: Collection[str] | None) -> list[str] | None:
    if select is None:
        return None
    if isinstance(select, str) or not all(isinstance(name, str) for name in select):
        raise ValueError(f"select is {select!r}; give a list of names")
    return list(select)


def _part_of(into: torch.nn.Module | Params, layout: Layout) -> MemoryBody:
    """Return the memory of the selected tensors among those that a caller has given."""
    body = MemoryBody.over(into)
    lacking = next((name for name in layout.names if name not in body.tensors), None)
    if lacking is not None:
        raise LayoutError(f"tensor {lacking!r} is selected, and into has none of that name")
    return body.part(layout)


def _sound(spec: TensorSpec) -> TensorSpec:
    """Refuse a spec that could not be sent."""
    try:
        if type(spec) is not TensorSpec or not -(2**63) <= spec.round_number < 2**63:
            raise TypeError("it is none, or of no round")
        return msgspec.convert(tuple(spec), TensorSpec)
    except (msgspec.ValidationError, TypeError) as error:
        raise ValueError(
            f"{spec!r} is no spec; give TensorSpec(name, round, tags), with tags a tuple of texts"
        ) from error


def _tensors(
    receiver: Receiver,
    ref_id: str | bytes,
    into: torch.nn.Module | Params | None,
    framework: Framework,
    on_tensors: OnTensors | None,
    options: DownloadOptions,
    select: list[str] | None = None,
) -> tuple[Status, Params]:
    def sink_for(layout: Layout) -> MemoryBody:
        if into is None:
            return MemoryBody.allocate(layout, framework)
        return MemoryBody.over(into) if select is None else _part_of(into, layout)

    status, body, names = fetch(receiver, ref_id, sink_for, options, on_tensors, select=select)
    return status, {} if body is None else {name: body.tensors[name] for name in names}


def _file(
    receiver: Receiver,
    ref_id: str | bytes,
    path: Path,
    resume: bool,
    bare: bool,
    options: DownloadOptions,
) -> tuple[Status, Path | None]:
    with ExitStack() as stack:
        is_begun = resume and os.path.exists(f"{path}.tmp")

        def sink_for(layout: Layout) -> FileSink:
            if bare and layout.names != ["blob"]:
                raise CheckpointError(
                    f"what {receiver.peer} offers are tensors, no blob; fetch it by download_file"
                )
            return stack.enter_context(FileSink(path, layout, resume=resume, bare=bare))

        def earlier(sink: FileSink) -> FileSink | None:
            return sink if sink.resumed else None

        held = earlier if is_begun else None
        status, sink, _ = fetch(
            receiver, ref_id, sink_for, options, finish=FileSink.finish, held=held
        )
    return status, path if sink is not None else None
