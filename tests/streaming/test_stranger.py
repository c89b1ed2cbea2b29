"""The protocol as its page has it: a receiver that knows nothing of flstream gets what is sent."""

import itertools
import socket
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import packets
import pytest
import stranger
import torch
from harness import Harness
from packets import FRAME, MESSAGE, BrokenError, FailedError, Packet, greeting, message, packed
from stranger import RefusedError, Stranger
from support import as_bytes, every_kind

from flstream.model.dtypes import code_of
from flstream.streaming import Ref, add_payload, add_tensors, listen

SECONDS, SITE, OTHER = 30, "site-1", "site-2"
CHUNK, BLOCK = 4096, 64 << 10
FAR = {"far": torch.arange(20 * CHUNK // 4, dtype=torch.float32)}
STARTS = [*range(0, 20 * CHUNK, CHUNK)]
"""Where the frames of `FAR` begin."""
Change = Callable[[Packet], Packet | None] | None


class Sender(Harness):
    """A service, and strangers that fetch from it."""

    def __init__(self, stack: ExitStack) -> None:
        super().__init__(stack)
        self.listener = stack.enter_context(listen(self.service, "127.0.0.1:0"))
        # What has come to the strangers: the number of the connection, and the first byte.
        self.frames: list[tuple[int, int]] = []

    def stranger(self, site: str = SITE, way: str = "pair", change: Change = None) -> Stranger:
        """A receiver that is connected; `change` gives what comes in the place of a packet."""

        def on_packet(packet: Packet) -> Packet | None:
            if packet.kind != MESSAGE:
                self.frames.append((receiver.connections, packet.start))
            return change(packet) if change is not None else packet

        address, key = self.listener.address, self.listener.admit(site).key
        ways = {"pair": lambda: self.socket(site), "tcp": lambda: stranger.dial(address, key)}
        receiver = Stranger(ways[way], way == "tcp", on_packet)
        self._stack.callback(receiver.close)
        return receiver

    def offer(self, tensors: Mapping[str, torch.Tensor], *sites: str, **options: Any) -> Ref:
        return add_tensors(self.service, tensors, sites or [SITE], **options)

    def far(self, way: str = "pair", change: Change = None) -> tuple[Stranger, Ref]:
        return self.stranger(SITE, way, change), self.offer(FAR)


@pytest.fixture
def sender() -> Iterator[Sender]:
    with ExitStack() as stack:
        yield Sender(stack)


def assert_same(received: dict[str, stranger.Tensor], expected: Mapping[str, torch.Tensor]) -> None:
    bits = [(name, code_of(t, name), tuple(t.shape), as_bytes(t)) for name, t in expected.items()]
    assert [(name, *tensor[:3]) for name, tensor in received.items()] == bits


def nth_frame(*numbers: int) -> Callable[[Packet], bool]:
    count = itertools.count(1)
    return lambda packet: packet.kind != MESSAGE and next(count) in numbers


def damaged(packet: Packet) -> Packet:
    return packet._replace(data=packet.data[:-1] + bytes([packet.data[-1] ^ 1]))


def test_the_stranger_imports_nothing_of_flstream() -> None:
    lines = Path(stranger.__file__).read_text().splitlines()
    assert not [line for line in lines if "import" in line.split() and "flstream" in line]


# What is fetched.
WHOLE = {
    "usual": ({}, 2),
    "small": ({"chunk_size": CHUNK}, 21),
    "in one": ({"chunk_size": 0}, 1),
    "eager": ({"chunk_size": CHUNK, "eager": 1 << 20}, 21),
    "eager in one": ({"chunk_size": 0, "eager": 1 << 20}, 1),
}


@pytest.mark.parametrize("how", WHOLE)
@pytest.mark.parametrize("way", ["pair", "tcp"])
def test_a_model_arrives_to_the_bit_in_order(sender: Sender, way: str, how: str) -> None:
    shared, (options, count) = torch.arange(6.0), WHOLE[how]
    tensors = {"tied": shared, **every_kind(), "again": shared, **FAR, "a": shared}
    receiver = sender.stranger(way=way)
    for state in (tensors, {"none": torch.empty(0, 3)}):
        ref = sender.offer(state)
        assert_same(receiver.download(ref.token, **options), state)
        assert ref.wait(SECONDS).ok
    fetches = [] if how.startswith("eager") else ["Fetch"]
    assert receiver.asked == ["Open", *fetches, "Close", "Open", "Close"]
    assert len(sender.frames) == count


def test_ranges_are_fetched_alone_in_frames_that_the_sender_allows(sender: Sender) -> None:
    receiver = sender.stranger()
    ref = sender.offer(FAR, max_chunk_size=CHUNK)
    for eager in (0, 1 << 20):
        body = receiver.open(ref.token, chunk_size=0, eager=eager)
    body.missing = [(2 * CHUNK - 2, 4 * CHUNK), (1, 18)]
    receiver.fill()
    assert [start for _, start in sender.frames] == [2 * CHUNK - 2, 3 * CHUNK - 2, 4 * CHUNK - 2, 1]
    expected = bytearray(as_bytes(FAR["far"]))
    expected[0:1], expected[18 : 2 * CHUNK - 2] = bytes(1), bytes(2 * CHUNK - 20)
    assert body.data == expected[: 4 * CHUNK] + bytes(16 * CHUNK)


def test_refs_are_found_by_labels_and_stay_on_offer(sender: Sender) -> None:
    receiver = sender.stranger()
    sender.socket(OTHER)
    first = sender.offer(FAR, round=1, tags=["trained", "x"])
    sender.offer(FAR, SITE, OTHER, round=1, tags=["x", "trained"])
    report = sender.offer(FAR, round=1, report=True)
    sender.offer(FAR, OTHER, round=2)
    labels = [(1, ["x", "trained"], False), (1, ["x"], False), (1, [], True), (2, [], False)]
    specs = [("far", *label) for label in labels] + [("near", *labels[0])]
    for _ in range(2):
        tokens = receiver.call("Find", specs=specs)["tokens"]
        assert tokens == [first.token, b"", report.token, b"", b""]
        receiver.open(first.token)
        receiver.fill()
    assert first.wait(0).status == "waiting"


def test_a_payload_arrives_with_all_that_it_holds(sender: Sender) -> None:
    tensor, array = torch.arange(3, dtype=torch.bfloat16), np.arange(6).reshape(2, 3)
    plain = {
        "list": [1, -2.5, None, True, "text", b"\0bytes", (), [], {}],
        "bounds": [2**63 - 1, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 2**100, -(2**100)],
        "sets": [{2.5}, {b"4"}, frozenset({(1, 2)}), set(), complex("inf+1j")],
        -5: {"a": OrderedDict([("z", 1), ("a", {2**40: 5e-324})])},
    }
    receiver = sender.stranger()
    value = plain | {"t": (tensor, [tensor, array, torch.Size([2, 3]), np.float16(0.5)])}
    ref = add_payload(sender.service, value, [SITE])
    received = stranger.payload_of(receiver.download(ref.token))
    shared = stranger.Tensor("BF16", (3,), as_bytes(tensor), 'payload["t"][0]', "pytorch")
    single = stranger.Tensor("I64", (2, 3), array.tobytes(), 'payload["t"][1][1]', "numpy")
    expected = plain | {"t": (shared, [shared, single, (2, 3), ("F16", b"\0\x38")])}
    assert repr(received) == repr(expected)  # Types as well, and the order of keys.


def test_half_a_file_is_found_by_its_digests_and_the_rest_fetched(sender: Sender) -> None:
    tensors = {"w": torch.arange(10 * BLOCK // 4 + 5, dtype=torch.float32)}
    had = bytearray(as_bytes(tensors["w"])[: 7 * BLOCK + 99])
    had[3 * BLOCK + 1] ^= 1
    receiver, ref = sender.stranger(), sender.offer(tensors)
    assert_same(receiver.download(ref.token, had=bytes(had), eager=1 << 30), tensors)
    assert [start // BLOCK for _, start in sender.frames] == [3, 7, 8, 9, 10]


# What goes wrong.
def test_a_damaged_frame_is_fetched_again_alone_and_not_without_end(sender: Sender) -> None:
    strikes, always = nth_frame(3, 9, 20, 22), nth_frame(3, *range(21, 26))
    receiver, ref = sender.far(change=lambda it: damaged(it) if strikes(it) else it)
    assert_same(receiver.download(ref.token, chunk_size=CHUNK), FAR)
    again = [STARTS[place] for place in (2, 8, 19, 8)]
    receiver, ref = sender.far(change=lambda it: damaged(it) if always(it) else it)
    with pytest.raises(FailedError, match="damaged again"):
        receiver.download(ref.token, chunk_size=CHUNK)
    assert "damaged again" in ref.wait(SECONDS).reason
    assert [at for _, at in sender.frames] == STARTS + again + STARTS + [STARTS[2]] * 5


def test_what_was_lost_is_found_by_a_ping(sender: Sender, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stranger, "PING_AFTER", 0.05)
    lost = nth_frame(19, 20)
    receiver, ref = sender.far(change=lambda packet: None if lost(packet) else packet)
    assert_same(receiver.download(ref.token, chunk_size=CHUNK), FAR)
    assert receiver.asked == ["Open", "Fetch", "Ping", "Fetch", "Close"]
    assert [start for _, start in sender.frames] == STARTS + STARTS[18:]


@pytest.mark.parametrize("eager", [0, 1 << 20])
def test_after_a_break_only_what_is_missing_comes_again(sender: Sender, eager: int) -> None:
    breaks = nth_frame(8, 17)

    def cut(packet: Packet) -> Packet:
        if breaks(packet):
            raise BrokenError
        return packet

    receiver, ref = sender.far("tcp", cut)
    assert_same(receiver.download(ref.token, chunk_size=CHUNK, eager=eager), FAR)
    assert ref.wait(SECONDS).ok
    assert (receiver.connections, receiver.asked.count("Open")) == (3, 1)
    assert (sender.frames.pop(16), sender.frames.pop(7)) == ((2, STARTS[15]), (1, STARTS[7]))
    assert sender.frames == [(1 + (at >= 7) + (at >= 15), STARTS[at]) for at in range(20)]


def test_a_request_ends_the_one_before_it(sender: Sender) -> None:
    size = 64 << 20  # More than the sockets hold.
    receiver, small = sender.far()
    ref = sender.offer({"w": torch.zeros(size, dtype=torch.uint8)})
    receiver.open(ref.token, eager=size - 1)
    assert receiver.call("Ping", token=ref.token)["answering"] == 0
    for name in ("Open", "Fetch", "Close"):
        fetch = receiver.ask("Fetch", token=ref.token, ranges=[(0, size)], chunk_size=BLOCK)
        assert receiver.call("Ping", token=ref.token)["answering"] == fetch
        receiver.ask(name, token=small.token, ranges=[(0, 16)], chunk_size=16, ok=True)
        assert receiver.call("Ping", token=ref.token)["answering"] in (0, receiver.number - 1)
    assert len(sender.frames) < 1500  # Of 3,072.


def test_a_ref_settles_once_and_what_comes_late_is_refused(sender: Sender) -> None:
    receiver, other = sender.stranger(), sender.stranger(OTHER)
    token = (ref := sender.offer(FAR, SITE, OTHER)).token
    for ok in (True, False, True):  # The first word counts.
        receiver.call("Close", token=token, ok=ok, reason="of another mind")
        receiver.call("Ping", token=token)
    other.call("Close", token=token, ok=False, reason="no\x1b[2J")
    outcome = ref.wait(SECONDS)
    assert (outcome.status, outcome.reason) == ("aborted", "site-2: no\\x1b[2J")
    for name in ("Close", "Ping"):
        receiver.call(name, token=token, ok=True)
    for late, name in ((receiver, "Open"), (other, "Close")):
        with pytest.raises(RefusedError, match="settled"):
            late.call(name, token=token, ok=True)
    ref = sender.offer(FAR)
    for strange in (bytes(range(16)), ref.token):
        for name in ("Open", "Ping", "Close"):
            with pytest.raises(RefusedError, match="not on offer"):
                other.call(name, token=strange, ok=True)
        other.call("Close", token=strange, ok=False)
    assert ref.wait(0).status == "waiting"
    assert_same(receiver.download(ref.token), FAR)


@pytest.mark.parametrize("name", ["Ping", "Close"])
def test_a_change_is_named_to_who_pings_or_closes(sender: Sender, name: str) -> None:
    receiver, tensors = sender.stranger(), {"far": FAR["far"].clone()}
    ref = sender.offer(tensors)
    receiver.open(ref.token)
    tensors["far"].add_(1)
    with pytest.raises(RefusedError, match="'far'"):
        receiver.call(name, token=ref.token, ok=True)
    assert name == "Ping" or "'far'" in ref.wait(SECONDS).reason


def test_beats_and_more_greetings_are_passed_over_and_numbers_begin_again(sender: Sender) -> None:
    receiver, ref = sender.far("tcp")
    receiver.call("Ping", token=ref.token)
    receiver.send(greeting() + message("Ping", 0, token=bytes(16)))
    receiver.number = stranger.LAST_NUMBER - 1  # After which comes 1 again.
    assert_same(receiver.download(ref.token), FAR)
    assert (receiver.connections, receiver.number) == (1, 2)


# Hostile receivers.
HELLO, RANGE = greeting(), {"token": bytes(16), "chunk_size": 16}
PING = message("Ping", 7, token=bytes(16))
CLOSED = {
    "version 2": b"FLST\2\1\0\0" + bytes(56) + msgspec.msgpack.encode({"type": "Hello"}),
    "a later version": greeting(version=4),
    "no greeting": PING,
    "noise": bytes(range(256)) * 16,
    "a damaged header": HELLO + PING[:12] + b"\1" + PING[13:],
    "a damaged message": HELLO + PING[:-1] + bytes([PING[-1] ^ 1]),
    "a frame": HELLO + packed(FRAME, 7, 0, PING[36:-8]),
    "a kind that is none": HELLO + packed(4, 7, 0, PING[36:-8]),
    "a message of a sender": HELLO + message("Pong", 1),
    "a missing field": HELLO + message("Open", 1),
    "a long message": HELLO + message("Ping", 1, **RANGE, x=bytes(1 << 20)),
    "many specs": HELLO + message("Find", 1, specs=[("w", 0, [], False)] * 1025),
    "many ranges": HELLO + message("Fetch", 1, **RANGE, ranges=[(0, 16)] * 32_769),
    "a beat that opens": HELLO + message("Open", 0, **RANGE),
}


@pytest.mark.parametrize("case", CLOSED)
def test_who_breaks_the_protocol_loses_this_connection_alone(sender: Sender, case: str) -> None:
    receiver, ref = sender.far()
    sock = sender.socket(SITE)
    with suppress(BrokenError, ConnectionError):  # Where it has not read all of that.
        sock.sendall(CLOSED[case])
        while True:
            assert packets.read_packet(sock).message["type"] == "Hello"
    assert_same(receiver.download(ref.token), FAR)


def test_what_cannot_be_fetched_is_refused(sender: Sender) -> None:
    receiver, ref = sender.far()
    spans = (16, 16), (16, 0), (-16, 16), (0, 20 * CHUNK + 1), (0, 2**63)
    sizes = {17: "of 16", -16: "of 16", 1 << 31: "more than 1073741824"}
    cases = [(at, 16, "not a range") for at in spans]
    for span, size, reason in [*cases, *(((32, 64), *size) for size in sizes.items())]:
        with pytest.raises(RefusedError, match=reason):
            receiver.call("Fetch", token=ref.token, ranges=[(0, 16), span], chunk_size=size)
    receiver.open(ref.token, chunk_size=17, eager=1 << 62)  # Nor with the layout.
    with pytest.raises(RefusedError, match="of 16"):
        receiver.fill()
    assert not sender.frames
    assert_same(receiver.download(ref.token), FAR)


def test_who_cannot_prove_a_key_for_this_is_closed_without_a_word(sender: Sender) -> None:
    key, place = sender.listener.admit(SITE).key, sender.listener.address
    for wrong in ((bytes(32),), (key, b"worker")):
        with pytest.raises(BrokenError):
            stranger.dial(place, *wrong)
    own, first = stranger.introduction(key), b""
    for replayed in (False, True):
        with socket.create_connection(("127.0.0.1", int(place[10:])), SECONDS) as sock:
            sock.sendall(own)
            theirs = packets.exactly(sock, 32)
            first = first or stranger.proof(key, b"dials", own, theirs)
            sock.sendall(first)
            expected = stranger.proof(key, b"accepts", own, theirs)
            assert sock.recv(32) == (b"" if replayed else expected)
    assert sender.listener.strangers == 3
