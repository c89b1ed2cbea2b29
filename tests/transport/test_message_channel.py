"""Small messages come back as they were; anything else is a typed error that names the peer."""

import socket
from contextlib import closing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.errors import ChannelClosedError, DeadlineError, ProtocolError
from flstream.transport.messages import MessageChannel


class Greeting(msgspec.Struct, tag=True, frozen=True):
    text: str
    numbers: dict[str, float]


class Farewell(msgspec.Struct, tag=True, frozen=True):
    pass


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, closing(MessageChannel(theirs, "server", Greeting | Farewell)) as channel:
        yield ours, channel


@given(st.lists(st.builds(Greeting, st.text(), st.dictionaries(st.text(), st.floats(0, 1)))))
def test_messages_arrive_whole_and_in_order(messages):
    ours, theirs = socket.socketpair()
    sender = MessageChannel(ours, "site-1", Farewell)
    receiver = MessageChannel(theirs, "server", Greeting | Farewell)
    with closing(sender), closing(receiver):
        for message in (*messages, Farewell()):
            sender.send(message)
        assert [receiver.receive(1) for _ in range(len(messages) + 1)] == [*messages, Farewell()]


@pytest.mark.parametrize(
    "payload",
    [
        msgspec.msgpack.encode({"type": "Greeting", "text": "WORD", "numbers": {}}).replace(
            b"WORD", b"\xff\xfe\xfd\xfc"
        ),
        b"\x81\xa1z" + b"\x91" * 100_000 + b"\x00",
        msgspec.msgpack.encode({"type": "Stranger"}),
        b"",
    ],
    ids=["text that is not UTF-8", "arrays without end", "an unknown type", "nothing"],
)
def test_a_message_that_cannot_be_read_is_a_protocol_error(ends, payload):
    ours, theirs = ends
    ours.sendall(len(payload).to_bytes(4, "little") + payload)
    with pytest.raises(ProtocolError, match="server sent an unreadable message"):
        theirs.receive(1)


def test_a_message_that_claims_to_be_huge_is_refused_before_it_is_read(ends):
    ours, theirs = ends
    ours.sendall(b"\xff\xff\xff\x7f")
    with pytest.raises(ProtocolError, match="server sent a message of 2147483647 bytes"):
        theirs.receive(1)


def test_silence_is_a_deadline_error_and_the_end_is_a_closed_channel(ends):
    ours, theirs = ends
    with pytest.raises(DeadlineError, match="server"):
        theirs.receive(0.02)
    ours.close()
    with pytest.raises(ChannelClosedError, match="server"):
        theirs.receive()
