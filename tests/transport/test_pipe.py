"""Pipes: what every channel promises is in test_channel_contract.py; here is what they are."""

import os
import socket
from multiprocessing import Pipe

from flstream.transport.channel import Deadline
from flstream.transport.sockets import SocketChannel


def test_both_ends_of_a_multiprocessing_pipe_are_pipes():
    left, right = Pipe()
    first = SocketChannel(socket.socket(fileno=os.dup(left.fileno())), "right")
    left.close()
    first.send([memoryview(b"hello")], Deadline(1))
    first.close()
    assert os.read(right.fileno(), 5) == b"hello"
    right.close()
