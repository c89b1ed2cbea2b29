"""Refs: snapshots on offer, their declared receivers, and how each offer ends."""

from __future__ import annotations

import secrets
import threading
import time
import traceback
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple, TypedDict, Unpack

from flstream.debugging import waiting
from flstream.model.layout import ALIGNMENT, Layout
from flstream.model.source import Source
from flstream.streaming.coding import EncoderFor
from flstream.streaming.settings import expect_options, expect_seconds
from flstream.streaming.wire import TOKEN_BYTES
from flstream.transport.lending import PrivateMemory
from flstream.units import format_bytes, format_seconds

End = Literal["finished", "aborted", "waiting"]


@dataclass
class Delivery:
    """What one receiver has been sent of a ref so far.

    Attributes:
        bytes: Bytes of the body sent to it, with repeats.
        requests: Number of its fetch requests.
        chunks: Number of frames sent to it.
        closed_at: Time at which it was done, or lost; None before.
        failure: Reason for which it does not have the snapshot, or None.
        active_at: Time at which it last took bytes or asked for something; at first, that of the
            offer.
        is_confirmed: Whether the snapshot was still as it was offered once all was sent.
    """

    bytes: int = 0
    requests: int = 0
    chunks: int = 0
    closed_at: float | None = None
    failure: str | None = None
    active_at: float = field(default_factory=time.monotonic)
    is_confirmed: bool = False

    @property
    def has_it(self) -> bool:
        """Whether the receiver has said that it has the snapshot, in time."""
        return self.closed_at is not None and self.failure is None

    def progress(self, nbytes: int) -> str:
        """Describe how far it is with a snapshot of ``nbytes`` bytes, and for how long it rests."""
        rests = f"nothing from it for {format_seconds(time.monotonic() - self.active_at)}"
        return f"sent {format_bytes(self.bytes)} of {format_bytes(nbytes)}, {rests}"


