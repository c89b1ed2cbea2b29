"""Two sockets joined packet by packet: what passes is seen, and can be harmed on its way.

It knows the wire format as docs/protocol.md has it, and nothing of flstream. So faults strike real
sockets, whatever is at their ends.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from packets import (
    FIELDS,
    HEADER_BYTES,
    MESSAGE,
    TRAILER_BYTES,
    BrokenError,
    exactly,
    packed,
)

# The handshake of a connection over TCP: see docs/protocol.md.
HANDSHAKE_BYTES = {"up": (64, 32), "down": (32, 32)}

Way = Literal["up", "down"]
"""Direction of packets: from the receiver, or to it."""


class Passing(NamedTuple):
    """A packet on its way.

    Attributes:
        way: Its direction.
        kind: Its kind, as its header has it.
        number: Number of its request.
        start: Offset of its first byte in the body, for a frame.
        data: All of its bytes.
    """

    way: Way
    kind: int
    number: int
    start: int
    data: bytes

    @property
    def payload(self) -> bytes:
        """What comes between the header and the digest."""
        return self.data[HEADER_BYTES:-TRAILER_BYTES]


class CutError(Exception):
    """The connection ends here: on both ways, or on this one after a last few bytes."""


class ResetError(CutError):
    """It ends without a farewell, as that of a host that is gone."""


class StallError(Exception):
    """Nothing passes any more, and the connection stays."""


OnPacket = Callable[[Passing], Sequence[bytes]]
"""Function that returns what arrives in the place of a packet, or raises one of these errors."""


class Relay:
    """A connection between a receiver and a sender, which passes packets on until one side ends.

    Args:
        near: Socket whose other end the receiver has.
        far: Socket whose other end the sender has.
        on_packet: Called with each packet, on a thread for each way.
        has_handshake: Whether the proofs of a connection over TCP pass first.
    """

    def __init__(
        self,
        near: socket.socket,
        far: socket.socket,
        on_packet: OnPacket,
        *,
        has_handshake: bool = False,
    ) -> None:
        self._on_packet = on_packet
        self._has_handshake = has_handshake
        self._sockets = near, far
        self._silent = threading.Event()
        self._open = 2
        self._ending = threading.Lock()
        self._threads = [
            threading.Thread(target=self._pass_on, args=ends, name="packet-relay", daemon=True)
            for ends in (("up", near, far), ("down", far, near))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End the connection on both sides, and the threads."""
        self._cut()
        for thread in self._threads:
            thread.join()

    def _pass_on(self, way: Way, source: socket.socket, sink: socket.socket) -> None:
        arrived = bytearray()
        try:
            for count in HANDSHAKE_BYTES[way] if self._has_handshake else ():
                sink.sendall(exactly(source, count))
            while more := source.recv(1 << 18):
                if self._silent.is_set():
                    continue
                arrived += more
                for packet in _taken(arrived, way):
                    for piece in self._on_packet(packet):
                        sink.sendall(piece)
            sink.shutdown(socket.SHUT_WR)
        except StallError:
            self._silent.set()
            with suppress(OSError):
                while source.recv(1 << 18):
                    pass
        except ResetError:
            for sock in self._sockets:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._cut()
        except CutError as end:
            if end.args:
                with suppress(OSError):
                    sink.sendall(end.args[0])
                    sink.shutdown(socket.SHUT_WR)  # what was not read yet still arrives
            else:
                self._cut()
        except (BrokenError, OSError):
            self._cut()
        finally:
            with self._ending:
                self._open -= 1
                if not self._open:
                    for sock in self._sockets:
                        sock.close()

    def _cut(self) -> None:
        with self._ending:
            for sock in self._sockets:
                with suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)


def _taken(arrived: bytearray, way: Way) -> list[Passing]:
    """Take the whole packets out of what has arrived."""
    packets = []
    while len(arrived) >= HEADER_BYTES:
        _, _, kind, number, start, length = FIELDS.unpack(arrived[: FIELDS.size])
        size = HEADER_BYTES + length + TRAILER_BYTES
        if len(arrived) < size:
            break
        packets.append(Passing(way, kind, number, start, bytes(arrived[:size])))
        del arrived[:size]
    return packets


