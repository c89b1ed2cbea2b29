"""A receiver, or a sender, in a process of its own that does not keep to the rules.

    python attack.py DESCRIPTOR NAME [ARGUMENT]...

It writes a line when it has done what it came for, and then waits for a line, or for its end.
"""

import fcntl
import os
import select
import socket
import struct
import sys
import threading

import msgspec
import xxhash

MIB = 1 << 20


def packet(token, number, **fields):
    """A request, as docs/protocol.md has it."""
    payload = msgspec.msgpack.encode({"token": token, "request": number, **fields})
    digest = xxhash.xxh3_64_intdigest(payload)
    head = struct.pack("<4sBB2xI16sQQQ4x", b"FLST", 2, 1, number, token, 0, len(payload), digest)
    return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)) + payload


def greeting():
    """What either side says first."""
    hello = {"type": "Hello", "version": 2, "instance": os.urandom(16), "capabilities": []}
    return packet(bytes(16), 0, **hello)


def read_exactly(sock, count):
    data = bytearray()
    while len(data) < count and (piece := sock.recv(min(count - len(data), MIB))):
        data += piece
    return bytes(data)


def skip_greeting(sock):
    head = read_exactly(sock, 64)
    read_exactly(sock, struct.unpack_from("<Q", head, 36)[0])


def say(text):
    print(text, flush=True)
    return sys.stdin.readline()


def late(sock, token, nbytes):
    """Ask for everything, read nothing until told to, and say what the frames had."""
    fetch = packet(token, 1, type="Fetch", start=0, stop=nbytes, chunk_size=MIB, urgent=False)
    sock.sendall(fetch)
    sock.settimeout(30)
    skip_greeting(sock)
    assert sock.recv(1, socket.MSG_PEEK)
    say("asked")
    sock.settimeout(1.0)
    data = bytearray()
    try:
        while piece := sock.recv(MIB):
            data += piece
    except TimeoutError:
        pass
    bodies, place = [], 0
    while place + 64 <= len(data) and data[place : place + 4] == b"FLST":
        kind, length = data[place + 5], struct.unpack_from("<Q", data, place + 36)[0]
        if kind == 2:
            bodies.append(bytes(data[place + 64 : place + 64 + length]))
        place += 64 + length
    seen = b"".join(bodies)
    # How many of its bytes are those of whatever came to lie there later.
    say(f"{len(seen)} {seen.count(0xEE)}")


def splices(sock, token, nbytes):
    """Ask for everything, move it into pipes by its pages, and say later what those have."""
    fetch = packet(token, 1, type="Fetch", start=0, stop=nbytes, chunk_size=MIB, urgent=False)
    sock.sendall(fetch)
    skip_greeting(sock)
    pipes = []
    while select.select([sock], [], [], 0.3)[0] and len(pipes) < 8:
        out, into = os.pipe()
        fcntl.fcntl(into, fcntl.F_SETPIPE_SZ, MIB)
        pipes.append((out, into))
        while select.select([sock], [], [], 0.1)[0]:
            try:
                if not os.splice(sock.fileno(), into, MIB, flags=os.SPLICE_F_NONBLOCK):
                    break
            except BlockingIOError:
                break  # this pipe is full
    say("asked")
    data = bytearray()
    for out, into in pipes:
        os.close(into)
        while piece := os.read(out, MIB):
            data += piece
    say(f"{len(data)} {data.count(bytes([0xEE]) * 64) * 64}")


def opens(sock, token, count):
    """Ask for the layout, over and over, and read no answer."""
    sock.setblocking(False)
    request = b"".join(packet(token, n, type="Open", eager=0, chunk_size=0) for n in range(1, 1001))
    sent = 0
    while sent < count:
        try:
            sent += sock.send(request[sent % len(request) :])
        except BlockingIOError:
            break
    say(f"sent {sent}")


def digests(sock, token, nbytes, count):
    """Ask for digests of all of it, over and over, and read no answer."""
    sock.setblocking(False)
    step = 16 * MIB
    asked = 0
    for number in range(1, count + 1):
        start = (number - 1) * step % nbytes
        stop = min(start + step, nbytes)
        request = packet(token, number, type="Digest", start=start, stop=stop, chunk_size=step)
        try:
            sock.sendall(request)
            asked += 1
        except BlockingIOError:
            break
    say(f"asked {asked}")


def gathers(sock, token, nbytes):
    """Ask for all of it in one frame, over and over, and call off what was asked for."""
    sock.setblocking(False)
    number = 0
    try:
        while True:
            number += 2
            more = {"start": 0, "stop": nbytes, "chunk_size": nbytes, "urgent": False}
            sock.sendall(packet(token, number, type="Fetch", **more))
            sock.sendall(packet(token, number + 1, type="Close", ok=False, reason="no"))
    except BlockingIOError:
        pass
    say(f"asked {number}")


def insists(sock, token, nbytes, kind):
    """Send requests of one kind without end, and read all answers as fast as they come."""
    whole = {"start": 0, "stop": nbytes}
    some = {"start": 0, "stop": 16 * MIB}

    def of(number):
        return [
            packet(token, number, type="Open", eager=0, chunk_size=0),
            packet(token, number, type="Digest", chunk_size=MIB, **some),
            packet(token, number, type="Digest", start=0, stop=MIB, chunk_size=16),
            packet(token, number, type="Fetch", chunk_size=16, urgent=True, **whole),
            packet(token, number, type="Fetch", chunk_size=nbytes, urgent=True, **whole)
            + packet(token, number, type="Close", ok=False, reason="no"),
            packet(token, number, type="Ping"),
            packet(bytes(16), number, type="Close", ok=True, reason=""),
            b"FLST" * 10_000 + packet(token, number, type="Ping"),
            bytes(MIB) + packet(token, number, type="Ping"),
        ][kind]

    def insist():
        requests = b"".join(map(of, range(1, 51)))
        while True:
            sock.sendall(requests)

    threading.Thread(target=insist, daemon=True).start()
    print("asked", flush=True)
    while sock.recv(MIB):
        pass


if __name__ == "__main__":
    fd, name, token, *rest = sys.argv[1:]
    with socket.socket(fileno=int(fd)) as peer:
        peer.setblocking(True)
        peer.sendall(greeting())
        globals()[name](peer, bytes.fromhex(token), *map(int, rest))
    os._exit(0)