@dataclass(frozen=True)
class Outcome:
    """How a ref ended, or stands.

    Attributes:
        status: ``finished`` when every declared receiver has the snapshot, or a quorum of them;
            ``waiting`` for a ref that is still on offer.
        reason: Sentence that says why it is not finished; empty if it is.
    """

    status: End
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether every declared receiver has the snapshot, or a quorum of them."""
        return self.status == "finished"


# Refs that are remembered once they have settled, in case that a receiver repeats itself.
_MOST_REMEMBERED = 1024


class Settled(NamedTuple):
    """What is remembered of a ref that has settled.

    Attributes:
        have: Receivers that have the snapshot.
        reason: Why the others do not, for those that believe that they do.
    """

    have: frozenset[str]
    reason: str


class RecentlySettled(dict[bytes, Settled]):
    """The refs that settled last, by token. Threads may share it."""

    def __init__(self) -> None:
        super().__init__()
        self._adding = threading.Lock()

    def __setitem__(self, token: bytes, settled: Settled) -> None:
        with self._adding:
            super().__setitem__(token, settled)
            while len(self) > _MOST_REMEMBERED:
                del self[next(iter(self))]


class OfferOptions(TypedDict, total=False):
    """Options of an offer.

    Attributes:
        on_settled: Called once, with the ref, after it has settled: on a thread for all these calls
            of the service, one after another.
        quorum: Number of receivers that must have the snapshot, from 1 to all. The ref is finished
            as soon as they have it, and aborted as soon as that is no longer possible; late
            receivers are refused. By default it stays open until every receiver is done, and all
            must have it.
        stall_timeout: Seconds after which a receiver is lost that takes nothing and asks for
            nothing. By default the offer waits for it.
        max_chunk_size: Length in bytes of the longest chunk that receivers are sent, a multiple of
            16; by default as long as they ask for.
        round: Number of the round that the tensors are of, for receivers that look them up by
            :class:`~flstream.streaming.wire.TensorSpec`.
        tags: What the tensors are, likewise, such as ``trained``.
        encoder: What makes frames smaller for receivers that can give them back; by default,
            nothing.
        order: Names in the order in which receivers are to have them; by default, that of the body.
    """

    on_settled: Callable[[Ref], None] | None
    quorum: int | None
    stall_timeout: float | None
    max_chunk_size: int | None
    round: int
    tags: Collection[str]
    encoder: EncoderFor | None
    order: Iterable[str]


class Ref:
    """One immutable snapshot on offer to declared receivers.

    It settles exactly once: it then drops its source, and wakes all who wait for it. Threads may
    share it.

    Without a quorum it stays open until the last receiver is done, even if one has failed, since
    the others may still get it. With a quorum it settles as soon as its outcome is certain.

    Args:
        source: The snapshot.
        receivers: Names of those it is offered to.
        token: Unguessable name; None for a new one.
        before_settled: Called once it is certain to settle, before anybody knows.
        after_settled: Called once it has settled.
        options: Options of the offer.

    Attributes:
        token: Unguessable name, to be sent to the receivers, as bytes; :attr:`id` is its text.
        deliveries: Delivery of each declared receiver, by name; a receiver that was not done when
            the ref settled has no ``closed_at``.
        parts: Refs of some of its tensors, by token.
        wholes: The refs of which this one is a part.
        selections: Sources of some of its tensors, by their names, for whoever asks for the same.
        options: Options of the offer.
        order: Places of the tensors and aliases of its layout in the order in which receivers are
            to have them; empty if that is the order of the layout.

    Raises:
        ValueError: The quorum is not from 1 to the number of receivers, a timeout or a size makes
            no sense, or the receivers are one text.
    """

    def __init__(
        self,
        source: Source,
        receivers: Iterable[str],
        token: bytes | None = None,
        before_settled: Callable[[Ref], None] = lambda _: None,
        after_settled: Callable[[Ref], None] = lambda _: None,
        **options: Unpack[OfferOptions],
    ) -> None:
        if isinstance(receivers, str | bytes):
            raise ValueError(f"receivers is the text {receivers!r}; give a list of names")
        deliveries = {name: Delivery() for name in receivers}
        if not all(isinstance(name, str) for name in deliveries):
            raise ValueError(f"receivers are {list(deliveries)}; give their names")
        self.token = secrets.token_bytes(TOKEN_BYTES) if token is None else token
        self.deliveries = deliveries
        self.parts: dict[bytes, Ref] = {}
        self.wholes: list[Ref] = []
        self.selections: dict[tuple[str, ...], Source] = {}
        self.options: OfferOptions = options
        self._quorum = options.get("quorum")
        self._check()
        self.order = _order_of(source.layout, options.get("order"))
        self._source: Source | None = source
        self._nbytes = source.layout.nbytes
        self._after_settled = after_settled
        self._before_settled = before_settled
        self._outcome: Outcome | None = None
        self._is_settling = False
        self._settled = threading.Condition()

    def _check(self) -> None:
        expect_options(self.options, OfferOptions)
        quorum, size = self._quorum, self.options.get("max_chunk_size")
        tags, on_settled = self.options.get("tags", ()), self.options.get("on_settled")
        if (seconds := self.options.get("stall_timeout")) is not None:
            expect_seconds("stall_timeout", seconds)
        if quorum is not None and (
            type(quorum) is not int or not 1 <= quorum <= len(self.deliveries)
        ):
            raise ValueError(
                f"a quorum of {quorum!r} cannot be had of {len(self.deliveries)} receivers; it "
                "must be a whole number from 1 to theirs, or None for all of them"
            )
        if size is not None and (type(size) is not int or size < ALIGNMENT or size % ALIGNMENT):
            raise ValueError(f"max_chunk_size is {size!r}; give a multiple of {ALIGNMENT} bytes")
        if on_settled is not None and not callable(on_settled):
            raise ValueError(f"on_settled is {on_settled!r}; give a function")
        if type(self.options.get("round", 0)) is not int:
            raise ValueError(f"round is {self.options['round']!r}; give a whole number")
        if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
            raise ValueError(f"tags are {tags!r}; give a list of texts")

    def __str__(self) -> str:
        return self.id

    @property
    def max_chunk_size(self) -> int:
        """Length in bytes of the longest chunk of it; 0 if that is for the receivers to say."""
        return self.options.get("max_chunk_size") or 0

    def chunk_size(self, asked: int) -> int:
        """Return the length of its chunks, in bytes, for one who asks for a length."""
        return min(asked, self.max_chunk_size or asked)

    @property
    def id(self) -> str:
        """The token as text: 32 hexadecimal digits."""
        return self.token.hex()

    @property
    def label(self) -> tuple[int, frozenset[str]]:
        """Round and tags by which its tensors can be looked up."""
        return self.options.get("round", 0), frozenset(self.options.get("tags", ()))

    @cached_property
    def private_memory(self) -> PrivateMemory:
        """The memory of this process that nothing else has a share in, as it was first needed."""
        return PrivateMemory.read()

    @property
    def source(self) -> Source | None:
        """The snapshot, or None once the ref has settled."""
        return self._source

    @property
    def outcome(self) -> Outcome | None:
        """The outcome, or None while the ref is open."""
        return self._outcome

    def wait(self, timeout: float | None = None) -> Outcome:
        """Wait until the ref settles, and return its outcome.

        Args:
            timeout: Seconds to wait; None is without limit. Afterwards the ref is on offer as
                before, and the outcome is ``waiting``; :meth:`abort` withdraws it.
        """
        with waiting(), self._settled:
            self._settled.wait_for(lambda: self._outcome is not None, timeout)
            if self._outcome is not None:
                return self._outcome
            return Outcome("waiting", f"{self._late()} done within {timeout} s")

    def abort(self, reason: str) -> None:
        """Withdraw the offer, unless the ref has settled."""
        self.settle(Outcome("aborted", reason))

    def settle(self, outcome: Outcome) -> None:
        """Settle the ref, unless it has settled."""
        with self._settled:
            if self._is_settling:
                self._settled.wait_for(lambda: self._outcome is not None)
                return
            self._is_settling = True
            self._source = None
            self.selections.clear()
        try:
            # Its owner may do with the memory what it likes as soon as the outcome is known.
            self._before_settled(self)
        finally:  # whoever waits is not to wait for ever
            with self._settled:
                self._outcome = outcome
                self._settled.notify_all()
        try:
            self._after_settled(self)
        except Exception:
            # Errors of the caller's callback end here: the ref has settled, and the thread that
            # settled it may be the one that serves all other receivers.
            traceback.print_exc()

    def receiver_done(self, receiver: str, failure: str | None) -> None:
        """Record that a receiver has the snapshot, or why not; only the first call counts."""
        with self._settled:  # several threads may record the last receivers at once
            delivery = self.deliveries[receiver]
            if not self._is_settling and delivery.closed_at is None:
                delivery.failure = failure
                delivery.closed_at = time.monotonic()
            outcome = self._decided()
        if outcome is not None:
            self.settle(outcome)

    @property
    def settled(self) -> Settled:
        """What is to be remembered of the ref, once it has settled."""
        have = {name for name, each in self.deliveries.items() if each.has_it}
        reason = "the ref had settled before this receiver was done"
        if self._outcome is not None and self._outcome.reason:
            reason += f": {self._outcome.reason}"
        return Settled(frozenset(have), reason)

    def stalled(self) -> dict[str, float]:
        """Return the receivers that are still to be done, and the seconds until each is lost.

        Those of which this is 0 or less have stalled. There are none without a timeout.
        """
        timeout = self.options.get("stall_timeout")
        if timeout is None or self._is_settling:
            return {}
        limit = timeout - time.monotonic()
        return {
            name: each.active_at + limit
            for name, each in self.deliveries.items()
            if each.closed_at is None
        }

    def receiver_stalled(self, receiver: str) -> None:
        """Record that a receiver took nothing and asked for nothing in the time it was given."""
        progress = self.deliveries[receiver].progress(self._nbytes)
        self.receiver_done(receiver, f"it stalled ({progress})")

    def _late(self) -> str:
        """Describe who is not done, for the sentence on a time that was too short."""
        late = [
            f"{name} ({each.progress(self._nbytes)})"
            for name, each in self.deliveries.items()
            if each.closed_at is None
        ]
        failed = [
            f"{name} ({each.failure})"
            for name, each in self.deliveries.items()
            if each.failure is not None
        ]
        missing = ", ".join([*failed, *late])
        if self._quorum is not None:
            count = f"fewer than {self._quorum} of {len(self.deliveries)} receivers"
            return f"{count}, without {missing}, were"
        return f"{missing} {'was' if len(failed) + len(late) == 1 else 'were'} not"

    def _decided(self) -> Outcome | None:
        """Return the outcome that the receivers so far decide, or None if it is open."""
        waiting = sum(each.closed_at is None for each in self.deliveries.values())
        failures = [
            f"{name}: {each.failure or 'it gave no reason'}"
            for name, each in self.deliveries.items()
            if each.failure is not None
        ]
        if self._quorum is None:
            if waiting:
                return None
            return Outcome("aborted", "; ".join(failures)) if failures else Outcome("finished")
        if len(self.deliveries) - waiting - len(failures) >= self._quorum:
            return Outcome("finished")
        if len(self.deliveries) - len(failures) >= self._quorum:
            return None
        return Outcome(
            "aborted",
            f"{self._quorum} of {len(self.deliveries)} receivers were to have it, and "
            f"{len(failures)} failed: {'; '.join(failures)}",
        )


def _order_of(layout: Layout, names: Iterable[str] | None) -> list[int]:
    """Return the places of names among those of a layout; nothing if they are in its order."""
    if names is None:
        return []
    names, known = list(names), layout.names
    if names == known:
        return []
    if sorted(names) != sorted(known):
        raise ValueError(f"order has {len(names)} names that are not the {len(known)} of the body")
    places = {name: place for place, name in enumerate(known)}
    return [places[name] for name in names]
