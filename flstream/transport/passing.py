"""File descriptors handed from process to process, each beside a byte of a Unix socket."""

from __future__ import annotations

import os
import select
import socket
from array import array

from flstream.errors import ChannelClosedError, DeadlineError
from flstream.transport.channel import Deadline

_BYTE = b"\0"
# More than one is against the rules; what comes beyond four the kernel closes.
_SPACE = socket.CMSG_SPACE(4 * array("i").itemsize)


def send_descriptor(over: socket.socket, handed: int, deadline: Deadline) -> None:
    """Hand a descriptor to the peer of a socket, after the messages that were sent before.

    Args:
        over: Socket to the peer, which does not block.
        handed: The descriptor; the caller still has to close its own.
        deadline: Time for the peer to make room.

    Raises:
        StreamingError: The peer is gone, or takes nothing in time.
    """
    poll = select.poll()
    poll.register(over, select.POLLOUT)
    while True:
        try:
            socket.send_fds(over, [_BYTE], [handed])
        except BlockingIOError:
            if not deadline.wait(poll):
                raise DeadlineError("a worker did not take a descriptor in time") from None
        except OSError as error:
            raise ChannelClosedError("the channel is closed; its process has ended") from error
        else:
            return


def receive_descriptor(over: socket.socket, deadline: Deadline) -> int:
    """Receive a descriptor that the peer hands over now, after the messages before it.

    Args:
        over: Socket to the peer, which does not block.
        deadline: Time for the peer to send it.

    Returns:
        The descriptor, which the caller has to close.

    Raises:
        StreamingError: The peer is gone, or sent none in time.
    """
    poll = select.poll()
    poll.register(over, select.POLLIN)
    while True:
        try:
            # Before Python 3.13, socket.recv_fds passes its flags over.
            data, beside, _, _ = over.recvmsg(1, _SPACE, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            if not deadline.wait(poll):
                raise DeadlineError("no descriptor was handed over in time") from None
        except OSError as error:
            raise ChannelClosedError("the channel is closed; its process has ended") from error
        else:
            descriptors = [fd for each in beside for fd in _descriptors_in(*each)]
            if data and len(descriptors) == 1:
                return descriptors[0]
            for each in descriptors:
                os.close(each)
            raise ChannelClosedError("no descriptor was handed over; its process has ended")


def _descriptors_in(level: int, kind: int, data: bytes) -> list[int]:
    """Return the descriptors in what came beside a byte."""
    if (level, kind) != (socket.SOL_SOCKET, socket.SCM_RIGHTS):
        return []
    found = array("i")
    found.frombytes(data[: len(data) // found.itemsize * found.itemsize])
    return found.tolist()


def receive_socket(over: socket.socket, deadline: Deadline) -> socket.socket:
    """Receive a socket that the peer hands over now: see :func:`receive_descriptor`."""
    return socket.socket(fileno=receive_descriptor(over, deadline))
