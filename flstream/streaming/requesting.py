"""What a receiver asks for: what comes next, what was lost, and that more is pushed."""

from __future__ import annotations

import time

from flstream.errors import IntegrityError
from flstream.model.layout import Layout
from flstream.streaming.conversation import Conversation
from flstream.streaming.ledger import Ledger
from flstream.streaming.receiver import Patience, Receiver, StreamSettings
from flstream.streaming.wire import PUSHED, Credit, Fetch, Probe

# How often a chunk is fetched again before the download fails. What breaks as often as that does
# not break by chance.
_MOST_REPAIRS = 5
# The first repair is at once; each further one of the same chunk waits twice as long as the last.
_BACKOFF_SECONDS = 0.05
# Scattered losses are repaired by so many requests at a time; a sender refuses hundreds of them.
_MOST_REPAIRS_UNDER_WAY = 64


class Requests:
    """The requests of one download.

    Args:
        talk: what carries them.
        receiver: whose they are.
        token: the ref.
        settings: sizes, window and timeouts.
        layout: of the body.
        frame_size: longest frame in bytes, 0 for the whole model in one.
        patience: how long a request may take.

    Attributes:
        ledger: what has arrived and what is under way.
        count: requests made so far.
        repairs: how many of them were for what had been lost.
        failure: what became of the last chunk that has to be fetched again.
    """

    def __init__(
        self,
        talk: Conversation,
        receiver: Receiver,
        token: bytes,
        settings: StreamSettings,
        layout: Layout,
        frame_size: int,
        patience: Patience,
    ) -> None:
        self.ledger = Ledger(layout.nbytes, frame_size or layout.nbytes)
        self.count = self.repairs = 0
        self.failure = "nothing came"
        self._talk = talk
        self._receiver = receiver
        self._token = token
        self._settings = settings
        self._layout = layout
        self._frame_size = frame_size
        self._patience = patience
        # Up to where the body has been asked for, or, in push mode, may be sent.
        self._asked = 0
        self._not_before = 0.0

    def expect_eager(self, number: int) -> None:
        """The whole body was asked for together with the layout, under that request's number."""
        self.ledger.request(number, 0, self._layout.nbytes, urgent=False)
        self.count += 1
        self._asked = self._layout.nbytes

    def expect_push(self, limit: int) -> None:
        """The sender sends by itself, up to ``limit`` before it has to be told to go on."""
        self._asked = limit
        if self._layout.nbytes:
            self.ledger.request(PUSHED, 0, self._layout.nbytes, urgent=False)

    def end_push(self) -> None:
        """Ask for what is missing from now on, rather than have it pushed."""
        if self.ledger.under_way.pop(PUSHED, None) is not None:
            self._talk.send(Credit(self._token, self._receiver.next_number(), 0))
            self._asked = 0

    def go_on(self) -> None:
        """Fetch again what was lost, and ask for what is next."""
        if self._can_repair and time.monotonic() >= self._not_before:
            self._repair()
        if PUSHED in self.ledger.under_way:
            self._grant()
            return
        size = self._settings.bytes_a_request if self._frame_size else self._layout.nbytes
        while len(self.ledger.under_way) < self._settings.window:
            missing = self.ledger.missing_from(self._asked, size)
            if missing is None:
                return
            self._fetch(*missing, urgent=False)
            self._asked = missing[1]

    def wait(self) -> bool:
        """Wait for bytes; when they fail to come, find out why, and fetch again what was lost.

        Raises:
            DeadlineError: a request has used up its time.
            IntegrityError: a chunk was lost too often.
        """
        seconds = self._settings.probe_after
        if self._can_repair:
            seconds = min(seconds, max(self._not_before - time.monotonic(), 0.0))
        if self._patience.wait(seconds, self._due):
            return True
        if self._can_repair:
            if time.monotonic() >= self._not_before:
                self._repair()
        elif PUSHED in self.ledger.under_way:
            # Whether it was lost, or is not pushed at all: what is asked for can be asked about.
            self.end_push()
            self.go_on()
        else:
            self._talk.send(Probe(self._token, self._receiver.next_number()))
        return False

    def give_up_but(self, waiting: list[int], before: int) -> None:
        """Nothing more will come of requests made before a number, but for those that wait."""
        self.failure = "it was lost on the way"
        for number in [each for each in self.ledger.under_way if each < before]:
            if number not in waiting:
                self.ledger.give_up(number)

    def _grant(self) -> None:
        """Let the sender go on, a request's worth at a time, while it is a window ahead."""
        size = self._settings.bytes_a_request
        arriving = self.ledger.under_way[PUSHED].next
        limit = min(arriving // size * size + self._settings.window * size, self._layout.nbytes)
        if limit > self._asked:
            self._asked = limit
            self._patience.renew()
            self.count += 1
            self._talk.send(Credit(self._token, self._receiver.next_number(), limit))

    @property
    def _can_repair(self) -> int:
        """How many requests for what was lost may be sent now."""
        if not self.ledger.lost:
            return 0
        under_way = sum(request.urgent for request in self.ledger.under_way.values())
        return max(_MOST_REPAIRS_UNDER_WAY - under_way, 0)

    def _repair(self) -> None:
        attempts = 1
        for start, stop, attempt in self.ledger.repairs(
            self._settings.request_size, self._can_repair
        ):
            if attempt > _MOST_REPAIRS:
                raise IntegrityError(
                    f"bytes {start} to {stop} from {self._receiver.peer} (tensor "
                    f"{self._layout.name_at(start)!r}) were fetched {attempt} times in vain: "
                    f"{self.failure}"
                )
            attempts = max(attempts, attempt)
            self.repairs += 1
            self._fetch(start, stop, urgent=True)
        self._not_before = time.monotonic() + _BACKOFF_SECONDS * 2.0 ** (attempts - 1)

    def _fetch(self, start: int, stop: int, *, urgent: bool) -> None:
        number = self._receiver.next_number()
        self.ledger.request(number, start, stop, urgent=urgent)
        self.count += 1
        self._talk.send(Fetch(self._token, number, start, stop, self._frame_size, urgent))

    def _due(self) -> str:
        starts = [request.next for request in self.ledger.under_way.values()]
        if not starts:
            return "anything"
        start = min(starts)
        return f"the bytes from {start} on (tensor {self._layout.name_at(start)!r})"
