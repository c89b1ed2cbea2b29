"""Refs: names for snapshots on offer, with the receivers that may have them, and how they end."""

from __future__ import annotations

import secrets
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal

from flstream.model.body import Source
from flstream.streaming.wire import TOKEN_BYTES

Status = Literal["finished", "timed out", "aborted"]


@dataclass
class Delivery:
    """What one receiver has had of a ref so far.

    Attributes:
        bytes: bytes of body put on its channel, repeats included.
        requests: fetch requests it made.
        chunks: frames sent to it.
        closed_at: when it said that it was done, or was lost.
        failure: why it does not have the snapshot, or None.
    """

    bytes: int = 0
    requests: int = 0
    chunks: int = 0
    closed_at: float | None = None
    failure: str | None = None


@dataclass(frozen=True)
class Outcome:
    """How a ref ended.

    Attributes:
        status: ``finished`` when every declared receiver has the snapshot, or a quorum of them.
        reason: a sentence, empty when finished.
    """

    status: Status
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether every declared receiver has the snapshot, or a quorum of them."""
        return self.status == "finished"


@dataclass
class Ref:
    """One immutable snapshot on offer to declared receivers.

    It settles exactly once. On settling it lets go of its source, and whoever waits is woken.
    Threads may share it.

    Without a quorum it stays on offer until the last receiver is done, even if one has failed: the
    others may still have it. With one it settles as soon as it is known how it ends.

    Attributes:
        token: unguessable name, to be sent to the receivers.
        deliveries: what each declared receiver has had; a receiver that was not done when the ref
            settled has no ``closed_at``.
        quorum: how many receivers have to have the snapshot; None for all of them.
    """

    token: bytes
    deliveries: dict[str, Delivery]
    quorum: int | None
    _source: Source | None
    _on_settled: Callable[[Ref], None]
    _outcome: Outcome | None = None
    _settled: threading.Condition = field(default_factory=threading.Condition)

    @classmethod
    def issue(
        cls,
        source: Source,
        receivers: Iterable[str],
        on_settled: Callable[[Ref], None],
        quorum: int | None = None,
    ) -> Ref:
        """A new ref with a token of its own.

        Raises:
            ValueError: the quorum is no number from 1 to that of the receivers.
        """
        deliveries = {name: Delivery() for name in receivers}
        if quorum is not None and (type(quorum) is not int or not 1 <= quorum <= len(deliveries)):
            raise ValueError(
                f"a quorum of {quorum!r} cannot be had of {len(deliveries)} receivers; it must be "
                "a whole number from 1 to theirs, or None for all of them"
            )
        return cls(secrets.token_bytes(TOKEN_BYTES), deliveries, quorum, source, on_settled)

    @property
    def source(self) -> Source | None:
        """The snapshot, or None once the ref has settled."""
        return self._source

    @property
    def outcome(self) -> Outcome | None:
        """How it ended, or None while it is open."""
        return self._outcome

    def wait(self, timeout: float | None = None) -> Outcome:
        """Wait until the ref settles.

        Args:
            timeout: seconds; when they are over, the ref settles as timed out.
        """
        with self._settled:
            self._settled.wait_for(lambda: self._outcome is not None, timeout)
        late = "not every receiver was"
        if self.quorum is not None:
            late = f"fewer than {self.quorum} of {len(self.deliveries)} receivers were"
        self.settle(Outcome("timed out", f"{late} done within {timeout} s"))
        assert self._outcome is not None
        return self._outcome

    def abort(self, reason: str) -> None:
        """Withdraw the offer. A ref that has settled stays as it is."""
        self.settle(Outcome("aborted", reason))

    def settle(self, outcome: Outcome) -> None:
        """End the ref, if it has not ended yet."""
        with self._settled:
            if self._outcome is not None:
                return
            self._outcome = outcome
            self._source = None
            self._settled.notify_all()
        try:
            self._on_settled(self)
        except Exception:
            # What a caller's callback raises is the caller's. The ref has settled, and the thread
            # that settled it may be the one that serves everybody else.
            traceback.print_exc()

    def receiver_done(self, receiver: str, failure: str | None) -> None:
        """Note that a receiver has the snapshot, or why it does not; the first word counts."""
        with self._settled:  # several threads may lose, or hear of, the last receivers at once
            delivery = self.deliveries[receiver]
            if self._outcome is None and delivery.closed_at is None:
                delivery.failure = failure
                delivery.closed_at = time.monotonic()
            outcome = self._decided()
        if outcome is not None:
            self.settle(outcome)

    def _decided(self) -> Outcome | None:
        """How the ref ends by what its receivers have said so far, or None if that is open."""
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
