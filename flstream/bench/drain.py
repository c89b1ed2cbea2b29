"""Takes bytes from a socket and does nothing with them: the other end of the bare pipe.

It is run as a script in a process of its own, which imports nothing that this does not need::

    python -S drain.py FD BYTES READ_SIZE
"""

import socket
import sys


def drain(sock: socket.socket, size: int, buffer: memoryview) -> None:
    """Read ``size`` bytes, as many at a time as the buffer holds.

    Raises:
        EOFError: there were fewer.
    """
    while size:
        count = sock.recv_into(buffer, min(len(buffer), size))
        if count == 0:
            raise EOFError(f"{size} bytes did not come")
        size -= count


def main(fd: int, size: int, read_size: int) -> None:
    """Say that this is ready, take the bytes, and say that they are here."""
    with socket.socket(fileno=fd) as sock:
        buffer = memoryview(bytearray(read_size))
        sock.sendall(b"r")
        try:
            drain(sock, size, buffer)
            sock.sendall(b"d")
        except (EOFError, OSError):
            sys.exit(1)  # whoever measures was stopped, and says so


if __name__ == "__main__":
    main(*map(int, sys.argv[1:4]))
