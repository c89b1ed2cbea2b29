"""Downloads for the low-level API, which report a status instead of most errors, and progress."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, NamedTuple, Protocol

from flstream.errors import (
    AbortedError,
    ChannelClosedError,
    DeadlineError,
    RefusedError,
    StreamingError,
)
from flstream.model.body import Sink
from flstream.model.layout import Layout
from flstream.model.memory import Params
from flstream.streaming.download import SinkT, download
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.telemetry.events import Transfer

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


class TensorSink(Sink, Protocol):
    """A sink made of tensors."""

    @property
    def tensors(self) -> Params:
        """Tensors by name, without those that are not reported, such as a payload's message."""
        ...


def fetch(
    receiver: Receiver,
    token: bytes,
    settings: StreamSettings | None,
    sink_for: Callable[[Layout], SinkT],
    on_progress: OnProgress | None = None,
    watch: Callable[[SinkT], OnChunk] | None = None,
    finish: Callable[[SinkT], object] | None = None,
) -> tuple[Status, SinkT | None]:
    """Download into a sink, and report most failures as a status.

    Args:
        receiver: Receiving side of the channel.
        token: Token of the ref.
        settings: Sizes, window and timeouts; None for the defaults.
        sink_for: Makes the sink, given the sender's layout.
        on_progress: Called with the number of bytes received so far and in all.
        watch: Makes the function that is called for each chunk, given the sink.
        finish: Called with the sink once it is filled, before the sender knows.

    Returns:
        How it ended, and the sink, filled; None if it failed.

    Raises:
        FlstreamError: The sink could not be made or written.
    """
    watchers: list[OnChunk] = []

    def watched(layout: Layout) -> SinkT:
        sink = sink_for(layout)
        if on_progress is not None:
            watchers.append(_Progress(layout, on_progress))
        if watch is not None:
            watchers.append(watch(sink))
        return sink

    def on_chunk(start: int, stop: int) -> None:
        for watcher in watchers:
            watcher(start, stop)

    try:
        sink, cost = download(
            receiver, token, settings or StreamSettings(), watched, on_chunk, finish
        )
    except StreamingError as error:
        return Status(_code_of(error), str(error)), None
    except Exception as error:
        watchers.clear()
        _let_go(error)
        raise
    return Status("ok", cost=cost), sink


def arrivals(on_tensors: OnTensors | None) -> Callable[[TensorSink], OnChunk] | None:
    """Make the ``watch`` argument of :func:`fetch` that reports each tensor once it is whole."""
    if on_tensors is None:
        return None
    return lambda sink: _Arrivals(sink, on_tensors)


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

    def __init__(self, sink: TensorSink, on_tensors: OnTensors) -> None:
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
