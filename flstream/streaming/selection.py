"""Selection of offered tensors, by name in a ref or by description in all refs."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, NamedTuple

from flstream.errors import LayoutError, ProtocolError, RefusedError
from flstream.model.copy import expect_fit
from flstream.model.layout import Layout, TensorInfo
from flstream.model.memory import Framework, MemoryBody, Params
from flstream.model.tensor_view import find_ties
from flstream.streaming import wire
from flstream.streaming.receiver import Receiver
from flstream.streaming.settings import StreamSettings
from flstream.text import quotable
from flstream.transport.channel import AbortSignal

if TYPE_CHECKING:
    import torch

# Names that an unknown one is compared with, and characters of it: more take long.
_MOST_COMPARED, _MOST_CHARACTERS = 2000, 200


class TensorSpec(NamedTuple):
    """Description of a tensor, wherever it is on offer.

    After ``TensorSpec`` and ``TensorKey`` of OpenFL (its pull request 1575).

    Attributes:
        tensor_name: Name of the tensor.
        round_number: Number of the round that it is of.
        report: Whether it is a report, such as a metric.
        tags: Words for it, such as ``trained``, in any order.
        require_lossless: Whether it has to come bit by bit, as here every tensor does.
    """

    tensor_name: str
    round_number: int = 0
    report: bool = False
    tags: tuple[str, ...] = ()
    require_lossless: bool = False


def selected_memory(
    whole: Layout,
    names: Sequence[str],
    into: torch.nn.Module | Params | None,
    framework: Framework,
    peer: str,
) -> MemoryBody:
    """Make memory for some tensors of a layout, at their places in the layout.

    A name that is tied to another's selects that tensor, under the name that is given.
    """
    if not names:
        raise RefusedError("no tensor is selected; name one at least")
    chosen: dict[str, TensorInfo] = {}
    for name in names:
        info = whole.find(name)
        if info is None or name in chosen:
            flaw = "is selected twice; name it once"
            if info is None:
                flaw = f"is not among what {peer} offers{_hint(name, whole)}"
            raise RefusedError(f"tensor {quotable(name)!r} {flaw}")
        chosen[name] = info
    ties = find_ties({name: info[3:] for name, info in chosen.items() if info.nbytes})
    own = sorted((chosen[name] for name in chosen if name not in ties), key=lambda info: info[3:])
    layout = Layout.of(((info.name, info.dtype, info.shape) for info in own), ties)
    if into is None:
        body = MemoryBody.allocate(layout, framework)
    else:
        whole_body = MemoryBody.over(into)
        if lacking := [name for name in names if name not in whole_body.tensors]:
            raise LayoutError(f"tensor {lacking[0]!r} is selected, and into has none of that name")
        body = whole_body.part(layout)
        expect_fit(layout, body, peer)
    return MemoryBody(Layout(own, ties), body.tensors)


def ranges_of(sink: MemoryBody) -> list[wire.Range]:
    """Return the ranges of a body that a sink's tensors take, from front to back."""
    return wire.merged((info.start, info.stop) for info in sink.layout.tensors if info.nbytes)


def find_refs(
    receiver: Receiver,
    specs: Sequence[TensorSpec],
    settings: StreamSettings,
    abort: AbortSignal | None = None,
) -> dict[bytes, list[str]]:
    """Return the names of some tensors by the token of the ref that has them."""
    names: dict[bytes, list[str]] = {}
    receiver.begin(bytes(wire.TOKEN_BYTES), settings, abort)
    try:
        for first in range(0, len(specs), wire.MAX_SPECS):
            batch = specs[first : first + wire.MAX_SPECS]
            wanted = [(it.tensor_name, it.round_number, it.tags, it.report) for it in batch]
            answer = receiver.ask(wire.Find(receiver.next_number(), wanted), wire.Found)
            if len(answer.tokens) != len(batch):
                raise ProtocolError(f"{receiver.peer} answered for {len(answer.tokens)} tensors")
            for spec, token in zip(batch, answer.tokens, strict=True):
                if not token:
                    tags = f" and the tags {', '.join(sorted(spec.tags))}" if spec.tags else ""
                    raise RefusedError(
                        f"no tensor {quotable(spec.tensor_name)!r} of round {spec.round_number}"
                        f"{tags} is on offer by {receiver.peer}; check its round and tags"
                    )
                names.setdefault(token, []).append(spec.tensor_name)
    finally:
        receiver.end()
    return names


def _hint(name: str, layout: Layout) -> str:
    known = islice((*layout.by_name, *layout.aliases), _MOST_COMPARED)
    near = get_close_matches(name[:_MOST_CHARACTERS], known, n=1)
    return f"; did you mean {near[0]!r}?" if near else "; name one of its layout"