def flipped(data: bytes, place: int = HEADER_BYTES) -> bytes:
    """A packet with a bit that is another; by default in the first byte of its payload."""
    changed = bytearray(data)
    changed[place] ^= 4
    return bytes(changed)


def lie(packet: Passing, **fields: object) -> bytes:
    """A packet with other content, and with digests that say that this is right."""
    what = {name: getattr(packet, name) for name in ("kind", "number", "start", "payload")}
    return packed(**{**what, **fields})


class Harm(NamedTuple):
    """What befalls one packet of a download.

    Attributes:
        fault: Its name in :data:`FAULTS`.
        way: Direction of the packet.
        of_frames: Whether frames are counted, or messages.
        place: Number of such packets before it.
        seed: What chooses the bit or the byte.
    """

    fault: str
    way: Way
    of_frames: bool
    place: int
    seed: int


def _slowly(data: bytes, _: random.Random) -> list[bytes]:
    step = max(len(data) // 40, 1)
    return [data[start : start + step] for start in range(0, len(data), step)]


def _cut(data: bytes, rng: random.Random) -> list[bytes]:
    return [data[: rng.randrange(len(data))]]


FAULTS: dict[str, Callable[[bytes, random.Random], list[bytes]]] = {
    "slow": _slowly,
    "lost": lambda data, rng: [],
    "doubled": lambda data, rng: [data, data],
    "header flipped": lambda data, rng: [flipped(data, rng.randrange(HEADER_BYTES))],
    "payload flipped": lambda data, rng: [flipped(data, rng.randrange(HEADER_BYTES, len(data)))],
    "cut": _cut,
}
# Those that need more than the bytes of the packet.
ENDS = {"ended": CutError, "reset": ResetError, "stalled": StallError}
LIES = ("moved", "shortened", "relabelled", "renumbered")
ALL_FAULTS = (*FAULTS, "overtaken", *ENDS, *LIES)


class Script:
    """The harms that befall the packets of one download after another.

    Attributes:
        hits: The harms that were done.
    """

    def __init__(self) -> None:
        self.begin([])

    def begin(self, harms: Sequence[Harm]) -> None:
        """Forget what was, and count packets from here on."""
        self.hits: list[Harm] = []
        self._harms = list(harms)
        self._counts: dict[tuple[Way, bool], int] = {}
        self._held: dict[Way, list[bytes]] = {}

    def __call__(self, packet: Passing) -> Sequence[bytes]:
        """Return what arrives in the place of a packet."""
        of_frames = packet.kind != MESSAGE
        counted = packet.way, of_frames
        place = self._counts.get(counted, 0)
        self._counts[counted] = place + 1
        arriving = [packet.data, *self._held.pop(packet.way, [])]
        for harm in self._harms:
            if (harm.way, harm.of_frames, harm.place) == (*counted, place):
                self._harms.remove(harm)
                self.hits.append(harm)
                return self._harmed(harm, packet) + arriving[1:]
        return arriving

    def _harmed(self, harm: Harm, packet: Passing) -> list[bytes]:
        if harm.fault in ENDS:
            raise ENDS[harm.fault]
        if harm.fault == "overtaken":
            self._held[packet.way] = [packet.data]
            return []
        rng = random.Random(harm.seed)
        if harm.fault in LIES:
            return [_lied(harm.fault, packet, rng)]
        if harm.fault == "payload flipped" and not packet.payload:
            return [packet.data]
        return FAULTS[harm.fault](packet.data, rng)


def _lied(lie_of: str, packet: Passing, rng: random.Random) -> bytes:
    """What a sender would say that has lost its head, with digests that are right."""
    match lie_of:
        case "moved":
            return lie(packet, start=packet.start + 16 * rng.randrange(1, 1000))
        case "shortened":
            return lie(packet, payload=packet.payload[: rng.randrange(len(packet.payload) + 1)])
        case "renumbered":
            return lie(packet, number=packet.number + rng.randrange(1, 5))
        case _:
            return lie(packet, kind=rng.choice([1, 2, 3, 4]))
