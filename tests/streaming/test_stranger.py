"""The protocol as its page has it: a receiver that knows nothing of flstream gets what is sent."""

import ast
import io
import json
import socket
import sys
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, redirect_stderr, redirect_stdout, suppress
from functools import cached_property
from pathlib import Path
from threading import Thread
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pytest
import stranger
import torch
from packet_relay import CutError, Passing, Relay
from safetensors.torch import save_file
from stranger import FRAME, NOBODY, Packet, Tensor
from support import as_bytes, every_kind

from flstream.model.dtypes import code_of
from flstream.streaming import (
    DownloadService,
    Ref,
    SocketChannel,
    TcpListener,
    add_file,
    add_payload,
    add_tensors,
    listen,
)

SECONDS = 30
CHUNK = 4096
SIZES = ("--chunk-size", str(CHUNK), "--request-size", str(2 * CHUNK), "--eager", "0")
SITE = "site-1"
FAR = {"far": torch.arange(20 * CHUNK // 4, dtype=torch.float32)}
"""A body of 20 chunks."""

Change = Callable[[int, Packet, bytes], bytes]


class Told(NamedTuple):
    """What a stranger has said: its exit status, what it saw, and why it failed."""

    status: int
    seen: dict[str, object]
    reason: str


def told(*arguments: object) -> Told:
    """Have a stranger do something in this process, of which it knows nothing either."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        status = stranger.main([*map(str, arguments)])
    return Told(status, json.loads(out.getvalue() or "{}"), err.getvalue())


class Tap:
    """Something between strangers and their senders, which sees and changes what they send.

    Args:
        change: Returns what becomes of the bytes of a packet: told the connection's number, from 1
            on. Less than it had is the last of the connection.
    """

    def __init__(self, change: Change | None = None) -> None:
        self.change = change or (lambda connection, packet, raw: raw)
        self.log: list[tuple[int, str, Packet]] = []
        self.relays: list[Relay] = []

    def all(self, name: str, connection: int | None = None) -> list[Packet]:
        """The frames that were sent, or one kind of message."""
        return [p for c, n, p in self.log if n == name and connection in (None, c)]

    def join(self, receiver: socket.socket, sender: socket.socket, *, has_proofs: bool) -> None:
        connection = len(self.relays) + 1

        def on_packet(passing: Passing) -> list[bytes]:
            raw = passing.data
            packet = stranger.read_packet(io.BytesIO(raw).read, 1 << 30)
            self.log.append((connection, named(packet), packet))
            changed = self.change(connection, packet, raw)
            if len(changed) < len(raw):
                raise CutError(changed)
            return [changed]

        self.relays.append(Relay(receiver, sender, on_packet, has_handshake=has_proofs))

    def pair(self, service: DownloadService, site: str) -> socket.socket:
        """Serve a pair through this, and return the stranger's end."""
        near, receiver = socket.socketpair()
        far, sender = socket.socketpair()
        service.attach(SocketChannel(far, site), site)
        self.join(receiver, sender, has_proofs=False)
        return near

    def listen(self, address: str) -> str:
        """Pass connections over TCP on, and return the address for them."""
        self.listener = socket.create_server(("127.0.0.1", 0))
        host, _, port = address.rpartition(":")

        def accept() -> None:
            with suppress(OSError):
                while True:
                    receiver = self.listener.accept()[0]
                    sender = socket.create_connection((host, int(port)))
                    self.join(receiver, sender, has_proofs=True)

        self.accepting = Thread(target=accept)
        self.accepting.start()
        return "127.0.0.1:" + str(self.listener.getsockname()[1])

    def close(self) -> None:
        if hasattr(self, "listener"):
            self.listener.shutdown(socket.SHUT_RDWR)
            self.accepting.join(SECONDS)
            self.listener.close()
        for relay in self.relays:
            relay.close()


def content_of(packet: Packet) -> dict[str, Any]:
    content: dict[str, Any] = msgspec.msgpack.decode(packet.payload)
    return content


def named(packet: Packet) -> str:
    return "frame" if packet.kind == FRAME else content_of(packet)["type"]


class Sender:
    """A service, and strangers that fetch from it.

    Args:
        folder: Folder for what they fetch.
        stack: Closes what is opened.
    """

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self.stack = stack
        self.service = stack.enter_context(DownloadService())
        self.out = folder / "out"

    def tap(self, change: Change | None = None) -> Tap:
        tap = Tap(change)
        self.stack.callback(tap.close)
        return tap

    def pair(self, ref: Ref | str, *options: str, tap: Tap | None = None, site: str = SITE) -> Told:
        """Have a stranger fetch over a socket pair, and forget it."""
        if tap is None:
            near, far = socket.socketpair()
            self.service.attach(SocketChannel(far, site), site)
        else:
            near = tap.pair(self.service, site)
        return told("fd", near.detach(), ref, self.out, *options)

    @cached_property
    def listener(self) -> TcpListener:
        return self.stack.enter_context(listen(self.service, "127.0.0.1:0"))

    def tcp(self, ref: Ref, *options: str, tap: Tap | None = None) -> Told:
        """Have a stranger fetch over TCP."""
        address = self.listener.address if tap is None else tap.listen(self.listener.address)
        return told("tcp", address, self.listener.admit(SITE), "", ref, self.out, *options)


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[Sender]:
    with ExitStack() as stack:
        yield Sender(tmp_path, stack)


def assert_same(path: Path, due: Mapping[str, torch.Tensor]) -> None:
    given = stranger.read_file(path)
    assert set(given) == set(due)
    for name, tensor in due.items():
        assert given[name].dtype == code_of(tensor, name), name
        assert given[name].shape == tuple(tensor.shape), name
        assert given[name].data == as_bytes(tensor), name


def test_the_stranger_imports_nothing_of_flstream() -> None:
    tree = ast.parse(Path(stranger.__file__).read_text())
    modules = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            modules |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level
            modules.add(str(node.module).partition(".")[0])
    assert modules - sys.stdlib_module_names == {"msgspec", "numpy", "xxhash"}


# What is fetched.
@pytest.mark.parametrize("way", ["pair", "tcp"])
@pytest.mark.parametrize(
    "options", [(), SIZES, ("--chunk-size", "0")], ids=["usual", "small", "native"]
)
def test_a_model_of_every_dtype_arrives_to_the_bit(
    sender: Sender, way: str, options: tuple[str, ...]
) -> None:
    tensors = {**every_kind(), **FAR}
    ref = add_tensors(sender.service, tensors, [SITE])
    told = getattr(sender, way)(ref, *options)
    assert told.status == 0, told.reason
    assert ref.wait(SECONDS).ok
    assert_same(sender.out, tensors)
    assert told.seen["bytes"] == sum(tensor.nbytes for tensor in tensors.values())


def test_tied_and_empty_tensors_arrive_once_and_in_the_order_in_which_the_sender_has_them(
    sender: Sender,
) -> None:
    shared = torch.arange(6.0)
    tensors = {
        "last": torch.ones(3, dtype=torch.uint8),
        "tied": shared,
        "empty": torch.empty(0, 3),
        "also tied": shared,
        "first": torch.ones(2, dtype=torch.float64),
        "again": shared,
    }
    ref = add_tensors(sender.service, tensors, [SITE])
    told = sender.pair(ref)
    assert told.status == 0, told.reason
    assert told.seen["names"] == list(tensors)
    assert told.seen["bytes"] == 3 + shared.nbytes + 16
    assert_same(sender.out, tensors)


def test_a_part_by_names_has_these_alone_and_closes_the_ref(sender: Sender) -> None:
    shared = torch.arange(5.0)
    tensors = {**FAR, "tied": shared, "own": shared, "b": torch.ones(3, dtype=torch.bfloat16)}
    ref = add_tensors(sender.service, tensors, [SITE])
    told = sender.pair(ref, "--names", json.dumps(["b", "tied", "own"]), *SIZES)
    assert told.status == 0, told.reason
    assert ref.wait(SECONDS).ok
    assert told.seen["names"] == ["b", "tied", "own"]
    assert told.seen["bytes"] == shared.nbytes + 6
    assert_same(sender.out, {name: tensors[name] for name in ("tied", "own", "b")})


def test_specs_are_looked_up_by_round_and_tags_and_close_nothing(sender: Sender) -> None:
    old, new = (
        {"a": torch.full((3,), value), "b": torch.full((2,), value)} for value in (1.0, 2.0)
    )
    old_ref = add_tensors(sender.service, old, [SITE], round=1, tags=["trained", "x"])
    new_ref = add_tensors(sender.service, new, [SITE], round=2, tags=["trained"])
    add_tensors(sender.service, new, ["site-2"], round=3)
    tap = sender.tap()
    specs = [["b", 2, ["trained"]], ["a", 1, ["x", "trained"]]]
    told = sender.pair(NOBODY.hex(), "--specs", json.dumps(specs), tap=tap)
    assert told.status == 0, told.reason
    assert len(tap.all("Closed")) == 1
    assert told.seen["names"] == ["b", "a"]
    assert_same(sender.out, {"b": new["b"], "a": old["a"]})
    failed = sender.pair(NOBODY.hex(), "--specs", json.dumps([["a", 3, []]]))
    assert (failed.status, "'a' of round 3" in failed.reason) == (1, True)
    # Neither was closed by the receiver: what ended them is that it is gone.
    assert "ended" in old_ref.wait(SECONDS).reason
    assert "ended" in new_ref.wait(SECONDS).reason


SHARED = torch.arange(3, dtype=torch.bfloat16)
PAYLOAD = {
    "list": [1, -2.5, None, True, "text", b"\0bytes", (), [], {}],
    "bounds": [2**63 - 1, -(2**63), 2**64 - 1, 2**64, -(2**63) - 1, 2**100, -(2**100)],
    "twice": (SHARED, SHARED),
    "float": [float("inf"), 5e-324],
    -5: {"a": {"b": {2**40: OrderedDict([("z", 1), ("a", np.arange(6).reshape(2, 3))])}}},
    "complex": [1 + 2j, complex("inf")],
    "sets": [{1, 2.5, "three", b"4"}, frozenset({(1, 2)}), set()],
    "scalars": [np.float16(0.5), np.bool_(True), np.uint64(7), np.complex128(1j)],
    "size": torch.Size([2, 3]),
    "C128": torch.ones(2, 3, dtype=torch.complex128),
    "F8_E8M0": torch.ones(3).to(torch.float8_e8m0fnu),
    "scalar": torch.tensor(7),
    "empty": np.empty((0, 2), np.uint8),
}


def as_sent(value: object, sent: dict[int, Tensor], path: str = "payload") -> object:
    """The value as a stranger has it: tensors as their bytes, under the path of the first place."""
    if isinstance(value, torch.Tensor | np.ndarray):
        tensor = torch.from_numpy(value) if isinstance(value, np.ndarray) else value
        framework = "numpy" if tensor is not value else "pytorch"
        code, shape = code_of(tensor, path), tuple(tensor.shape)
        found = Tensor(code, shape, as_bytes(tensor), path, framework)
        return sent.setdefault(id(value), found)
    if isinstance(value, dict):
        pairs = {k: as_sent(v, sent, f"{path}[{json.dumps(k)}]") for k, v in value.items()}
        return type(value)(pairs)
    if isinstance(value, list | tuple):
        items = [as_sent(item, sent, f"{path}[{place}]") for place, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    return value


@pytest.mark.parametrize("native", [False, True], ids=["streamed", "in one piece"])
def test_a_payload_arrives_with_all_that_it_holds(sender: Sender, native: bool) -> None:
    ref = add_payload(sender.service, PAYLOAD, [SITE], native=native)
    told = sender.pair(ref, "--payload")
    assert told.status == 0, told.reason
    names = {"np": np, "Tensor": Tensor, "OrderedDict": OrderedDict, "inf": float("inf")}
    value = eval(sender.out.read_text(), names | {"nan": float("nan"), "infj": complex("infj")})
    due = as_sent(PAYLOAD, {})
    assert value == due
    assert repr(value["scalars"]) == repr(PAYLOAD["scalars"])
    assert list(value) == list(PAYLOAD)


# What goes wrong.
def nth_frame(number: int, change: Callable[[bytes], bytes], of: int = 1) -> Change:
    """What changes one frame of a connection."""
    frames: Counter[int] = Counter()

    def changed(connection: int, packet: Packet, raw: bytes) -> bytes:
        frames[connection] += packet.kind == FRAME
        here = packet.kind == FRAME and (connection, frames[connection]) == (of, number)
        return change(raw) if here else raw

    return changed


@pytest.mark.parametrize("left", [0, 30, 64 + 100], ids=["between", "in a header", "in a frame"])
def test_after_a_cut_only_what_is_missing_comes_again(sender: Sender, left: int) -> None:
    ref = add_tensors(sender.service, FAR, [SITE])
    tap = sender.tap(nth_frame(8, lambda raw: raw[:left]))
    told = sender.tcp(ref, *SIZES, tap=tap)
    assert told.status == 0, told.reason
    assert ref.wait(SECONDS).ok
    assert_same(sender.out, FAR)
    assert told.seen["connections"] == 2
    assert len(tap.all("Open")) == 1
    first, second = tap.all("Hello", 1), tap.all("Hello", 2)
    instances = [{content_of(hello)["instance"] for hello in hellos} for hellos in (first, second)]
    assert instances[0] & instances[1] - {b""}
    frames = [packet.start for packet in tap.all("frame", 1)[:7] + tap.all("frame", 2)]
    assert sorted(frames) == list(range(0, 20 * CHUNK, CHUNK))


def test_a_file_goes_on_where_it_was_broken_off_and_damage_to_it_is_found(
    sender: Sender, tmp_path: Path
) -> None:
    save_file(FAR, tmp_path / "model")
    ref = add_file(sender.service, tmp_path / "model", [SITE, "site-2"])
    tap = sender.tap(nth_frame(12, lambda raw: raw[:99]))
    told = sender.pair(ref, *SIZES, tap=tap)
    assert (told.status, "broke" in told.reason, sender.out.exists()) == (1, True, False)
    part = tmp_path / "out.part"
    damaged = bytearray(part.read_bytes())
    damaged[-20 * CHUNK + 3 * CHUNK] ^= 1
    part.write_bytes(damaged)

    tap = sender.tap()
    told = sender.pair(ref, *SIZES, tap=tap, site="site-2")
    assert told.status == 0, told.reason
    assert_same(sender.out, FAR)
    missing = [3 * CHUNK, *range(11 * CHUNK, 20 * CHUNK, CHUNK)]
    assert sorted(packet.start for packet in tap.all("frame")) == missing


def test_what_is_not_on_offer_or_changes_fails_with_the_reason_of_the_sender(
    sender: Sender,
) -> None:
    assert "not on offer" in sender.pair("ab" * 16).reason
    tensors = {"far": FAR["far"].clone()}

    def change(connection: int, packet: Packet, raw: bytes) -> bytes:
        if named(packet) == "Ping":
            tensors["far"].add_(1)
        return raw

    ref = add_tensors(sender.service, tensors, ["site-2"])
    told = sender.pair(ref, *SIZES, tap=sender.tap(change), site="site-2")
    assert (told.status, "'far'" in told.reason) == (1, True)
    assert not ref.wait(SECONDS).ok
    assert not sender.out.exists()
