"""The receiving end of the bare pipe: a script that reads bytes from a socket and discards them.

It runs in a process of its own, with as few imports as possible::

    python -S drain.py FD BYTES READ_SIZE
"""

import socket
import sys


def drain(sock: socket.socket, size: int, buffer: memoryview) -> None:
    """Read and discard bytes.

    Args:
        sock: socket to read from.
        size: number of bytes to read.
        buffer: memory for one read.

    Raises:
        EOFError: the socket was closed before all bytes came.
    """
    while size:
        count = sock.recv_into(buffer, min(len(buffer), size))
        if count == 0:
            raise EOFError(f"{size} bytes did not come")
        size -= count


def main(fd: int, size: int, read_size: int) -> None:
    """Send ``r`` when ready, read the bytes, and send ``d`` when all have arrived."""
    with socket.socket(fileno=fd) as sock:
        buffer = memoryview(bytearray(read_size))
        sock.sendall(b"r")
        try:
            drain(sock, size, buffer)
            sock.sendall(b"d")
        except (EOFError, OSError):
            sys.exit(1)  # the measuring process was stopped, and reports it


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
