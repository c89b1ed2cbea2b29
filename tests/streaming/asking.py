"""Requests made one by one, without a download around them, and what the service says."""

import secrets

from harness import Harness
from support import tensor

from flstream.model.memory import MemoryBody
from flstream.streaming.refs import Ref
from flstream.streaming.wire import (
    MESSAGE,
    REPLIES,
    VERSION,
    Header,
    Hello,
    PacketReader,
    Refused,
    Reply,
    Request,
    decode,
    pack_message,
)
from flstream.transport.channel import Channel, Deadline

MODEL = {"w": tensor("F32", (300, 100)), "b": tensor("F16", (5,))}
NBYTES = 120_010


def offer(harness: Harness, *receivers: str) -> Ref:
    return harness.service.offer(MemoryBody.of(MODEL), receivers or ["site-1"])


class Asker:
    """A receiver's end of a channel on which a test sends and reads packets one by one."""

    def __init__(self, channel: Channel, greeting: bytes | None = None) -> None:
        self.packets = PacketReader(channel, "server")
        self.channel = channel
        self._number = 0
        self.send_bytes(greeting or pack_message(Hello(VERSION, secrets.token_bytes(16))))

    def next_number(self) -> int:
        self._number += 1
        return self._number

    def send(self, *requests: Request) -> None:
        self.send_bytes(b"".join(map(pack_message, requests)))

    def send_bytes(self, data: bytes | bytearray) -> None:
        self.channel.send([memoryview(data)], Deadline(10))

    def header(self) -> Header:
        """The header of the service's next packet; what is left of the one before is skipped."""
        return self.packets.header(self.wait)

    def payload(self, header: Header) -> bytearray:
        """The payload of a packet."""
        data = bytearray(header.length)
        assert self.packets.payload([memoryview(data)], self.wait)
        return data

    def wait(self) -> None:
        assert self.channel.wait(Deadline(10)), "the service says nothing"


def reply_to(asker: Asker, number: int) -> Reply:
    """The service's message about a request, past all that comes before it."""
    while True:
        header = asker.header()
        if header.kind == MESSAGE and header.number == number:
            return decode(REPLIES, asker.payload(header), "server")


def ask(asker: Asker, request: Request) -> Reply:
    """Send a request, and get the service's message about it."""
    asker.send(request)
    return reply_to(asker, request.number)


def refusal(asker: Asker, request: Request) -> str:
    """The reason that the service gives for not answering a request."""
    refused = ask(asker, request)
    assert isinstance(refused, Refused)
    return refused.reason
