"""Refs: offered snapshots, their declared receivers, and the ends of offers."""

from __future__ import annotations

import secrets
import threading
import time
from array import array
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Literal, TypedDict, Unpack

from flstream.debugging import waiting
from flstream.model.digests import BLOCK_BYTES
from flstream.model.layout import ALIGNMENT, Layout
from flstream.model.order import order_text
from flstream.model.source import Source
from flstream.streaming.coding import EncoderFor
from flstream.streaming.settings import expect_options, expect_seconds
from flstream.streaming.wire import TOKEN_BYTES
from flstream.units import format_bytes, format_seconds

# Most digests of a body: those of 16 GiB in blocks of 64 KiB, in 2 MiB.
_MOST_BLOCKS = 1 << 18
# Seconds for which one thread takes digests before it looks at what its receiver says.
_TURN_SECONDS = 0.2


@dataclass
class Delivery:
    """Delivery of a ref to one receiver.

    Attributes:
        bytes: Bytes of the body sent to it, with repeats.
        requests: Number of its fetch requests.
        chunks: Number of frames sent to it.
        closed_at: Time at which it was done, or lost; None before.
        failure: Reason for which it does not have the snapshot, or None.
        active_at: Time at which it last took bytes or asked for something; at first, that of the
            offer.
        reading: Held while the snapshot is read for it.
    """

    bytes: int = 0
    requests: int = 0
    chunks: int = 0
    closed_at: float | None = None
    failure: str | None = None
    active_at: float = field(default_factory=time.monotonic)
    reading: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @property
    def has_it(self) -> bool:
        """Whether the receiver confirmed in time that it has the snapshot."""
        return self.closed_at is not None and self.failure is None

    def progress(self, nbytes: int) -> str:
        """Describe the receiver's progress with ``nbytes`` bytes, and its pause."""
        rests = f"nothing from it for {format_seconds(time.monotonic() - self.active_at)}"
        return f"sent {format_bytes(self.bytes)} of {format_bytes(nbytes)}, {rests}"


@dataclass(frozen=True)
class Outcome:
    """End or state of a ref.

    Attributes:
        status: ``finished`` when every declared receiver has the snapshot, or as many as were
            waited for; ``waiting`` for a ref that is still on offer.
        reason: Sentence that says why it is not finished; empty if it is.
    """

    status: Literal["finished", "aborted", "waiting"]
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether the receivers have the snapshot."""
        return self.status == "finished"


class OfferOptions(TypedDict, total=False):
    """Options of an offer.

    Attributes:
        on_settled: Called once, with the ref, after it has settled: on a thread for all these calls
            of the service, one after another.
        stall_timeout: Seconds after which a receiver is lost that takes nothing and asks for
            nothing. By default the offer waits for it.
        max_chunk_size: Length in bytes of the longest chunk that receivers are sent, a multiple of
            16; by default as long as they ask for.
        round: Number of the round that the tensors are of, for receivers that look them up by
            :class:`~flstream.streaming.selection.TensorSpec`.
        tags: Words for the tensors, likewise, such as ``trained``.
        report: Whether they are a report, such as metrics, likewise.
        encoder: Encoder of frames for receivers that can decode them; by default,
            nothing.
        decoded: Layout of the body that the offered one is an encoded form of; by default, it is no
            such form.
        order: Names in the order in which receivers are to have them; by default, that of the body.
    """

    on_settled: Callable[[Ref], None] | None
    stall_timeout: float | None
    max_chunk_size: int | None
    round: int
    tags: Collection[str]
    report: bool
    encoder: EncoderFor | None
    decoded: Layout | None
    order: Iterable[str]


def block_length(nbytes: int) -> int:
    """Return the bytes of a body's blocks: 64 KiB, or so many that all digests take 2 MiB."""
    length = BLOCK_BYTES
    while length * _MOST_BLOCKS < nbytes:
        length *= 2
    return length


