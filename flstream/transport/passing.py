"""Sockets handed from process to process: a file descriptor beside a byte of a Unix socket."""

from __future__ import annotations

import select
import socket

from flstream.errors import ChannelClosedError, DeadlineError
from flstream.transport.channel import Deadline

_BYTE = b"\0"


def send_socket(over: socket.socket, handed: socket.socket, deadline: Deadline) -> None:
    """Hand a socket to the peer of another, after the messages that were sent before.

    Args:
        over: Socket to the peer, which does not block.
        handed: The socket; the caller still has to close its own descriptor.
        deadline: Time for the peer to make room.

    Raises:
        StreamingError: The peer is gone, or takes nothing in time.
    """
    poll = select.poll()
    poll.register(over, select.POLLOUT)
    while True:
        try:
            socket.send_fds(over, [_BYTE], [handed.fileno()])
        except BlockingIOError:
            if not deadline.wait(poll):
                raise DeadlineError("a worker did not take a socket in time") from None
        except OSError as error:
            raise ChannelClosedError("the channel is closed; its process has ended") from error
        else:
            return


def receive_socket(over: socket.socket, deadline: Deadline) -> socket.socket:
    """Receive a socket that the peer hands over now, after the messages before it.

    Args:
        over: Socket to the peer, which does not block.
        deadline: Time for the peer to send it.

    Raises:
        StreamingError: The peer is gone, or sent none in time.
    """
    poll = select.poll()
    poll.register(over, select.POLLIN)
    while True:
        try:
            data, descriptors, _, _ = socket.recv_fds(over, 1, 1, socket.MSG_CMSG_CLOEXEC)
        except BlockingIOError:
            if not deadline.wait(poll):
                raise DeadlineError("no socket was handed over in time") from None
        except OSError as error:
            raise ChannelClosedError("the channel is closed; its process has ended") from error
        else:
            if not data or not descriptors:
                raise ChannelClosedError("no socket was handed over; its process has ended")
            return socket.socket(fileno=descriptors[0])
