"""Some tensors of what is on offer: by their names in a ref, and by what they are in all refs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import NamedTuple

from flstream.errors import ProtocolError, RefusedError
from flstream.model.copy import expect_fit
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.streaming import wire
from flstream.streaming.receiver import Exchange, Receiver
from flstream.streaming.settings import StreamSettings
from flstream.text import quotable
from flstream.transport.channel import AbortSignal

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
        first: dict[wire.Range, str] = {}
        ties: dict[str, str] = {}
        for name in sorted(chosen):
            info = chosen[name]
            first_name = first.setdefault(info[3:], name) if info.nbytes else name
            if first_name != name:
                ties[name] = first_name
        own = [info for name, info in chosen.items() if name not in ties]
        self.layout = Layout.of(((info.name, info.dtype, info.shape) for info in own), ties)
        self._places = Layout(sorted(own, key=lambda info: info[3:]), ties)
        self._peer = peer

    def placed(self, sink: MemoryBody) -> MemoryBody:
        """Return a sink of these tensors as one in which they are where they are in the whole.

        Raises:
            LayoutError: It is of other tensors.
        """
        expect_fit(self.layout, sink, self._peer)
        return MemoryBody(self._places, sink.tensors)


def ranges_of(sink: MemoryBody) -> list[wire.Range]:
    """Return the ranges of a body that the tensors of a sink take, from front to back."""
    return wire.merged((info.start, info.stop) for info in sink.layout.tensors if info.nbytes)


def find_refs(
    receiver: Receiver,
    specs: Iterable[TensorSpec],
    settings: StreamSettings,
    abort: AbortSignal | None = None,
) -> dict[TensorSpec, list[bytes]]:
    """Return the tokens of the refs that may have each of some tensors, oldest first.

    Raises:
        StreamingError: The sender is gone, or refuses.
    """
    labels = {spec: (spec.round_number, tuple(sorted(spec.tags)), spec.report) for spec in specs}
    wanted, tokens = list(dict.fromkeys(labels.values())), list[list[bytes]]()
    exchange = Exchange(receiver, bytes(wire.TOKEN_BYTES), settings, abort)
    try:
        while len(tokens) < len(wanted):
            batch = wanted[len(tokens) :][: wire.MAX_LABELS]
            answer = exchange.ask(wire.Find(exchange.next_number(), batch), wire.Found)
            if len(answer.tokens) != len(batch):
                raise ProtocolError(f"{receiver.peer} answered for {len(answer.tokens)} labels")
            tokens += answer.tokens
    finally:
        exchange.end()
    by_label = dict(zip(wanted, tokens, strict=True))
    return {spec: by_label[label] for spec, label in labels.items()}


def _hint(name: str, layout: Layout) -> str:
    known = islice((*layout.by_name, *layout.aliases), _MOST_COMPARED)
    near = get_close_matches(name[:_MOST_CHARACTERS], known, n=1)
    return f"; did you mean {near[0]!r}?" if near else "; name one of its layout"
