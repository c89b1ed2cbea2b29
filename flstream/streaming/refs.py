"""Refs: snapshots on offer, their declared receivers, and how each offer ends."""

from __future__ import annotations

import secrets
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, NamedTuple

from flstream.model.body import Source
from flstream.streaming.settings import expect_seconds
from flstream.streaming.wire import TOKEN_BYTES
from flstream.transport.lending import PrivateMemory
from flstream.units import format_bytes, format_seconds

Status = Literal["finished", "timed out", "aborted"]


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
    """How a ref ended.

    Attributes:
        status: ``finished`` when every declared receiver has the snapshot, or a quorum of them.
        reason: Sentence that says why it is not finished; empty if it is.
    """

    status: Status
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


@dataclass
class Ref:
    """One immutable snapshot on offer to declared receivers.

    It settles exactly once: it then drops its source, and wakes all who wait for it. Threads may
    share it.

    Without a quorum it stays open until the last receiver is done, even if one has failed, since
    the others may still get it. With a quorum it settles as soon as its outcome is certain.

    Attributes:
        token: Unguessable name, to be sent to the receivers.
        deliveries: Delivery of each declared receiver, by name; a receiver that was not done when
            the
        ref settled has no ``closed_at``.
        quorum: Number of receivers that must have the snapshot; None for all of them.
        stall_timeout: Seconds after which a receiver is lost that takes nothing and asks for
            nothing; None is without limit.
    """

    token: bytes
    deliveries: dict[str, Delivery]
    quorum: int | None
    stall_timeout: float | None
    _source: Source | None
    _nbytes: int
    _on_settled: Callable[[Ref], None]
    _before_settled: Callable[[Ref], None] = lambda _: None
    _outcome: Outcome | None = None
    _is_settling: bool = False
    _settled: threading.Condition = field(default_factory=threading.Condition)

    @classmethod
    def issue(
        cls,
        source: Source,
        receivers: Iterable[str],
        on_settled: Callable[[Ref], None],
        quorum: int | None = None,
        before_settled: Callable[[Ref], None] = lambda _: None,
        stall_timeout: float | None = None,
    ) -> Ref:
        """Make a ref with a new token.

        Args:
            source: The snapshot.
            receivers: Names of those it is offered to.
            on_settled: Called once it has settled.
            quorum: Number of receivers that must have it; None for all of them.
            before_settled: Called once it is certain to settle, before anybody knows.
            stall_timeout: Seconds of silence after which a receiver is lost; None is no limit.

        Raises:
            ValueError: The quorum is not from 1 to the number of receivers, the timeout is not
                above 0, or the receivers are one text.
        """
        if isinstance(receivers, str | bytes):
            raise ValueError(f"receivers is the text {receivers!r}; give a list of names")
        if stall_timeout is not None:
            expect_seconds("stall_timeout", stall_timeout)
        deliveries = {name: Delivery() for name in receivers}
        if not all(isinstance(name, str) for name in deliveries):
            raise ValueError(f"receivers are {list(deliveries)}; give their names")
        if quorum is not None and (type(quorum) is not int or not 1 <= quorum <= len(deliveries)):
            raise ValueError(
                f"a quorum of {quorum!r} cannot be had of {len(deliveries)} receivers; it must be "
                "a whole number from 1 to theirs, or None for all of them"
            )
        token = secrets.token_bytes(TOKEN_BYTES)
        return cls(
            token,
            deliveries,
            quorum,
            stall_timeout,
            source,
            source.layout.nbytes,
            on_settled,
            before_settled,
        )

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
            timeout: Seconds after which the ref settles as timed out; None is without limit.
        """
        with self._settled:
            self._settled.wait_for(lambda: self._outcome is not None, timeout)
            if self._outcome is not None:
                return self._outcome
            late = self._late()
        self.settle(Outcome("timed out", f"{late} done within {timeout} s"))
        assert self._outcome is not None
        return self._outcome

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
        try:
            # Its owner may do with the memory what it likes as soon as the outcome is known.
            self._before_settled(self)
        finally:  # whoever waits is not to wait for ever
            with self._settled:
                self._outcome = outcome
                self._settled.notify_all()
        try:
            self._on_settled(self)
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
        if self.stall_timeout is None or self._is_settling:
            return {}
        limit = self.stall_timeout - time.monotonic()
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
        if self.quorum is not None:
            count = f"fewer than {self.quorum} of {len(self.deliveries)} receivers"
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
        if self.quorum is None:
            if waiting:
                return None
            return Outcome("aborted", "; ".join(failures)) if failures else Outcome("finished")
        if len(self.deliveries) - waiting - len(failures) >= self.quorum:
            return Outcome("finished")
        if len(self.deliveries) - len(failures) >= self.quorum:
            return None
        return Outcome(
            "aborted",
            f"{self.quorum} of {len(self.deliveries)} receivers were to have it, and "
            f"{len(failures)} failed: {'; '.join(failures)}",
        )
