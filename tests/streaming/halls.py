"""A service with receivers at pipes: all in one process, but for the tests that need a death."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager

from flstream.model.memory import MemoryBody
from flstream.streaming.download import Receiver, StreamSettings, download
from flstream.streaming.service import DownloadService
from flstream.streaming.wire import FRAME, HEADER_BYTES, Header
from flstream.transport.channel import AbortSignal, Channel, Deadline
from flstream.transport.pipe import pipe

QUICK = StreamSettings(chunk_size=4096, request_size=16384, window=2, request_timeout=30)


class WatchedChannel:
    """A channel that notes the header of every frame and shows its bytes to ``on_frame``."""

    def __init__(
        self, inner: Channel, on_frame: Callable[[Header, Sequence[memoryview]], None]
    ) -> None:
        self._inner = inner
        self._on_frame = on_frame
        self._due: Header | None = None
        self.frames: list[Header] = []

    def fileno(self) -> int:
        return self._inner.fileno()

    def send_some(self, views: Sequence[memoryview]) -> int:
        return self._inner.send_some(views)

    def receive_some(self, views: Sequence[memoryview]) -> int:
        return self._inner.receive_some(views)

    def send(self, views: Sequence[memoryview], deadline: Deadline) -> None:
        self._inner.send(views, deadline)

    def receive(
        self, views: Sequence[memoryview], deadline: Deadline, abort: AbortSignal | None = None
    ) -> None:
        self._inner.receive(views, deadline, abort)
        if self._due is not None:
            self._on_frame(self._due, views)
            self._due = None
        elif sum(map(len, views)) == HEADER_BYTES:
            header = Header.unpack(b"".join(views), "peer")
            if header.kind == FRAME:
                self.frames.append(header)
                self._due = header

    def close(self) -> None:
        self._inner.close()


class Hall:
    """A service, and receivers that are connected to it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.service = stack.enter_context(DownloadService())

    def channel(self, name: str = "site-1") -> Channel:
        """The receiver's end of a pipe whose other end the service serves."""
        ours, theirs = pipe("server", name)
        self._stack.enter_context(closing(theirs))
        self.service.attach(ours, name)
        return theirs

    def receiver(self, name: str = "site-1", abort: AbortSignal | None = None) -> Receiver:
        return Receiver(self.channel(name), "server", abort)

    def watched(
        self, on_frame: Callable[[Header, Sequence[memoryview]], None] = lambda *_: None
    ) -> tuple[Receiver, WatchedChannel]:
        channel = WatchedChannel(self.channel(), on_frame)
        return Receiver(channel, "server"), channel


@contextmanager
def open_hall() -> Iterator[Hall]:
    """A hall that is torn down at the end of the block: property tests need one per example."""
    with ExitStack() as stack:
        yield Hall(stack)


def fetch(receiver: Receiver, token: bytes, settings: StreamSettings = QUICK) -> MemoryBody:
    """Download into new memory."""
    return download(receiver, token, settings, MemoryBody.allocate)[0]
