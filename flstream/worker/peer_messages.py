"""Messages between the server and a worker about other workers, its peers.

They travel on a socket of their own. The server asks for one thing at a time, and the worker
answers each request with one message; only while it folds, :class:`Folding` comes before the
answer.
"""

from __future__ import annotations

import msgspec

from flstream.aggregation.optimizers import ServerOptimizer
from flstream.aggregation.rules import AggregationRule
from flstream.telemetry.events import Transfer
from flstream.worker.messages import Offered, SiteAnswer


class Offer(msgspec.Struct, tag=True, frozen=True):
    """Server: let one peer fetch a body.

    Attributes:
        peer: Name of the peer.
        path: Path of a model's file, which every worker can open; empty for an update.
        token: Token of an update that is on offer to the server, in whose place the peer fetches
            it; empty for a model.
    """

    peer: str
    path: str = ""
    token: bytes = b""


class FoldTask(msgspec.Struct, tag=True, frozen=True):
    """Server: fold updates into the next model, and make its file durable.

    Attributes:
        base: Path of the model that the updates were trained from.
        path: Path of the next model; the optimizer's state is written beside it.
        metadata: Strings of its header.
        updates: The updates, in the order in which they are folded: each with its weight in its
            site's answer, and where it lies, which is an offer of its worker, also where that is
            the one that folds, or the path of its file.
        rule: Rule that combines them.
        optimizer: The server optimizer that makes a step; None for none.
        state: Path of its state that belongs to ``base``; None before its first round.
        step: Bytes folded at a time.
        last: By site, path of the file in which its model is kept; empty where none is.
    """

    base: str
    path: str
    metadata: dict[str, str]
    updates: list[tuple[SiteAnswer, Offered | str]]
    rule: AggregationRule
    optimizer: ServerOptimizer | None
    state: str | None
    step: int
    last: dict[str, str]


class Folding(msgspec.Struct, tag=True, frozen=True):
    """Worker: progress of the fold.

    Attributes:
        done: Bytes of the model that are folded.
        kept: By site, the digest of its model, of those that were kept.
    """

    done: int
    kept: dict[str, str] = {}


class Folded(msgspec.Struct, tag=True, frozen=True):
    """Worker: the next model is durable.

    Attributes:
        digests: Digest of the model, under an empty name, and of the optimizer's state by its name.
        unchanged: Sites whose update is the model that they had received.
        costs: Cost of fetching each update, by site.
        checkpoint: Seconds that it took to make it durable.
    """

    digests: dict[str, str]
    unchanged: list[str]
    costs: dict[str, Transfer]
    checkpoint: float


class PeerFailed(msgspec.Struct, tag=True, frozen=True):
    """Worker: a request failed; a fold is to repeat without a refused update.

    Attributes:
        error: Name of the error's class in :mod:`flstream.errors`.
        arguments: Arguments of the error, such as one sentence that says why.
    """

    error: str
    arguments: list[str]


PeerRequest = Offer | FoldTask
PeerReply = Offered | Folding | Folded | PeerFailed
