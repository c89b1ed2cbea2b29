"""A service with receivers at pipes, all in one process."""

import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import msgspec
from packet_relay import Relay, Way
from packets import MESSAGE, Packet
from support import tensor

from flstream.model.copy import copy
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody, Params
from flstream.streaming import Channel, DownloadService, Receiver, Ref, StreamSettings
from flstream.streaming.download import RemoteSource
from flstream.streaming.wire import Reply, Request
from flstream.transport.channel import pipe

QUICK = StreamSettings(chunk_size=4096, request_timeout=30, ping_after=0.05)

OnFrame = Callable[[int, bytearray], None]
OnReply = Callable[[Reply, bytearray], None]


def leave(_what: object, _packet: bytearray) -> None:
    """Pass a packet unchanged."""


class Watch:
    """Notes every packet between a receiver and a service, and lets a test change it on its way.

    Each function gets the number of a frame, from 1 up, or what a reply says; and the packet to be
    changed in place: damaged, or cleared and so lost.
    """

    def __init__(self, on_frame: OnFrame, on_reply: OnReply) -> None:
        self.on_frame = on_frame
        self.on_reply = on_reply
        self.frames: list[Packet] = []
        self.requests: list[Request] = []
        self.connections = 0

    def __call__(self, way: Way, packet: Packet) -> list[bytes]:
        data = bytearray(packet.data)
        if packet.kind != MESSAGE:
            self.frames.append(packet)
            self.on_frame(len(self.frames), data)
        elif packet.message["type"] == "Hello":
            pass
        elif way == "up":
            self.requests.append(msgspec.msgpack.decode(packet.payload, type=Request))
        else:
            self.on_reply(msgspec.msgpack.decode(packet.payload, type=Reply), data)
        return [bytes(data)]


MODEL = {"large": tensor("F32", (300, 100)), "small": tensor("F16", (5,)), "flag": tensor("U8", ())}


class Slow:
    """A source that takes its time, and says that it was changed in a way of its own."""

    layout = Layout.of([("w", "U8", (2 << 20,))])

    def __init__(self, seconds=0.0, change=None):
        self._seconds, self._change = seconds, change

    def read(self, start, stop, into):
        time.sleep(self._seconds)
        into[:] = bytes(len(into))

    def changed(self):
        if isinstance(self._change, Exception):
            raise self._change
        return self._change


class Harness:
    """A service, and receivers that are connected to it."""

    def __init__(self, stack: ExitStack) -> None:
        self._stack = stack
        self.service = stack.enter_context(DownloadService())

    def offer(self, tensors: Params, *receivers: str, **options: Any) -> Ref:
        return self.service.offer(MemoryBody.of(tensors), receivers or ["site-1"], **options)

    def channel(self, name: str = "site-1", *, direct: bool = False) -> Channel:
        """The receiver's end of a pipe whose other end the service serves."""
        ours, theirs = pipe("server", name, direct=direct)
        self._stack.enter_context(closing(theirs))
        self.service.attach(ours, name)
        return theirs

    def socket(self, name: str) -> socket.socket:
        """The other end of a channel, on which anything may be said."""
        ours, theirs = socket.socketpair()
        theirs.settimeout(30)
        self.service.attach(Channel(ours, name), name)
        return self._stack.enter_context(theirs)

    def receiver(self, name: str = "site-1", *, direct: bool = False) -> Receiver:
        return Receiver(self.channel(name, direct=direct), "server")

    def watched(self, on_frame: OnFrame = leave, *, on_reply: OnReply = leave, returns=True):
        """A receiver whose packets are noted, and which comes back when its connection breaks."""
        watch = Watch(on_frame, on_reply)

        def connect() -> Channel:
            watch.connections += 1
            serves, far = socket.socketpair()
            near, ours = socket.socketpair()
            # The service keeps a receiver for a while that may come back.
            self.service.attach(Channel(serves, "site-1", beats=returns), "site-1")
            self._stack.callback(Relay(near, far, watch).close)
            return self._stack.enter_context(closing(Channel(ours, "server")))

        return Receiver(connect(), "server", connect=connect if returns else None), watch

    def fetched(self, source, settings=QUICK, *, receiver=None, encoder=None, opening=None, **how):
        """Offer a body and download it; return the sink, the cost and the ref, which is settled."""
        ref = self.service.offer(source, ["site-1"], encoder=encoder)
        remote = RemoteSource(receiver or self.receiver(), ref.token, settings, **opening or {})
        sink = received(remote, **how)
        assert ref.wait(30).ok
        return sink, remote.cost, ref


@contextmanager
def open_harness() -> Iterator[Harness]:
    """A harness that is torn down at the end of the block: property tests need one per example."""
    with ExitStack() as stack:
        yield Harness(stack)


def received(remote, sink_for=MemoryBody.allocate, held=None, decode=None, decoder_for=None, **how):
    """Receive a ref's body into a sink, to the end of its download."""
    with remote:
        if decoder_for is not None:
            remote.decoder = decoder_for(remote.layout)
        body = remote if decode is None else decode(remote)
        sink = sink_for(body.layout)
        if held is not None:
            remote.reuse(held)
        if decode is None:
            remote.deliver(sink, **how)
        else:
            copy(body, sink)
    return sink


def fetch(receiver: Receiver, token: bytes, settings: StreamSettings = QUICK) -> MemoryBody:
    return received(RemoteSource(receiver, token, settings))
