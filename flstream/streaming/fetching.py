"""Downloads for the low-level API: statuses, progress, and tensors that are whole."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal, NamedTuple, TypedDict

from flstream.errors import (
    AbortedError,
    ChannelClosedError,
    DeadlineError,
    RefusedError,
    StreamingError,
)
from flstream.model.layout import Layout
from flstream.streaming.download import SinkT, deliver
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.remote import RemoteSource
from flstream.streaming.settings import expect_options
from flstream.streaming.wire import NOBODY, TOKEN_BYTES, Part
from flstream.telemetry.events import Transfer
from flstream.transport.channel import AbortSignal

_DEFAULTS = StreamSettings()

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

OnChunk = Callable[[int, int], None]
"""Function called with the range of a chunk that is in the sink."""


class DownloadOptions(TypedDict, total=False):
    """Options of a download, with the names of NVFlare's guide where it has them.

    Attributes:
        settings: Sizes, window and timeouts together; by default, those of ``StreamSettings()``.
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
    what: str | bytes | Part,
    sink_for: Callable[[Layout], SinkT],
    options: DownloadOptions,
    on_tensors: OnTensors | None = None,
    finish: Callable[[SinkT], object] | None = None,
    select: list[str] | None = None,
) -> tuple[Status, SinkT | None, list[str]]:
    """Download into a sink.

    Args:
        receiver: Receiving side of the channel.
        what: Token of the ref, or its text; or a part.
        sink_for: Makes the sink, given the sender's layout.
        options: Options of the download.
        on_tensors: Called with tensors as soon as all their bytes have arrived.
        finish: Called with the sink once it is filled, before the sender knows.
        select: Names of the tensors that are wanted of the ref; None for all.

    Returns:
        How it ended; the sink, filled, or None if it failed; and the names of the tensors in the
        sender's order.

    Raises:
        StreamingError: It failed, and is not optional.
        FlstreamError: The sink could not be made or written.
    """
    watchers: list[OnChunk] = []

    def watched(layout: Layout) -> SinkT:
        sink = sink_for(layout)
        if (on_progress := options.get("on_progress")) is not None:
            watchers.append(_Progress(layout, on_progress))
        if on_tensors is not None:
            watchers.append(_Arrivals(sink, on_tensors))
        return sink

    def on_chunk(start: int, stop: int) -> None:
        for watcher in watchers:
            watcher(start, stop)

    try:
        settings = _settings(options)
        part = what if isinstance(what, Part) else None
        token = NOBODY if isinstance(what, Part) else token_of(what)
        if select is not None:
            part = Part(token, select)
        signal = options.get("abort_signal")
        remote = RemoteSource(receiver, token, settings, signal, part)
        sink = deliver(remote, watched, on_chunk, finish)
    except StreamingError as error:
        if not options.get("optional"):
            raise
        return Status(_code_of(error), str(error)), None, []
    except Exception as error:
        watchers.clear()
        _let_go(error)
        raise
    return Status("ok", cost=remote.cost), sink, remote.names


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


def _settings(options: DownloadOptions) -> StreamSettings:
    expect_options(options, DownloadOptions)
    settings = options.get("settings") or _DEFAULTS
    if not isinstance(settings, StreamSettings):
        raise ValueError(f"settings is {settings!r}; give StreamSettings, or None")
    signal = options.get("abort_signal")
    if signal is not None and not (hasattr(signal, "fileno") and hasattr(signal, "is_set")):
        raise ValueError(f"abort_signal is {signal!r}; give a flstream.streaming.Signal()")
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


class _Progress:
    """Adds up the bytes received."""

    def __init__(self, layout: Layout, on_progress: OnProgress) -> None:
        self._on_progress = on_progress
        self._done, self._all = 0, layout.nbytes

    def __call__(self, start: int, stop: int) -> None:
        self._done += stop - start
        self._on_progress(self._done, self._all)


class _Arrivals:
    """Reports tensors as soon as all their bytes have arrived."""

    def __init__(self, sink: Any, on_tensors: OnTensors) -> None:
        self._on_tensors = on_tensors
        self._sink = sink
        self._left = {spec.name: spec.nbytes for spec in sink.layout.tensors}
        self._empty = [name for name, left in self._left.items() if not left]

    def __call__(self, start: int, stop: int) -> None:
        done, self._empty = self._empty, []
        for spec in self._sink.layout.overlapping(start, stop):
            self._left[spec.name] -= min(spec.stop, stop) - max(spec.start, start)
            if not self._left[spec.name]:
                done.append(spec.name)
        tensors = self._sink.tensors
        whole = {name: tensors[name] for name in done if name in tensors}
        if whole:
            self._on_tensors(whole)
