"""The low-level API to move tensors, arrays, files or payloads between processes.

:mod:`flstream.streaming` says how they are used.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, TypedDict, TypeVar, Unpack

import msgspec

from flstream.errors import (
    AbortedError,
    ChannelClosedError,
    CheckpointError,
    DeadlineError,
    LayoutError,
    RefusedError,
    StreamingError,
)
from flstream.model.checkpoint import FileSink, FileSource, open_blob
from flstream.model.memory import Framework, MemoryBody, Params
from flstream.model.order import in_order
from flstream.model.source import Sink
from flstream.streaming.download import RemoteSource
from flstream.streaming.payload import Decomposer as Decomposer
from flstream.streaming.payload import Registry as Registry
from flstream.streaming.payload import default_registry as default_registry
from flstream.streaming.payload import pack, payload_body, payload_memory, unpack
from flstream.streaming.receiver import Receiver
from flstream.streaming.refs import OfferOptions, Ref
from flstream.streaming.selection import TensorSpec, find_refs, ranges_of, selected_memory
from flstream.streaming.service import DownloadService
from flstream.streaming.settings import DEFAULT_LIMITS, Limits, StreamSettings, expect_options
from flstream.streaming.wire import TOKEN_BYTES, Range
from flstream.telemetry.events import Transfer
from flstream.transport.channel import AbortSignal
from flstream.transport.tcp import StartToken, TcpListener, dial

if TYPE_CHECKING:
    import torch

ResultT = TypeVar("ResultT")
Code = Literal["ok", "refused", "timed out", "aborted", "sender gone", "failed"]
_CODES: dict[type[StreamingError], Code] = {
    RefusedError: "refused",
    DeadlineError: "timed out",
    AbortedError: "aborted",
    ChannelClosedError: "sender gone",
}


class Status(NamedTuple):
    """The end of a download.

    Attributes:
        code: ``ok``, or the kind of failure.
        reason: Sentence that says why; empty if the code is ``ok``.
        cost: Bytes, requests, chunks, retries and seconds; zeros unless the code is ``ok``.
    """

    code: Code
    reason: str = ""
    cost: Transfer = Transfer()

    @property
    def ok(self) -> bool:
        """Whether everything arrived and is sound."""
        return self.code == "ok"

    def __bool__(self) -> NoReturn:
        # NVFlare returns the text of an error in this place, which is true after a failure.
        raise TypeError("a Status is neither true nor false; ask status.ok")


OnProgress = Callable[[int, int], None]
"""Function called with the bytes received so far, which never decrease, and the bytes in all."""

OnTensors = Callable[[Mapping[str, Any]], None]
"""Function called with the tensors that a chunk completed: each once, empty ones with the first."""


class DownloadOptions(TypedDict, total=False):
    """Options of a download, with the names of NVFlare's guide where it has them.

    Attributes:
        settings: Sizes and timeouts together; by default, those of ``StreamSettings()``.
        max_chunk_size: Bytes of the longest chunk, a multiple of 16, in place of that of the
            settings.
        per_request_timeout: Seconds in which the sender has to answer one request, likewise.
        abort_signal: Signal that cancels the download, from any thread.
        optional: Whether a failure is reported by the status alone, with no value, instead of
            raised.
        on_progress: Called with the number of bytes received so far and in all.
    """

    settings: StreamSettings | None
    max_chunk_size: int
    per_request_timeout: float
    abort_signal: AbortSignal | None
    optional: bool
    on_progress: OnProgress | None


def add_tensors(
    service: DownloadService,
    tensors: Params,
    receivers: Iterable[str],
    **options: Unpack[OfferOptions],
) -> Ref:
    """Offer tensors, which must not change: receivers read their storage on request.

    A change that torch counts is refused to whoever fetches; one by NumPy or through ``.data`` is
    not seen.

    Args:
        service: Service that serves them.
        tensors: Dense tensors by name, such as a state dict, on any device; or NumPy arrays.
        receivers: Names under which the receivers' channels are attached; no other is served.
        options: See :class:`~flstream.streaming.refs.OfferOptions`.

    Returns:
        The ref, whose ``id`` the receivers need and whose ``wait()`` returns how it ended.

    Raises:
        LayoutError: A tensor cannot be streamed; the message names it and says what to do.
        ValueError: An option makes no sense, or the receivers are one text.
    """
    if not isinstance(tensors, Mapping):
        raise LayoutError(
            f"what is offered is a {type(tensors).__name__}; give tensors by name, such as the "
            "state_dict() of a module"
        )
    options.setdefault("order", list(tensors))
    return service.offer(MemoryBody.of(tensors), receivers, **options)


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
    **options: Unpack[OfferOptions],
) -> Ref:
    """Offer a payload, a nested structure with tensors in it.

    It may hold None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict (with
    keys of str or int), ``OrderedDict``, ``torch.Size``, NumPy scalars and arrays, torch tensors,
    and types of the ``default_registry``, such as enums; each arrives as the same type.
    A tensor that occurs twice is sent once and is one object on arrival; a container that occurs
    twice arrives as two. Gradients are not sent, and a ``Parameter`` arrives as a tensor. Tensors
    are read when they are requested, so they must not change meanwhile; the rest may. The
    other arguments are those of :func:`add_tensors`.

    Raises:
        PayloadError: A part of it cannot be sent, or is too large; the message names its path.
        LayoutError: There are more tensors, or longer paths to them, than a layout may have.
        ValueError: An option makes no sense, or the receivers are one text.
    """
    return service.offer(payload_body(value), receivers, **options)


def download_tensors(
    receiver: Receiver,
    ref_id: str | bytes,
    *,
    framework: Framework = "pytorch",
    into: torch.nn.Module | Params | None = None,
    select: Collection[str] | None = None,
    on_tensors: OnTensors | None = None,
    **options: Unpack[DownloadOptions],
) -> tuple[Status, Params]:
    """Download tensors.

    Args:
        receiver: Receiving side of the channel.
        ref_id: The ref's ``id``, or its ``token``.
        framework: Kind of new memory: torch tensors or NumPy arrays.
        into: Module, or its state dict, whose own parameters receive the bytes; or arrays. None for
            new memory.
        select: Names of the tensors that are wanted; None for all. Nothing else is sent.
        on_tensors: Called with tensors as soon as all their bytes have arrived.
        options: See :class:`~flstream.streaming.api.DownloadOptions`.

    Returns:
        How the download ended, and the tensors by name, in the order in which they were offered or
        selected. After a failure of an optional download there are none, and the content of
        ``into`` is undefined.

    Raises:
        StreamingError: The download failed, and is not ``optional``.
        LayoutError: ``into`` does not fit the offer, or cannot be written to, or NumPy lacks the
            type of a tensor; the message names it.
    """
    if isinstance(select, str) or not all(isinstance(name, str) for name in select or ()):
        raise ValueError(f"select is {select!r}; give a list of names")

    def attempt() -> tuple[Params, Transfer]:
        with _opened(receiver, ref_id, options, eager=select is None) as remote:
            layout, wanted = remote.layout, None
            if select is not None:
                sink = selected_memory(layout, list(select), into, framework, remote.peer)
                wanted = ranges_of(sink)
            elif into is not None:
                sink = MemoryBody.over(into)
            else:
                sink = MemoryBody.allocate(layout, framework)
            _deliver(remote, sink, options, on_tensors, wanted)
        if select is None:
            return in_order(sink.tensors, layout, remote.order), remote.cost
        return {name: sink.tensors[name] for name in select}, remote.cost

    status, tensors = _status_of(attempt, options)
    return status, tensors or {}


def download_specs(
    receiver: Receiver,
    specs: Iterable[TensorSpec],
    *,
    framework: Framework = "pytorch",
    into: torch.nn.Module | Params | None = None,
    on_tensors: OnTensors | None = None,
    **options: Unpack[DownloadOptions],
) -> tuple[Status, Params]:
    """Download tensors by their descriptions, all of a list together.

    They are looked up among all that the sender has on offer to this receiver with a ``round`` and
    ``tags``. What they are looked up in stays on offer; its owner withdraws it. After the list of
    specs with which OpenFL fetches tensors in batches (its pull request 1575). New memory is of the
    ``framework``.

    Raises:
        ValueError: A spec is none, or two have the same name.
        RefusedError: One of them is not on offer; the message names it.
        StreamingError: The download failed otherwise, and is not ``optional``.
    """
    wanted = [_sound(spec) for spec in specs]
    if len({spec.tensor_name for spec in wanted}) < len(wanted):
        raise ValueError("two specs have the same name; ask for one of them at a time")
    settings, signal = _settings_of(options), options.get("abort_signal")

    def attempt() -> tuple[Params, Transfer]:
        tensors, cost = dict[str, Any](), Transfer()
        for token, names in find_refs(receiver, wanted, settings, signal).items():
            with _opened(receiver, token, options, eager=False, is_kept=True) as remote:
                sink = selected_memory(remote.layout, names, into, framework, remote.peer)
                _deliver(remote, sink, options, on_tensors, ranges_of(sink))
                remote.confirm()
            tensors |= {name: sink.tensors[name] for name in names}
            cost += remote.cost
        return {spec.tensor_name: tensors[spec.tensor_name] for spec in wanted}, cost

    status, tensors = _status_of(attempt, options)
    return status, tensors or {}


def download_file(
    receiver: Receiver,
    ref_id: str | bytes,
    path: str | Path,
    *,
    resume: bool = False,
    **options: Unpack[DownloadOptions],
) -> tuple[Status, Path | None]:
    """Download into a ``.safetensors`` file, with memory for a single chunk.

    With ``resume``, the bytes of a failed download are kept in ``<path>.tmp``, and it is continued
    the next time: each 64 KiB of an earlier attempt are compared with the offer by their digest,
    and only what is missing or differs is fetched. Else see :func:`download_tensors`.

    Returns:
        How the download ended, and the path of the whole file; None if an optional one failed.

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

    def attempt() -> tuple[Any, Transfer]:
        with _opened(receiver, ref_id, options) as remote:
            targets = {} if into is None else pack(into)[1]
            sink = payload_memory(remote.layout, targets, framework, remote.peer)
            _deliver(remote, sink, options, on_tensors)
            remote.confirm()
            spec = sink.layout.by_name["message"]
            [message] = sink.views(spec.start, spec.stop)
            value = unpack(message, sink.tensors)
        return value, remote.cost

    return _status_of(attempt, options)


