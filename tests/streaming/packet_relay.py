"""Two sockets joined packet by packet: what passes is seen, and can be harmed on its way.

It knows the wire format of docs/internals/protocol.md, and nothing of flstream. So faults strike
real sockets, whatever is at their ends.
"""

from __future__ import annotations

import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Literal, NamedTuple

from packets import HEADER_BYTES, MESSAGE, BrokenError, Packet, read_packet

Way = Literal["up", "down"]
"""Direction of packets: from the receiver, or to it."""


class EndError(Exception):
    """The connection ends here."""


class ResetError(EndError):
    """End of a connection without a farewell, as of a host that is gone."""


class StallError(Exception):
    """Nothing passes any more, and the connection stays."""


OnPacket = Callable[[Way, Packet], Sequence[bytes]]
"""Function that returns what arrives in the place of a packet, or raises one of these errors."""


class Relay:
    """A connection between a receiver, near, and a sender, until one side ends.

    A thread for each way calls `on_packet` with each packet.
    """

    def __init__(self, near: socket.socket, far: socket.socket, on_packet: OnPacket) -> None:
        self._on_packet = on_packet
        self._sockets = near, far
        self._is_silent = False
        self._ended = threading.Barrier(2)
        self._threads = [
            threading.Thread(target=self._pass_on, args=ends, name="packet-relay", daemon=True)
            for ends in (("up", near, far), ("down", far, near))
        ]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._cut()
        for thread in self._threads:
            thread.join()

    def _pass_on(self, way: Way, source: socket.socket, sink: socket.socket) -> None:
        try:
            while True:
                packet = read_packet(source)
                try:
                    arriving = () if self._is_silent else self._on_packet(way, packet)
                except StallError:
                    self._is_silent = True
                    continue
                for piece in arriving:
                    sink.sendall(piece)
        except BrokenError:  # its end: what is on the other way still arrives
            with suppress(OSError):
                if not self._is_silent:
                    sink.shutdown(socket.SHUT_WR)
        except ResetError:
            for sock in self._sockets:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._cut()
        except (EndError, OSError):
            self._cut()
        finally:
            self._ended.wait()
            source.close()

    def _cut(self) -> None:
        for sock in self._sockets:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)


class Harm(NamedTuple):
    """Fault of one packet of a download."""

    fault: str  # its name in FAULTS
    way: Way  # direction of the packet
    of_frames: bool  # whether frames are counted, or messages
    place: int  # number of such packets before it
    seed: int  # what chooses the bit or the byte


Fault = Callable[[Packet, random.Random], list[bytes]]
"""What arrives in the place of a packet."""


def _slowly(packet: Packet, _: random.Random) -> list[bytes]:
    step = max(len(packet.data) // 40, 1)
    return [packet.data[start : start + step] for start in range(0, len(packet.data), step)]


def _flipped(first: int, stop: int | None) -> Fault:
    """Flip a bit of one of these bytes."""

    def flip(packet: Packet, rng: random.Random) -> list[bytes]:
        data = bytearray(packet.data)
        data[rng.choice(range(len(data))[first:stop])] ^= 4
        return [bytes(data)]

    return flip


def _ended(error: type[Exception]) -> Fault:
    def end(packet: Packet, rng: random.Random) -> list[bytes]:
        raise error

    return end


FAULTS: dict[str, Fault] = {
    "slow": _slowly,
    "lost": lambda packet, rng: [],
    "doubled": lambda packet, rng: [packet.data, packet.data],
    "header flipped": _flipped(0, HEADER_BYTES),
    "payload flipped": _flipped(HEADER_BYTES, None),  # or its digest
    "cut": lambda packet, rng: [packet.data[: rng.randrange(len(packet.data))]],
    "overtaken": lambda packet, rng: [],  # it arrives with the next one: see Script
    "ended": _ended(EndError),
    "reset": _ended(ResetError),
    "stalled": _ended(StallError),
}


class Script:
    """The harms that befall the packets of one download after another."""

    def __init__(self) -> None:
        self.begin([])

    def begin(self, harms: Sequence[Harm]) -> None:
        """Begin with new harms, and count packets from now on."""
        self.hits: list[Harm] = []  # that were done
        self._harms = list(harms)
        self._counts: Counter[tuple[Way, bool]] = Counter()
        self._held: dict[Way, list[bytes]] = {}

    def __call__(self, way: Way, packet: Packet) -> Sequence[bytes]:
        """Return what arrives in the place of a packet."""
        counted = way, packet.kind != MESSAGE
        place = self._counts[counted]
        self._counts[counted] += 1
        overtaken, arriving = self._held.pop(way, []), [packet.data]
        for harm in self._harms:
            if (harm.way, harm.of_frames, harm.place) == (*counted, place):
                self._harms.remove(harm)
                self.hits.append(harm)
                if harm.fault == "overtaken":
                    self._held[way] = [packet.data]
                arriving = FAULTS[harm.fault](packet, random.Random(harm.seed))
                break
        return arriving + overtaken
