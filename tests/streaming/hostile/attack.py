"""A receiver in a process of its own that does not keep to the rules.

    python attack.py DESCRIPTOR NAME [ARGUMENT]...

It writes a line when it has done what it came for, and then waits for a line, or for its end.
"""

import os
import socket
import struct
import sys

import msgspec
import xxhash

MIB = 1 << 20


def packet(token, number, **fields):
    """A request, as docs/protocol.md has it."""
    payload = msgspec.msgpack.encode({"token": token, "request": number, **fields})
    digest = xxhash.xxh3_64_intdigest(payload)
    head = struct.pack("<4sBB2xI16sQQQ4x", b"FLST", 1, 1, number, token, 0, len(payload), digest)
    return head + struct.pack("<Q", xxhash.xxh3_64_intdigest(head)) + payload


def read_exactly(sock, count):
    data = bytearray()
    while len(data) < count and (piece := sock.recv(min(count - len(data), MIB))):
        data += piece
    return bytes(data)


def say(text):
    print(text, flush=True)
    return sys.stdin.readline()


def late(sock, token, nbytes):
    """Ask for everything, read nothing until told to, and say what the frames had."""
    fetch = packet(token, 1, type="Fetch", start=0, stop=nbytes, chunk_size=MIB, urgent=False)
    sock.sendall(fetch)
    sock.settimeout(30)
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


if __name__ == "__main__":
    fd, name, token, *rest = sys.argv[1:]
    with socket.socket(fileno=int(fd)) as peer:
        globals()[name](peer, bytes.fromhex(token), *map(int, rest))
    os._exit(0)
