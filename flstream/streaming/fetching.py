"""Downloads for the low-level API: statuses, progress, and tensors that are whole."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from typing import Any, Generic, Literal, NamedTuple, TypedDict, TypeVar

from flstream.errors import (
    AbortedError,
    ChannelClosedError,
    DeadlineError,
    RefusedError,
    StreamingError,
)
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody, Params
from flstream.model.source import Source
from flstream.streaming.download import RemoteSource, SinkT, download
from flstream.streaming.receiver import Receiver
from flstream.streaming.selection import TensorSpec, download_selected, find_refs
from flstream.streaming.settings import StreamSettings, expect_options
from flstream.streaming.wire import TOKEN_BYTES
from flstream.telemetry.events import Transfer
from flstream.text import quotable
from flstream.transport.channel import AbortSignal

_DEFAULTS = StreamSettings()
ResultT = TypeVar("ResultT")

Code = Literal["ok", "refused", "timed out", "aborted", "sender gone", "failed"]


class Status(NamedTuple):
    """How a download ended.

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


def fetch(
    receiver: Receiver,
    ref_id: str | bytes,
    sink_for: Callable[[Layout], SinkT],
    options: DownloadOptions,
    on_tensors: OnTensors | None = None,
    finish: Callable[[SinkT], object] | None = None,
    select: list[str] | None = None,
    held: Callable[[SinkT], Source | None] | None = None,
) -> tuple[Status, SinkT | None, list[str]]:
    """Download into a sink.

    Args:
        receiver: Receiving side of the channel.
        ref_id: Token of the ref, or its text.
        sink_for: Makes the sink, given the layout of what is wanted.
        options: Options of the download.
        on_tensors: Called with tensors as soon as all their bytes have arrived.
        finish: Called with the sink once it is filled, before the sender knows.
        select: Names of the tensors that are wanted of the ref; None for all.
        held: Returns a source that may have some of the bytes; None where there is none.

    Returns:
        How it ended; the sink, filled, or None if it failed; and the names of the tensors in the
        sender's order, or as they were selected.

    Raises:
        StreamingError: It failed, and is not optional.
        FlstreamError: The sink could not be made or written.
    """
    names: list[str] = []

    def attempt() -> tuple[SinkT, Transfer]:
        settings, signal = settings_of(options), options.get("abort_signal")
        remote = RemoteSource(
            receiver,
            token_of(ref_id),
            settings,
            signal,
            eager=select is None,
            digests=held is not None,
        )
        watch = _Watch(sink_for, options, on_tensors)
        if select is None:
            names.extend(remote.names)
            sink = download(remote, watch.sink_for, watch.on_range, finish, held)
        else:
            names.extend(select)
            sink = download_selected(remote, select, watch.sink_for, watch.on_range)
        return sink, remote.cost

    status, sink = _status_of(attempt, options)
    return status, sink, names if sink is not None else []


def fetch_specs(
    receiver: Receiver,
    specs: Sequence[TensorSpec],
    sink_for: Callable[[Layout], MemoryBody],
    options: DownloadOptions,
    on_tensors: OnTensors | None,
) -> tuple[Status, Params]:
    """Download tensors by what they are, into a sink for those of each ref: see :func:`fetch`."""

    def attempt() -> tuple[Params, Transfer]:
        settings, signal = settings_of(options), options.get("abort_signal")
        refs = find_refs(receiver, specs, settings)
        missing = {spec.tensor_name: spec for spec in specs}
        tensors, cost = dict[str, Any](), Transfer()
        for token in dict.fromkeys(chain.from_iterable(refs.values())):
            remote = RemoteSource(receiver, token, settings, signal, eager=False, is_kept=True)
            names = [
                name
                for name, spec in missing.items()
                if token in refs[spec] and remote.layout.find(name) is not None
            ]
            if names:
                watch = _Watch(sink_for, options, on_tensors)
                sink = download_selected(remote, names, watch.sink_for, watch.on_range)
                tensors |= {name: sink.tensors[name] for name in names}
                missing = {name: spec for name, spec in missing.items() if name not in names}
            remote.leave()
            cost += remote.cost
        for spec in missing.values():
            tags = f" and the tags {', '.join(sorted(spec.tags))}" if spec.tags else ""
            raise RefusedError(
                f"no tensor {quotable(spec.tensor_name)!r} of round {spec.round_number}{tags} is "
                f"on offer by {receiver.peer}; check its round and tags"
            )
        return {spec.tensor_name: tensors[spec.tensor_name] for spec in specs}, cost

    status, tensors = _status_of(attempt, options)
    return status, tensors or {}


def _status_of(
    attempt: Callable[[], tuple[ResultT, Transfer]], options: DownloadOptions
) -> tuple[Status, ResultT | None]:
    """Make an attempt, and return how it ended, and its result."""
    try:
        result, cost = attempt()
    except StreamingError as error:
        if not options.get("optional"):
            raise
        return Status(_code_of(error), str(error)), None
    except Exception as error:
        _let_go(error)
        raise
    return Status("ok", cost=cost), result


class _Watch(Generic[SinkT]):
    """Tells the caller of a download what has come.

    Args:
        sink_for: Makes the sink.
        options: Options of the download.
        on_tensors: Function that is told of whole tensors; None for none.
    """

    def __init__(
        self,
        sink_for: Callable[[Layout], SinkT],
        options: DownloadOptions,
        on_tensors: OnTensors | None,
    ) -> None:
        self._make = sink_for
        self._on_progress = options.get("on_progress")
        self._on_tensors = on_tensors
        self._done = 0

    def sink_for(self, layout: Layout) -> SinkT:
        """Make the sink."""
        self._sink: Any = self._make(layout)
        self._missing = {spec.name: spec.nbytes for spec in layout.tensors}
        self._empty = [name for name, nbytes in self._missing.items() if not nbytes]
        return self._sink

    def on_range(self, start: int, stop: int) -> None:
        """Tell of a range that is in the sink."""
        layout: Layout = self._sink.layout
        self._done += stop - start
        if self._on_progress is not None:
            self._on_progress(self._done, layout.nbytes)
        if self._on_tensors is None:
            return
        complete, self._empty = self._empty, []
        for spec in layout.overlapping(start, stop):
            self._missing[spec.name] -= min(spec.stop, stop) - max(spec.start, start)
            if not self._missing[spec.name]:
                complete.append(spec.name)
        tensors = self._sink.tensors
        whole = {name: tensors[name] for name in complete if name in tensors}
        if whole:
            self._on_tensors(whole)


def token_of(ref_id: str | bytes) -> bytes:
    """Return a ref's token, which may be given as its text.

    Raises:
        RefusedError: It is none.
    """
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


def settings_of(options: DownloadOptions) -> StreamSettings:
    """Return the settings of a download with its options.

    Raises:
        ValueError: An option makes no sense.
    """
    expect_options(options, DownloadOptions)
    settings = options.get("settings") or _DEFAULTS
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


def _let_go(error: BaseException) -> None:
    """Release what this package's functions held when an error passed through them.

    An error that is kept, such as for a report, would keep the tensors that had come.
    """
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__", "").startswith("flstream."):
            with suppress(RuntimeError):  # the function is still running
                frame.clear()


def _code_of(error: StreamingError) -> Code:
    codes: dict[type[StreamingError], Code] = {
        RefusedError: "refused",
        DeadlineError: "timed out",
        AbortedError: "aborted",
        ChannelClosedError: "sender gone",
    }
    return codes.get(type(error), "failed")
