"""The requests of a download: for the next bytes, for lost ones, and for more of a push."""

from __future__ import annotations

import time

from flstream.errors import IntegrityError
from flstream.model.layout import Layout
from flstream.streaming.chunk_tracker import ChunkTracker
from flstream.streaming.download_messages import DownloadMessages
from flstream.streaming.receiver import Patience, Receiver, StreamSettings
from flstream.streaming.wire import PUSHED, Credit, Fetch, Probe

# Repairs of one chunk after which the download fails: more failures are not by chance.
_MOST_REPAIRS = 5
# Seconds before the second repair of a chunk; the first is at once, later ones wait twice as long.
_BACKOFF_SECONDS = 0.05
# Most repairs of scattered losses at a time; a sender refuses hundreds of them.
_MOST_REPAIRS_UNDER_WAY = 64


class Requests:
    """The requests of one download.

    Args:
        messages: Messages of the download.
        receiver: Receiving side of the channel.
        token: Token of the ref.
        settings: Sizes, window and timeouts.
        layout: Layout of the body.
        frame_size: Length in bytes of the longest frame, 0 for the whole model in one.
        patience: Time of a request.

    Attributes:
        tracker: State of each chunk.
        count: Number of requests so far.
        repairs: Number of these requests that were for lost bytes.
        failure: Description of how the last chunk to be fetched again was lost.
    """

    def __init__(
        self,
        messages: DownloadMessages,
        receiver: Receiver,
        token: bytes,
        settings: StreamSettings,
        layout: Layout,
        frame_size: int,
        patience: Patience,
    ) -> None:
        self.tracker = ChunkTracker(layout.nbytes, frame_size or layout.nbytes)
        self.count = self.repairs = 0
        self.failure = "nothing came"
        self._messages = messages
        self._receiver = receiver
        self._token = token
        self._settings = settings
        self._layout = layout
        self._frame_size = frame_size
        self._patience = patience
        # Offset up to which the body was requested or, in push mode, granted.
        self._asked = 0
        self._not_before = 0.0

    def expect_eager(self, number: int) -> None:
        """Expect the whole body, which was requested together with the layout under this number."""
        self.tracker.request(number, 0, self._layout.nbytes, urgent=False)
        self.count += 1
        self._asked = self._layout.nbytes

    def expect_push(self, limit: int) -> None:
        """Expect the sender to send by itself, up to ``limit`` before it needs a grant."""
        self._asked = limit
        if self._layout.nbytes:
            self.tracker.request(PUSHED, 0, self._layout.nbytes, urgent=False)

    def end_push(self) -> None:
        """End a push: request what is missing from now on."""
        if self.tracker.under_way.pop(PUSHED, None) is not None:
            self._messages.send(Credit(self._token, self._receiver.next_number(), 0))
            self._asked = 0

    def send_due(self) -> None:
        """Send the requests that are due: for lost bytes, and for the next ones."""
        if self._can_repair and time.monotonic() >= self._not_before:
            self._repair()
        if PUSHED in self.tracker.under_way:
            self._grant()
            return
        size = self._settings.bytes_a_request if self._frame_size else self._layout.nbytes
        while len(self.tracker.under_way) < self._settings.window:
            missing = self.tracker.missing_from(self._asked, size)
            if missing is None:
                return
            self._fetch(*missing, urgent=False)
            self._asked = missing[1]

    def wait(self) -> bool:
        """Wait for bytes; if none come, find out why, and request lost ones again.

        Raises:
            DeadlineError: A request has used up its time.
            IntegrityError: A chunk was lost too often.
        """
        seconds = self._settings.probe_after
        if self._can_repair:
            seconds = min(seconds, max(self._not_before - time.monotonic(), 0.0))
        if self._patience.wait(seconds, self.due):
            return True
        if self._can_repair:
            if time.monotonic() >= self._not_before:
                self._repair()
        elif PUSHED in self.tracker.under_way:
            # The push was lost, or there is none. The state of a request can be probed.
            self.end_push()
            self.send_due()
        else:
            self._messages.send(Probe(self._token, self._receiver.next_number()))
        return False

    def give_up_except(self, waiting: list[int], before: int) -> None:
        """Give up the requests before number ``before``, except those in ``waiting``."""
        self.failure = "it was lost on the way"
        for number in [each for each in self.tracker.under_way if each < before]:
            if number not in waiting:
                self.tracker.give_up(number)

    def _grant(self) -> None:
        """Let the sender continue by a request's worth at a time, to keep it a window ahead."""
        size = self._settings.bytes_a_request
        arriving = self.tracker.under_way[PUSHED].next
        limit = min(arriving // size * size + self._settings.window * size, self._layout.nbytes)
        if limit > self._asked:
            self._asked = limit
            self._patience.renew()
            self.count += 1
            self._messages.send(Credit(self._token, self._receiver.next_number(), limit))

    @property
    def _can_repair(self) -> int:
        """Number of requests for lost bytes that may be sent now."""
        if not self.tracker.lost:
            return 0
        under_way = sum(request.urgent for request in self.tracker.under_way.values())
        return max(_MOST_REPAIRS_UNDER_WAY - under_way, 0)

    def _repair(self) -> None:
        attempts = 1
        for start, stop, attempt in self.tracker.repairs(
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
        self.tracker.request(number, start, stop, urgent=urgent)
        self.count += 1
        self._messages.send(Fetch(self._token, number, start, stop, self._frame_size, urgent))

    def due(self) -> str:
        """Describe the first bytes that have not come, for the message of an error."""
        starts = [request.next for request in self.tracker.under_way.values()]
        if not starts:
            return "anything"
        start = min(starts)
        return f"the bytes from {start} on (tensor {self._layout.name_at(start)!r})"