def listen(service: DownloadService, address: str) -> TcpListener:
    """Serve receivers that connect over TCP with a key: see :meth:`TcpListener.admit`.

    Args:
        service: The service.
        address: Address of this machine, ``HOST:PORT``; port 0 is a free one.

    Raises:
        UsageError: The address cannot be listened on, or stands for all addresses.
    """
    return TcpListener(address, lambda channel, who: service.attach(channel, who.name))


def connect(
    address: str,
    key: str | StartToken,
    *,
    peer: str = "sender",
    abort: AbortSignal | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Receiver:
    """Connect to a sender over TCP, and reconnect when the connection breaks.

    Args:
        address: Address on which it listens, ``HOST:PORT``.
        key: Key that ``admit`` of its listener returned, or its text.
        peer: Name of the sender, for messages.
        abort: Signal that cancels every download.
        limits: Limits on what the sender may cause.

    Raises:
        UsageError: The address or the key is none.
        ChannelClosedError: The sender cannot be reached, or has another key.
    """
    token = key if isinstance(key, StartToken) else StartToken.parse(key)
    again = partial(dial, address, token, peer)
    return Receiver(again(), peer, abort, limits, again)


def _sound(spec: TensorSpec) -> TensorSpec:
    """Refuse a spec that cannot be sent."""
    try:
        if type(spec) is not TensorSpec or not -(2**63) <= spec.round_number < 2**63:
            raise TypeError("it is none, or of no round")
        return msgspec.convert(tuple(spec), TensorSpec)
    except (msgspec.ValidationError, TypeError) as error:
        raise ValueError(
            f"{spec!r} is no spec; give TensorSpec(name, round, tags=(text,))"
        ) from error


def _file(
    receiver: Receiver,
    ref_id: str | bytes,
    path: Path,
    resume: bool,
    bare: bool,
    options: DownloadOptions,
) -> tuple[Status, Path | None]:
    def attempt() -> tuple[Path, Transfer]:
        is_begun = resume and os.path.exists(f"{path}.tmp")
        with _opened(receiver, ref_id, options, digests=is_begun) as remote:
            if bare and remote.layout.names != ["blob"]:
                raise CheckpointError(
                    f"what {remote.peer} offers are tensors, no blob; fetch it by download_file"
                )
            with FileSink(path, remote.layout, resume=resume, bare=bare) as sink:
                if sink.resumed:
                    remote.reuse(sink)
                _deliver(remote, sink, options)
                remote.confirm()
                sink.finish()
        return path, remote.cost

    return _status_of(attempt, options)


def _opened(
    receiver: Receiver,
    ref_id: str | bytes,
    options: DownloadOptions,
    *,
    eager: bool = True,
    digests: bool = False,
    is_kept: bool = False,
) -> RemoteSource:
    how, signal, token = _settings_of(options), options.get("abort_signal"), _token_of(ref_id)
    return RemoteSource(receiver, token, how, signal, eager=eager, digests=digests, is_kept=is_kept)


def _deliver(
    remote: RemoteSource,
    sink: Sink,
    options: DownloadOptions,
    on_tensors: OnTensors | None = None,
    wanted: list[Range] | None = None,
) -> None:
    """Receive into a sink, and report progress to the caller."""
    on_progress = options.get("on_progress")
    missing = {spec.name: spec.nbytes for spec in sink.layout.tensors}
    nbytes, done = sum(missing.values()), 0
    empty = [name for name in missing if not missing[name]]
    tensors: Params = getattr(sink, "tensors", {})

    def on_range(start: int, stop: int) -> None:
        nonlocal done, empty
        done += stop - start
        if on_progress is not None:
            on_progress(done, nbytes)
        if on_tensors is None:
            return
        complete, empty = empty, []
        for spec in sink.layout.overlapping(start, stop):
            missing[spec.name] -= min(spec.stop, stop) - max(spec.start, start)
            if not missing[spec.name]:
                complete.append(spec.name)
        if whole := {name: tensors[name] for name in complete if name in tensors}:
            on_tensors(whole)

    remote.deliver(sink, on_range if on_progress or on_tensors else None, wanted)


def _status_of(
    attempt: Callable[[], tuple[ResultT, Transfer]], options: DownloadOptions
) -> tuple[Status, ResultT | None]:
    """Make an attempt, and return its end and its result."""
    try:
        result, cost = attempt()
    except StreamingError as error:
        if not options.get("optional"):
            raise
        return Status(_CODES.get(type(error), "failed"), str(error)), None
    return Status("ok", cost=cost), result


def _token_of(ref_id: str | bytes) -> bytes:
    token: object = ref_id
    if isinstance(ref_id, str):
        with suppress(ValueError):
            token = bytes.fromhex(ref_id)
    if not isinstance(token, bytes) or len(token) != TOKEN_BYTES:
        size = f"{len(token)} bytes" if isinstance(token, bytes) else f"a {type(token).__name__}"
        raise RefusedError(
            f"a ref's token has {TOKEN_BYTES} bytes, or {2 * TOKEN_BYTES} hexadecimal digits, and "
            f"this is {size}; hand on ref.id as it is"
        )
    return token


def _settings_of(options: DownloadOptions) -> StreamSettings:
    """Return the settings of a download with its options."""
    expect_options(options, DownloadOptions)
    settings = options.get("settings") or StreamSettings()
    if not isinstance(settings, StreamSettings):
        raise ValueError(f"settings is {settings!r}; give StreamSettings, or None")
    signal = options.get("abort_signal")
    if signal is not None and not (hasattr(signal, "fileno") and hasattr(signal, "is_set")):
        raise ValueError(f"abort_signal is {signal!r}; give a flstream.streaming.Signal()")
    if options.get("on_progress") is not None and not callable(options.get("on_progress")):
        raise ValueError(f"on_progress is {options.get('on_progress')!r}; give a function")
    if "max_chunk_size" in options:
        settings = replace(settings, chunk_size=options["max_chunk_size"])
    if "per_request_timeout" in options:
        settings = replace(settings, request_timeout=options["per_request_timeout"])
    return settings
