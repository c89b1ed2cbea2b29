"""The requests of a download: for the next bytes, and for damaged ones."""

from __future__ import annotations

from flstream.errors import IntegrityError
from flstream.model.layout import Layout
from flstream.streaming.chunk_tracker import ChunkTracker
from flstream.streaming.exchange import Exchange
from flstream.streaming.receiver import StreamSettings
from flstream.streaming.wire import Fetch

# Times that one chunk is fetched again before the download fails: more failures are not by chance.
_MOST_REPAIRS = 5
# Most damaged chunks that are asked for at a time; a sender refuses hundreds of requests.
_MOST_REPAIRS_UNDER_WAY = 64


class Requests:
    """The requests of one download.

    Args:
        exchange: Messages of the download.
        settings: Sizes, window and timeouts.
        layout: Layout of the body.
        frame_size: Length in bytes of the longest frame, 0 for the whole model in one.

    Attributes:
        tracker: State of each chunk.
        count: Number of requests so far.
        repairs: Number of these requests that were for bytes that had come before or been lost.
    """

    def __init__(
        self, exchange: Exchange, settings: StreamSettings, layout: Layout, frame_size: int
    ) -> None:
        self.tracker = ChunkTracker(layout.nbytes, frame_size or layout.nbytes)
        self.count = self.repairs = 0
        self._exchange = exchange
        self._settings = settings
        self._layout = layout
        self._frame_size = frame_size
        # Offset up to which the body was requested, or comes without.
        self._asked = 0
        exchange.due = self._due
        exchange.pending = self.tracker.under_way.keys

    def expect(self, number: int, stop: int) -> None:
        """Expect the body up to an offset without a request of its own.

        Args:
            number: Number under which it comes: of the request for the layout, or of a push.
            stop: The offset, at most the end of the body.
        """
        self._asked = stop
        if stop:
            self.tracker.request(number, 0, stop, urgent=False)
            self.count += 1

    def restart(self) -> None:
        """Request anew what is missing: nothing more will come of earlier requests."""
        self.repairs += len(self.tracker.under_way)
        self.forget()

    def forget(self) -> None:
        """Take nothing more of what was requested or is pushed."""
        self.tracker.restart()
        self._asked = 0

    def send_due(self) -> None:
        """Send the requests that are due: for damaged chunks, and for the next ones."""
        tracker = self.tracker
        while tracker.damaged and self._repairs_under_way < _MOST_REPAIRS_UNDER_WAY:
            start = tracker.damaged.popleft()
            self.repairs += 1
            self._fetch(start, tracker.stop_of(start), urgent=True)
        size = self._settings.bytes_a_request if self._frame_size else self._layout.nbytes
        while len(tracker.under_way) < self._settings.window:
            missing = tracker.missing_from(self._asked, size)
            if missing is None:
                return
            self._fetch(*missing, urgent=False)
            self._asked = missing[1]

    def fetch_again(self, start: int, *, is_damaged: bool = True) -> None:
        """Have a chunk fetched again.

        Args:
            start: Offset in bytes of the chunk.
            is_damaged: Whether it came damaged, which may not happen often.

        Raises:
            IntegrityError: It came damaged too often.
        """
        attempts = self.tracker.damage(start)
        if is_damaged and attempts > _MOST_REPAIRS:
            raise IntegrityError(
                f"bytes {start} to {self.tracker.stop_of(start)} from {self._exchange.peer} "
                f"(tensor {self._layout.name_at(start)!r}) came {attempts} times, and never "
                "matched their digest; the sender's memory, or what it offers, is being changed"
            )

    @property
    def _repairs_under_way(self) -> int:
        return sum(request.urgent for request in self.tracker.under_way.values())

    def _fetch(self, start: int, stop: int, *, urgent: bool) -> None:
        number = self._exchange.next_number()
        self.tracker.request(number, start, stop, urgent=urgent)
        self.count += 1
        token = self._exchange.token
        self._exchange.send(Fetch(token, number, start, stop, self._frame_size, urgent))

    def _due(self) -> str:
        """Describe the first bytes that have not come, for the message of an error."""
        starts = [request.next for request in self.tracker.under_way.values()]
        if not starts:
            return "anything"
        start = min(starts)
        return f"the bytes from {start} on (tensor {self._layout.name_at(start)!r})"