class Ref:
    """Immutable snapshot on offer to declared receivers.

    It settles exactly once, when the last receiver is done or it is withdrawn: it then drops its
    source, and wakes all who wait for it. Threads may share it.

    Args:
        source: The snapshot.
        receivers: Names of those it is offered to.
        after_settled: Called once it has settled.
        options: Options of the offer.

    Attributes:
        token: Unguessable name, to be sent to the receivers, as bytes; :attr:`id` is its text.
        deliveries: Delivery of each declared receiver, by name; a receiver that was not done when
            the ref settled has no ``closed_at``.
        source: The snapshot; None once the ref has settled.
        outcome: The outcome; None while the ref is open.
        options: Options of the offer; none once it has settled, as for the next one.
        order: Text for the order in which receivers are to have the tensors and aliases of its
            layout; empty if that is the order of the layout.

    Raises:
        ValueError: A timeout or a size makes no sense, or the receivers are one text.
    """

    def __init__(
        self,
        source: Source,
        receivers: Iterable[str],
        after_settled: Callable[[Ref], None] = lambda _: None,
        **options: Unpack[OfferOptions],
    ) -> None:
        if isinstance(receivers, str | bytes):
            raise ValueError(f"receivers is the text {receivers!r}; give a list of names")
        deliveries = {name: Delivery() for name in receivers}
        if not all(isinstance(name, str) for name in deliveries):
            raise ValueError(f"receivers are {list(deliveries)}; give their names")
        _check(options)
        self.token = secrets.token_bytes(TOKEN_BYTES)
        self.deliveries = deliveries
        self.options: OfferOptions = options
        order, known = options.get("order"), source.layout.names
        names = known if order is None else list(order)
        if names != known and sorted(names) != sorted(known):
            count = len(known)
            raise ValueError(f"order has {len(names)} names that are not the {count} of the body")
        self.order = order_text(source.layout, names)
        self._digests = array("Q")  # of blocks, computed once for all receivers
        self._digesting = threading.Lock()
        self.source: Source | None = source
        self._nbytes = source.layout.nbytes
        self._after_settled = after_settled
        self.outcome: Outcome | None = None
        self._changed = threading.Condition()

    @property
    def id(self) -> str:
        """The token as text: 32 hexadecimal digits."""
        return self.token.hex()

    @property
    def max_chunk_size(self) -> int:
        """Length in bytes of its longest chunk; 0 if receivers may choose."""
        return self.options.get("max_chunk_size") or 0

    def has(self, name: str, round: int, tags: Iterable[str], report: bool) -> bool:
        """Return whether a tensor of this name is on offer, with exactly these labels."""
        source, options = self.source, self.options
        own = options.get("round"), set(options.get("tags", ())), options.get("report", False)
        return (
            source is not None
            and own == (round, set(tags), report)
            and source.layout.find(name) is not None
        )

    def block_digests(
        self, digest_of: Callable[[int, int], int], meanwhile: Callable[[], None]
    ) -> bytes:
        """Return each block's xxh3-64, 8 bytes; call `meanwhile` now and then."""
        length, digests = block_length(self._nbytes), self._digests
        while len(digests) * length < self._nbytes:
            with self._digesting:
                until = time.monotonic() + _TURN_SECONDS
                while time.monotonic() < until and (start := len(digests) * length) < self._nbytes:
                    digests.append(digest_of(start, min(start + length, self._nbytes)))
            meanwhile()
        return digests.tobytes()

    def wait(self, timeout: float | None = None, quorum: int | None = None) -> Outcome:
        """Wait until the ref settles, or a quorum is certain, and return its outcome.

        Args:
            timeout: Seconds to wait; None is without limit. Afterwards the ref is on offer as
                before, and the outcome is ``waiting``; :meth:`abort` withdraws it.
            quorum: Number of receivers that are to have the snapshot, from 1 to all. With one, the
                outcome is ``finished`` as soon as they have it, and ``aborted`` as soon as that is
                no longer possible; the ref stays on offer to the others. None is all of them.

        Raises:
            ValueError: The quorum or the timeout is no such number.
        """
        if quorum is not None and (
            type(quorum) is not int or not 1 <= quorum <= len(self.deliveries)
        ):
            raise ValueError(
                f"a quorum of {quorum!r} cannot be had of {len(self.deliveries)} receivers; it "
                "must be a whole number from 1 to theirs, or None for all of them"
            )
        if timeout is not None and not (isinstance(timeout, int | float) and timeout == timeout):
            raise ValueError(f"a timeout of {timeout!r}; give seconds, or None for no limit")
        with waiting(), self._changed:
            self._changed.wait_for(lambda: self._decided(quorum) is not None, timeout)
            missing = [
                f"{name} ({delivery.failure or delivery.progress(self._nbytes)})"
                for name, delivery in self.deliveries.items()
                if not delivery.has_it
            ]
            late = (
                f"fewer than {quorum or len(self.deliveries)} of {len(self.deliveries)} receivers "
                f"were done within {timeout} s, without {', '.join(missing)}"
            )
            return self._decided(quorum) or Outcome("waiting", late)

    def abort(self, reason: str) -> None:
        """Withdraw the offer, unless the ref has settled."""
        self.settle(Outcome("aborted", reason))

    def settle(self, outcome: Outcome) -> None:
        """Settle the ref, unless it has settled."""
        with self._changed:
            if self.source is None:
                self._changed.wait_for(lambda: self.outcome is not None)
                return
            self.source = None
        for delivery in self.deliveries.values():
            with delivery.reading:  # the last piece that is being sent of it
                pass
        # Its owner may do with the memory what it likes as soon as the outcome is known.
        with self._changed:
            self.outcome = outcome
            self._changed.notify_all()
        self._after_settled(self)
        # Its service remembers it for a while.
        self.options, self.order, self._digests = {}, "", array("Q")

    def flaw_of(self, receiver: str) -> str:
        """Return why a receiver that is done lacks the snapshot; empty if it has it."""
        delivery = self.deliveries[receiver]
        if delivery.has_it:
            return ""
        if self.outcome is None and delivery.failure:
            return delivery.failure
        late = "the ref had settled before this receiver was done"
        return f"{late}: {self.outcome.reason}" if self.outcome and self.outcome.reason else late

    def receiver_done(self, receiver: str, failure: str | None) -> None:
        """Record once that a receiver has the snapshot, or why not."""
        with self._changed:
            delivery = self.deliveries[receiver]
            if self.source is not None and delivery.closed_at is None:
                delivery.failure = failure
                delivery.closed_at = time.monotonic()
                self._changed.notify_all()
            are_done = all(delivery.closed_at is not None for delivery in self.deliveries.values())
            failures = self._failures()
        if are_done:
            reason = "; ".join(failures)
            self.settle(Outcome("aborted", reason) if reason else Outcome("finished"))

    def give_up_stalled(self) -> float | None:
        """Drop stalled receivers; return the seconds until the next may stall, or None."""
        timeout = self.options.get("stall_timeout")
        if timeout is None or self.source is None:
            return None
        now, waits = time.monotonic(), []
        for name, delivery in self.deliveries.items():
            if delivery.closed_at is None and delivery.reading.locked():
                waits.append(timeout)  # the sender is slow, and not the receiver
            elif delivery.closed_at is None:
                seconds = delivery.active_at + timeout - now
                if seconds > 0:
                    waits.append(seconds)
                else:
                    self.receiver_done(name, f"it stalled ({delivery.progress(self._nbytes)})")
        return min(waits, default=None)

    def _failures(self) -> list[str]:
        return [
            f"{name}: {delivery.failure or 'it gave no reason'}"
            for name, delivery in self.deliveries.items()
            if delivery.failure is not None
        ]

    def _decided(self, quorum: int | None) -> Outcome | None:
        """Return the outcome for waiters for a quorum, or None while it is open."""
        if self.outcome is not None or quorum is None:
            return self.outcome
        count, failures = len(self.deliveries), self._failures()
        if sum(delivery.has_it for delivery in self.deliveries.values()) >= quorum:
            return Outcome("finished")
        if count - len(failures) >= quorum:
            return None
        return Outcome(
            "aborted",
            f"{quorum} of {count} receivers were to have it, and {len(failures)} failed: "
            f"{'; '.join(failures)}",
        )


def _check(options: OfferOptions) -> None:
    expect_options(options, OfferOptions)
    size, tags = options.get("max_chunk_size"), options.get("tags", ())
    if (seconds := options.get("stall_timeout")) is not None:
        expect_seconds("stall_timeout", seconds)
    if size is not None and (type(size) is not int or size < ALIGNMENT or size % ALIGNMENT):
        raise ValueError(f"max_chunk_size is {size!r}; give a multiple of {ALIGNMENT} bytes")
    for name in ("on_settled", "encoder"):
        if options.get(name) is not None and not callable(options.get(name)):
            raise ValueError(f"{name} is {options.get(name)!r}; give a function")
    if type(options.get("round", 0)) is not int or abs(options.get("round", 0)) >= 2**63:
        raise ValueError(f"round is {options['round']!r}; give a whole number")
    if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
        raise ValueError(f"tags are {tags!r}; give a list of texts")
