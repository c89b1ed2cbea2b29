"""The low-level way to move tensors, arrays or a file from one process to another.

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
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from flstream.errors import (
    AbortedError,
    ChannelClosedError,
    DeadlineError,
    RefusedError,
    StreamingError,
)
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.layout import Layout
from flstream.model.memory import Framework, MemoryBody, Params
from flstream.streaming.download import SinkT, download
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.refs import Ref
from flstream.streaming.service import DownloadService
from flstream.telemetry.events import Transfer

if TYPE_CHECKING:
    import torch

Code = Literal["ok", "refused", "timed out", "aborted", "sender gone", "failed"]


class Status(NamedTuple):
    """How a download ended.

    Attributes:
        code: ``ok``, or why there are no tensors.
        reason: a sentence; empty if all is well.
        cost: bytes, requests, chunks, repairs and seconds; nothing unless it ended ``ok``.
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


def add_tensors(
    service: DownloadService,
    tensors: Mapping[str, torch.Tensor],
    receivers: Iterable[str],
    on_settled: Callable[[Ref], None] | None = None,
) -> Ref:
    """Offer tensors. Their storage is read as it is asked for, so it must not change meanwhile.

    Args:
        service: what serves them.
        tensors: dense tensors on the CPU by name, such as a state dict.
        receivers: the names under which the receivers' channels are attached; nobody else is
            served.
        on_settled: called once, with the ref, when every receiver is done or the offer has ended
            otherwise.

    Returns:
        The ref, whose ``token`` the receivers need and whose ``wait()`` tells how it ended.

    Raises:
        LayoutError: a tensor cannot be streamed; the message names it and says what to do.
    """
    return service.offer(MemoryBody.of(tensors), receivers, on_settled)


def add_arrays(
    service: DownloadService,
    arrays: Mapping[str, np.ndarray[Any, Any]],
    receivers: Iterable[str],
    on_settled: Callable[[Ref], None] | None = None,
) -> Ref:
    """Offer NumPy arrays: as :func:`add_tensors`."""
    return service.offer(MemoryBody.of(arrays), receivers, on_settled)


def add_file(
    service: DownloadService,
    path: Path,
    receivers: Iterable[str],
    on_settled: Callable[[Ref], None] | None = None,
) -> Ref:
    """Offer the tensors of a ``.safetensors`` file, which is read range by range.

    Raises:
        CheckpointError: the file cannot be read or is not a sound safetensors file.
    """
    return service.offer(FileSource(path), receivers, on_settled)


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

        status, sink = _fetch(receiver, token, settings, sink_for, on_progress)
        if sink is not None:
            sink.finish()
    return status, path if sink is not None else None


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

    status, body = _fetch(receiver, token, settings, sink_for, on_progress, on_tensors)
    return status, {} if body is None else body.tensors


def _fetch(
    receiver: Receiver,
    token: bytes,
    settings: StreamSettings | None,
    sink_for: Callable[[Layout], SinkT],
    on_progress: OnProgress | None,
    on_tensors: OnTensors | None = None,
) -> tuple[Status, SinkT | None]:
    """Download into a sink, and put how it ended into a status."""
    watchers: list[Callable[[int, int], None]] = []

    def watched(layout: Layout) -> SinkT:
        sink = sink_for(layout)
        if on_progress is not None:
            watchers.append(_Progress(layout, on_progress))
        if on_tensors is not None and isinstance(sink, MemoryBody):
            watchers.append(_Arrivals(sink, on_tensors))
        return sink

    def on_chunk(start: int, stop: int) -> None:
        for watcher in watchers:
            watcher(start, stop)

    try:
        sink, cost = download(receiver, token, settings or StreamSettings(), watched, on_chunk)
    except StreamingError as error:
        return Status(_code_of(error), str(error)), None
    return Status("ok", cost=cost), sink


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

    def __init__(self, body: MemoryBody, tell: OnTensors) -> None:
        self._tell = tell
        self._body = body
        self._left = {spec.name: spec.nbytes for spec in body.layout.tensors}
        self._empty = [name for name, left in self._left.items() if not left]

    def __call__(self, start: int, stop: int) -> None:
        done, self._empty = self._empty, []
        for spec in self._body.layout.overlapping(start, stop):
            self._left[spec.name] -= min(spec.stop, stop) - max(spec.start, start)
            if not self._left[spec.name]:
                done.append(spec.name)
        if done:
            self._tell({name: self._body.tensors[name] for name in done})
