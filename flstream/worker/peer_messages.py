"""The messages between the server and a worker about the worker's peers, which are other workers.

They travel on a socket of their own. The server asks for one thing at a time, and the worker
answers each request with one message; only while it folds, :class:`Folding` comes before the
answer.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from flstream.aggregation.optimizers import ServerOptimizer
from flstream.aggregation.rules import AggregationRule
from flstream.telemetry.events import Transfer


class Offer(msgspec.Struct, tag=True, frozen=True):
    """Server: let a peer fetch a body, and nobody else.

    Attributes:
        peer: Name of the peer.
        path: Path of a model's file, which every worker can open; empty for an update.
        token: Token of an update that is on offer to the server, in whose place the peer fetches
            it; empty for a model.
    """

    peer: str
    path: str = ""
    token: bytes = b""


class Offered(msgspec.Struct, tag=True, frozen=True):
    """Worker: a body is on offer to a peer, which connects for it.

    Attributes:
        peer: Name of this worker, which is the other's peer.
        address: Where it listens.
        key: The key of the start token that admits the other one.
        token: The body's token.
    """

    peer: str
    address: str
    key: bytes
    token: bytes


class UpdatePlace(msgspec.Struct, frozen=True):
    """One update of a fold, and where it lies.

    Attributes:
        site: Name of the site.
        weight: Its share in a mean, before dividing by the sum of all; finite and above 0.
        params_type: Whether the body has the weights or their difference from the model.
        partial: Whether it may lack tensors of the model.
        where: The offer of its worker, which may be the one that folds; or path of its file.
    """

    site: str
    weight: float
    params_type: Literal["FULL", "DIFF"]
    partial: bool
    where: Offered | str


class FoldTask(msgspec.Struct, tag=True, frozen=True):
    """Server: fold updates into the next model, and make its file durable.

    Attributes:
        base: Path of the model that the updates were trained from.
        path: Path of the next model; the optimizer's state is written beside it.
        metadata: Strings of its header.
        updates: The updates, in the order in which they are folded.
        rule: How they are combined.
        optimizer: The server optimizer that makes a step; None for none.
        state: Path of its state that belongs to ``base``; None before its first round.
        step: Bytes folded at a time.
        last: By site, path of the file in which its model is kept; empty where none is.
    """

    base: str
    path: str
    metadata: dict[str, str]
    updates: list[UpdatePlace]
    rule: AggregationRule
    optimizer: ServerOptimizer | None
    state: str | None
    step: int
    last: dict[str, str]


class Folding(msgspec.Struct, tag=True, frozen=True):
    """Worker: so far is the fold.

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
        costs: Cost of fetching each update, by site; none for those that were here.
        checkpoint: Seconds that it took to make it durable.
    """

    digests: dict[str, str]
    unchanged: list[str]
    costs: dict[str, Transfer]
    checkpoint: float


class PeerFailed(msgspec.Struct, tag=True, frozen=True):
    """Worker: a request could not be met; a fold is to be done again without a refused update.

    Attributes:
        error: Name of the error's class in :mod:`flstream.errors`.
        arguments: Those of the error, such as one sentence that says why.
    """

    error: str
    arguments: list[str]


PeerRequest = Offer | FoldTask
PeerReply = Offered | Folding | Folded | PeerFailed
