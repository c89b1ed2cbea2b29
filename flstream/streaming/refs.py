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
        status: ``finished`` when every declared receiver has the snapshot.
        reason: a sentence, empty when finished.
    """

    status: Status
    reason: str = ""

    @property
    def ok(self) -> bool:
        """Whether every declared receiver has the snapshot."""
        return self.status == "finished"


@dataclass
class Ref:
    """One immutable snapshot on offer to declared receivers.

    It settles exactly once. On settling it lets go of its source, and whoever waits is woken.
    Threads may share it.

    Attributes:
        token: unguessable name, to be sent to the receivers.
        deliveries: what each declared receiver has had.
    """

    token: bytes
    deliveries: dict[str, Delivery]
    _source: Source | None
    _on_settled: Callable[[Ref], None]
    _outcome: Outcome | None = None
    _settled: threading.Condition = field(default_factory=threading.Condition)

    @classmethod
    def issue(
        cls, source: Source, receivers: Iterable[str], on_settled: Callable[[Ref], None]
    ) -> Ref:
        """A new ref with a token of its own."""
        token = secrets.token_bytes(TOKEN_BYTES)
        return cls(token, {name: Delivery() for name in receivers}, source, on_settled)

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
        self.settle(Outcome("timed out", f"not every receiver was done within {timeout} s"))
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
        delivery = self.deliveries[receiver]
        if delivery.closed_at is None:
            delivery.closed_at = time.monotonic()
            delivery.failure = failure
        if all(each.closed_at is not None for each in self.deliveries.values()):
            failures = [
                f"{name}: {each.failure}" for name, each in self.deliveries.items() if each.failure
            ]
            self.settle(
                Outcome("aborted", "; ".join(failures)) if failures else Outcome("finished")
            )
