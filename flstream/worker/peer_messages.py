"""The messages between the server and a worker about the worker's peers, which are other workers.

They travel on a socket of their own. The server asks for one thing at a time, and the worker
answers each request with one message; only while it folds, :class:`Folding` comes before the
answer. With :class:`Serve` and :class:`Reach`, a socket to the peer is handed over; workers
of other nodes dial each other, by :class:`Listen` and :class:`Dial`.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from flstream.job.codecs import CodecPlan
from flstream.streaming.settings import StreamSettings
from flstream.telemetry.events import Transfer


class Serve(msgspec.Struct, tag=True, frozen=True):
    """Server: a socket comes with this, on which the worker is to serve downloads to a peer.

    Attributes:
        peer: Name of the peer's process, to which bodies are offered under it.
    """

    peer: str


class Reach(msgspec.Struct, tag=True, frozen=True):
    """Server: a socket comes with this, on which a peer serves downloads to the worker.

    Attributes:
        peer: Name of the peer's process.
    """

    peer: str


class Listen(msgspec.Struct, tag=True, frozen=True):
    """Server: serve downloads to a peer on another node, which is to dial.

    Attributes:
        peer: Name of the peer's process, to which bodies are offered under it.
    """

    peer: str


class Dial(msgspec.Struct, tag=True, frozen=True):
    """Server: dial a peer on another node, which serves downloads to the worker.

    Attributes:
        peer: Name of the peer's process.
        address: Where it listens, ``HOST:PORT``.
        key: The key of the start token that it expects.
    """

    peer: str
    address: str
    key: bytes


class OfferUpdate(msgspec.Struct, tag=True, frozen=True):
    """Server: offer an update that waits here to a peer, and to nobody else.

    Attributes:
        effect: Number of the effect whose task the update answers.
        peer: Name of the peer's process.
    """

    effect: int
    peer: str


class OfferModel(msgspec.Struct, tag=True, frozen=True):
    """Server: offer a model, which is a file that every worker can open, to a peer.

    Attributes:
        path: Path of the file.
        digest: Digest of the model, as another one may have had that path.
        peer: Name of the peer's process.
    """

    path: str
    digest: str
    peer: str


class Withdraw(msgspec.Struct, tag=True, frozen=True):
    """Server: a body is no longer on offer.

    Attributes:
        token: Token under which it was offered.
        reason: Clause that says why.
    """

    token: bytes
    reason: str


class UpdatePlace(msgspec.Struct, frozen=True):
    """One update of a fold, and where it lies.

    Attributes:
        site: Name of the site.
        weight: Its share in a mean, before dividing by the sum of all; finite and above 0.
        params_type: Whether the body has the weights or their difference from the model.
        partial: Whether it may lack tensors of the model.
        effect: Number of the effect whose task it answers, if it waits in the worker that folds.
        peer: Name of the process that offers it; empty for none.
        token: Token under which that offers it.
        path: Path of the file that it is in; empty for none.
        last: Path of the file in which the site's model is to be kept; empty for none.
    """

    site: str
    weight: float
    params_type: Literal["FULL", "DIFF"]
    partial: bool
    effect: int = 0
    peer: str = ""
    token: bytes = b""
    path: str = ""
    last: str = ""


class FoldTask(msgspec.Struct, tag=True, frozen=True):
    """Server: fold updates into the next model, and write it to a file that has no name yet.

    Attributes:
        base: Path of the model that the updates were trained from.
        path: Path that the next model gets with :class:`Keep`.
        metadata: Strings of its header.
        updates: The updates, in the order in which they are folded.
        aggregation: The section of the job file that says how, as plain values.
        optimizer: That of the server optimizer, likewise.
        state_in: Path of the optimizer's state that belongs to ``base``; empty before its first
            round.
        state_out: Path that the next state gets with :class:`Keep`; empty without an optimizer.
        step: Bytes folded at a time.
        settings: How models are streamed.
        codecs: Codecs of the updates.
        codecs_down: Codecs of the model.
    """

    base: str
    path: str
    metadata: dict[str, str]
    updates: list[UpdatePlace]
    aggregation: dict[str, Any]
    optimizer: dict[str, Any]
    state_in: str
    state_out: str
    step: int
    settings: StreamSettings
    codecs: CodecPlan = CodecPlan()
    codecs_down: CodecPlan = CodecPlan()


class Keep(msgspec.Struct, tag=True, frozen=True):
    """Server: make the model that was folded last durable, and give its file its name."""


class PeerDone(msgspec.Struct, tag=True, frozen=True):
    """Worker: it is done."""


class Listening(msgspec.Struct, tag=True, frozen=True):
    """Worker: it listens for a peer.

    Attributes:
        address: Where, ``HOST:PORT``.
        key: The key of the start token that it expects.
    """

    address: str
    key: bytes


class Offered(msgspec.Struct, tag=True, frozen=True):
    """Worker: a body is on offer.

    Attributes:
        token: Its token.
    """

    token: bytes


class Folding(msgspec.Struct, tag=True, frozen=True):
    """Worker: so many bytes of the model are folded."""

    done: int


class Folded(msgspec.Struct, tag=True, frozen=True):
    """Worker: the next model is written, but not yet durable.

    Attributes:
        digest: Digest of the model.
        unchanged: Sites whose update is the model that they had received.
        costs: Cost of fetching each update, by site; none for those that were here.
        kept: Digest of each model of a site that was kept, by site.
    """

    digest: str
    unchanged: list[str]
    costs: dict[str, Transfer]
    kept: dict[str, str] = {}


class FoldRefused(msgspec.Struct, tag=True, frozen=True):
    """Worker: an update is of no use, and the fold is to be done again without it.

    Attributes:
        site: Name of its site.
        reason: The defect, worded as the continuation of "the update of <site>".
        kept: Digest of each model of a site that was kept until then, by site.
    """

    site: str
    reason: str
    kept: dict[str, str] = {}


class Kept(msgspec.Struct, tag=True, frozen=True):
    """Worker: the model is durable.

    Attributes:
        state: Digest of the optimizer's state; empty without an optimizer.
    """

    state: str = ""


class PeerFailed(msgspec.Struct, tag=True, frozen=True):
    """Worker: a request could not be met.

    Attributes:
        kind: Name of the error's class.
        reason: One sentence that says why.
    """

    kind: str
    reason: str


PeerRequest = Serve | Reach | Listen | Dial | OfferUpdate | OfferModel | Withdraw | FoldTask | Keep
PeerReply = PeerDone | Listening | Offered | Folding | Folded | FoldRefused | Kept | PeerFailed
