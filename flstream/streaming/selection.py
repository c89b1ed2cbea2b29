"""Some tensors of a ref: their ranges in its body, and their places in a body of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import Generic, NamedTuple

from flstream.errors import ProtocolError, RefusedError
from flstream.model.composed import Segments
from flstream.model.copy import expect_fit
from flstream.model.header import TensorInfo
from flstream.model.layout import Layout
from flstream.model.source import OnRange
from flstream.streaming import wire
from flstream.streaming.download import Range, RemoteSource, SinkT, download
from flstream.streaming.receiver import Exchange, Receiver
from flstream.streaming.settings import StreamSettings
from flstream.text import quotable

# Names that an unknown one is compared with, and characters of it: more take long.
_MOST_COMPARED, _MOST_CHARACTERS = 2000, 200


class TensorSpec(NamedTuple):
    """A tensor by what it is, wherever it is on offer.

    After ``TensorSpec`` and ``TensorKey`` of OpenFL (its pull request 1575).

    Attributes:
        tensor_name: Name of the tensor.
        round_number: Number of the round that it is of.
        tags: What it is, such as ``trained``, in any order.
        report: Whether it is a report, such as a metric.
        require_lossless: Whether it has to come bit by bit, as here every tensor does.
    """

    tensor_name: str
    round_number: int = 0
    tags: tuple[str, ...] = ()
    report: bool = False
    require_lossless: bool = False


class Selection:
    """Some tensors of a layout.

    Args:
        whole: The layout.
        names: Names of tensors, each once. One that is tied to another's selects that tensor, under
            the name that is given.
        peer: Name of the sender, for messages.

    Attributes:
        layout: Layout of the tensors alone.
        ranges: Their ranges in the whole body, from front to back.

    Raises:
        RefusedError: There is no such tensor, a name is there twice, or there is none.
    """

    def __init__(self, whole: Layout, names: Sequence[str], peer: str) -> None:
        if not names:
            raise RefusedError("no tensor is selected; name one at least")
        chosen = {}
        for name in names:
            info = whole.find(name)
            if info is None or name in chosen:
                flaw = "is selected twice; name it once"
                if info is None:
                    flaw = f"is not among what {peer} offers{_hint(name, whole)}"
                raise RefusedError(f"tensor {quotable(name)!r} {flaw}")
            chosen[name] = info
        first: dict[Range, str] = {}
        ties: dict[str, str] = {}
        for name in sorted(chosen):
            info = chosen[name]
            first_name = first.setdefault(info[3:], name) if info.nbytes else name
            if first_name != name:
                ties[name] = first_name
        self.layout = Layout.of(
            ((n, info.dtype, info.shape) for n, info in chosen.items() if n not in ties), ties
        )
        own = [(chosen[spec.name], spec) for spec in self.layout.tensors if spec.nbytes]
        own.sort(key=lambda pair: pair[0].start)
        self._segments: Segments[TensorInfo] = Segments()
        for info, spec in own:
            self._segments.add(info, spec, spec.start)
        self.ranges = wire.merged((info.start, info.stop) for info, _ in own)

    def pieces(self, start: int, stop: int) -> Iterator[Range]:
        """Yield the ranges of the tensors' own body for a range of the whole one."""
        for segment in self._segments.cut(start, stop):
            yield segment.offset, segment.offset + segment.stop - segment.start


class _SelectedSink(Generic[SinkT]):
    """A sink for the whole body, which has room for the selected tensors alone.

    Args:
        sink: Sink of these, in memory.
        selection: Which they are.
        whole: Layout of the whole body.
    """

    def __init__(self, sink: SinkT, selection: Selection, whole: Layout) -> None:
        self.layout = whole
        self.sink = sink
        self._selection = selection

    def views(self, start: int, stop: int) -> list[memoryview]:
        """Return the memory of the selected tensors in a range."""
        pieces = self._selection.pieces(start, stop)
        return [view for piece in pieces for view in self.sink.views(*piece)]

    def commit(self, start: int, stop: int) -> None:
        """Take over what was written."""
        for piece in self._selection.pieces(start, stop):
            self.sink.commit(*piece)


def download_selected(
    remote: RemoteSource,
    names: Sequence[str],
    sink_for: Callable[[Layout], SinkT],
    on_range: OnRange | None = None,
) -> SinkT:
    """Copy some tensors of a remote source into a sink: see :func:`~.download.download`.

    Args:
        remote: The source, none of which has come yet.
        names: Names of the tensors.
        sink_for: Makes the sink in memory, given the layout of these tensors.
        on_range: Called with each range of their own body that is in the sink.

    Raises:
        RefusedError: There is no such tensor, a name is there twice, or there is none.
        FlstreamError: As for a download.
    """
    try:
        selection = Selection(remote.layout, names, remote.peer)
    except RefusedError as error:
        remote.fail(error)
        raise

    def on_piece(start: int, stop: int) -> None:
        for piece in selection.pieces(start, stop):
            if on_range is not None:
                on_range(*piece)

    def whole_sink(whole: Layout) -> _SelectedSink[SinkT]:
        sink = sink_for(selection.layout)
        expect_fit(selection.layout, sink, remote.peer)
        return _SelectedSink(sink, selection, whole)

    return download(remote, whole_sink, on_piece, wanted=selection.ranges).sink


def find_refs(
    receiver: Receiver, specs: Iterable[TensorSpec], settings: StreamSettings
) -> dict[TensorSpec, list[bytes]]:
    """Return the tokens of the refs that may have each of some tensors, oldest first.

    Raises:
        StreamingError: The sender is gone, or refuses.
    """
    labels = {spec: (spec.round_number, tuple(sorted(spec.tags)), spec.report) for spec in specs}
    wanted_labels = list(dict.fromkeys(labels.values()))
    exchange = Exchange(receiver, bytes(wire.TOKEN_BYTES), settings)
    try:
        wanted = [(number, list(tags), report) for number, tags, report in wanted_labels]
        answer = exchange.ask(wire.Find(exchange.next_number(), wanted), wire.Found)
    finally:
        exchange.end()
    if len(answer.tokens) != len(wanted_labels):
        raise ProtocolError(f"{receiver.peer} answered for {len(answer.tokens)} labels")
    tokens = dict(zip(wanted_labels, answer.tokens, strict=True))
    return {spec: tokens[label] for spec, label in labels.items()}


def _hint(name: str, layout: Layout) -> str:
    known = islice((*layout.by_name, *layout.aliases), _MOST_COMPARED)
    near = get_close_matches(name[:_MOST_CHARACTERS], known, n=1)
    return f"; did you mean {near[0]!r}?" if near else "; name one of its layout"
