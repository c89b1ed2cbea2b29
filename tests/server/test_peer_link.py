"""The server's end of the socket over which workers deal with their peers."""

import socket
from contextlib import closing

import pytest

from flstream.errors import DeadlineError, StreamingError
from flstream.server.peer_link import PeerLink
from flstream.transport.channel import Signal, is_hung_up
from flstream.worker.messages import Offered
from flstream.worker.peer_messages import Offer


def test_after_an_answer_that_comes_too_late_nothing_more_is_asked():
    # It would pass for the answer to the next request.
    ours, worker = socket.socketpair()
    request = Offer("site-2", "round-0001.safetensors")
    with ours, worker, closing(Signal()) as abort:
        link = PeerLink(ours, "site-1", abort)
        assert not is_hung_up(ours)
        for error in (DeadlineError, StreamingError):
            with pytest.raises(error):
                link.ask(request, Offered, seconds=0.05)
            assert is_hung_up(ours)
        # The worker sees the end, too.
        worker.settimeout(5)
        while worker.recv(1 << 16):
            pass
