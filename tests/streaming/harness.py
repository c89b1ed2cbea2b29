"""A service with receivers at pipes: all in one process, but for the tests that need a death."""

import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace

from flstream.model.memory import MemoryBody
from flstream.streaming.download import download
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.service import DownloadService
from flstream.streaming.wire import (
    ENCODED,
    FRAME,
    HEADER_BYTES,
    Header,
    Hello,
    Reply,
    Request,
    decode_reply,
    decode_request,
)
from flstream.transport.channel import AbortSignal, Channel, Deadline
from flstream.transport.sockets import SocketChannel, pipe

QUICK = StreamSettings(
    chunk_size=4096, request_size=16384, window=2, request_timeout=30, ping_after=0.05
)
IMPATIENT = replace(QUICK, request_timeout=0.2)

OnFrame = Callable[[Header, bytearray], None]
OnRequest = Callable[[Request, bytearray], None]
OnReply = Callable[[Reply, bytearray], None]


def leave(_what: object, _packet: bytearray) -> None:
    """Let a packet pass as it is."""


def flip(packet: bytearray, place: int = HEADER_BYTES) -> None:
    """Flip a bit; by default in the first byte of the payload."""
    packet[place] ^= 4


class Watch:
    """Notes every packet between a receiver and a service, and lets a test change it on its way.

    Each function gets what a packet says, and the packet itself to be changed in place: damaged,
    cut, cleared (and so lost), repeated, or preceded by one that was lost before.

    Attributes:
        frames: headers of the frames that the sender sent.
        requests: what the receiver sent.
        connections: number of connections so far.
    """

    def __init__(
        self, on_frame: OnFrame = leave, on_request: OnRequest = leave, on_reply: OnReply = leave
    ) -> None:
        self.on_frame = on_frame
        self.on_request = on_request
        self.on_reply = on_reply
        self.frames: list[Header] = []
        self.requests: list[Request] = []
        self.connections = 0


class WatchedChannel:
    """A receiver's channel whose packets are noted."""

    def __init__(self, inner: Channel, watch: Watch) -> None:
        watch.connections += 1
        self.beats = False  # a test would see the beats, too
        self._inner = inner
        self._watch = watch
        self._arriving = bytearray()
        self._arrived = bytearray()

    def fileno(self) -> int:
        return self._inner.fileno()

    def send_some(self, views: Sequence[memoryview], *, more: bool = False) -> int:
        raise AssertionError("a receiver sends its requests whole")

    def receive_some(self, views: Sequence[memoryview]) -> int:
        while not self._arrived:
            piece = memoryview(bytearray(1 << 16))
            count = self._inner.receive_some([piece])
            if not count:
                return 0
            self._arriving += piece[:count]
            self._pass_on()
        done = 0
        for view in views:
            piece = self._arrived[done : done + len(view)]
            view[: len(piece)] = piece
            done += len(piece)
        del self._arrived[:done]
        return done

    def send(self, views: Sequence[memoryview], deadline: Deadline) -> None:
        data = bytearray(b"".join(views))
        while data:
            packet = data[: HEADER_BYTES + Header.parse(data[:HEADER_BYTES], "receiver").length]
            del data[: len(packet)]
            request = decode_request(bytes(packet[HEADER_BYTES:]), "receiver")
            if not isinstance(request, Hello):
                self._watch.requests.append(request)
                self._watch.on_request(request, packet)
            self._inner.send([memoryview(packet)], deadline)

    def wait(self, seconds: float, abort: AbortSignal | None = None) -> bool:
        return bool(self._arrived) or self._inner.wait(seconds, abort)

    def receive(
        self, views: Sequence[memoryview], deadline: Deadline, abort: AbortSignal | None = None
    ) -> None:
        raise AssertionError("a receiver takes what is there, and waits for more")

    def close(self) -> None:
        self._inner.close()

    def _pass_on(self) -> None:
        """Let every whole packet through. A service sends nothing but sound ones."""
        while len(self._arriving) >= HEADER_BYTES:
            header = Header.parse(self._arriving[:HEADER_BYTES], "sender")
            size = HEADER_BYTES + header.length
            if len(self._arriving) < size:
                break
            packet = self._arriving[:size]
            del self._arriving[:size]
            if header.kind in (FRAME, ENCODED):
                self._watch.frames.append(header)
                self._watch.on_frame(header, packet)
            else:
                reply = decode_reply(bytes(packet[HEADER_BYTES:]), "sender")
                if not isinstance(reply, Hello):
                    self._watch.on_reply(reply, packet)
            self._arrived += packet


class Harness:
    """A service, and receivers that are connected to it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.service = stack.enter_context(DownloadService())

    def channel(self, name: str = "site-1") -> Channel:
        """The receiver's end of a pipe whose other end the service serves."""
        ours, theirs = pipe("server", name, lends=True)
        self._stack.enter_context(closing(theirs))
        self.service.attach(ours, name)
        return theirs

    def pipe_to(self, name: str) -> socket.socket:
        """The end of such a pipe that another process is to hold."""
        ours, theirs = socket.socketpair()
        self._stack.enter_context(closing(theirs))
        self.service.attach(SocketChannel(ours, name, lends=True), name)
        return theirs

    def receiver(self, name: str = "site-1", abort: AbortSignal | None = None) -> Receiver:
        return Receiver(self.channel(name), "server", abort)

    def watched(
        self,
        on_frame: OnFrame = leave,
        on_request: OnRequest = leave,
        on_reply: OnReply = leave,
        *,
        returns: bool = True,
    ) -> tuple[Receiver, Watch]:
        """A receiver whose packets are noted, and which comes back when its connection breaks."""
        watch = Watch(on_frame, on_request, on_reply)

        def connect() -> WatchedChannel:
            ours, theirs = socket.socketpair()
            # The service keeps a receiver for a while that may come back.
            self.service.attach(SocketChannel(ours, "site-1", beats=returns), "site-1")
            channel = SocketChannel(theirs, "server")
            self._stack.enter_context(closing(channel))
            return WatchedChannel(channel, watch)

        return Receiver(connect(), "server", connect=connect if returns else None), watch


@contextmanager
def open_harness() -> Iterator[Harness]:
    """A harness that is torn down at the end of the block: property tests need one per example."""
    with ExitStack() as stack:
        yield Harness(stack)


def fetch(receiver: Receiver, token: bytes, settings: StreamSettings = QUICK) -> MemoryBody:
    """Download into new memory."""
    return download(receiver, token, settings, MemoryBody.allocate)[0]
