"""A download for the low-level API: its status in place of most errors, and its progress told."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
        code: ``ok``, or why there are no tensors.
        reason: a sentence; empty if all is well.
        cost: bytes, requests, chunks, retries and seconds; nothing unless it ended ``ok``.
    """

    code: Code
    reason: str = ""
    cost: Transfer = Transfer()

    @property
    def ok(self) -> bool:
        """Whether everything arrived and is sound."""
        return self.code == "ok"


OnProgress = Callable[[int, int], None]
"""Called with bytes that are there and bytes in all. The first number only goes up."""

OnTensors = Callable[[Mapping[str, Any]], None]
"""Called with the tensors that a chunk completed, each exactly once, empty ones with the first."""

OnChunk = Callable[[int, int], None]
"""Called with the range of a chunk that is in the sink."""


class TensorSink(Sink, Protocol):
    """A sink that has tensors to tell of."""

    @property
    def tensors(self) -> Params:
        """The tensors by name. What the layout has beside them is not told of."""
        ...


def fetch(
    receiver: Receiver,
    token: bytes,
    settings: StreamSettings | None,
    sink_for: Callable[[Layout], SinkT],
    on_progress: OnProgress | None = None,
    watch: Callable[[SinkT], OnChunk] | None = None,
) -> tuple[Status, SinkT | None]:
    """Download into a sink, and put how it ended into a status.

    Args:
        receiver: where to fetch.
        token: of the ref.
        settings: None for the defaults.
        sink_for: makes the sink, given the layout that the sender told.
        on_progress: told how far it is.
        watch: makes what is called for each chunk, given the sink.

    Returns:
        How it ended, and the sink, filled; None if it failed.

    Raises:
        FlstreamError: the sink could not be made, or did not take the bytes.
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
        sink, cost = download(receiver, token, settings or StreamSettings(), watched, on_chunk)
    except StreamingError as error:
        return Status(_code_of(error), str(error)), None
    return Status("ok", cost=cost), sink


def arrivals(on_tensors: OnTensors | None) -> Callable[[TensorSink], OnChunk] | None:
    """How :func:`fetch` is to watch a sink, so that each tensor is told of when it is whole."""
    if on_tensors is None:
        return None
    return lambda sink: _Arrivals(sink, on_tensors)


def _code_of(error: StreamingError) -> Code:
    codes: dict[type[StreamingError], Code] = {
        RefusedError: "refused",
        DeadlineError: "timed out",
        AbortedError: "aborted",
        ChannelClosedError: "sender gone",
    }
    return codes.get(type(error), "failed")


class _Progress:
    """Adds up what is there."""

    def __init__(self, layout: Layout, tell: OnProgress) -> None:
        self._tell = tell
        self._done, self._all = 0, layout.nbytes

    def __call__(self, start: int, stop: int) -> None:
        self._done += stop - start
        self._tell(self._done, self._all)


class _Arrivals:
    """Tells of tensors as soon as all their bytes are there."""

    def __init__(self, sink: TensorSink, tell: OnTensors) -> None:
        self._tell = tell
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
            self._tell(whole)
