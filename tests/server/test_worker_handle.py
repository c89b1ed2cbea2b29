"""The server's end of the socket over which workers deal with their peers."""

import socket

import pytest

from flstream.client.peer_messages import Offered, OfferModel
from flstream.errors import DeadlineError, StreamingError
from flstream.server.worker_handle import PeerLink
from flstream.transport.channel import Signal


@pytest.fixture
def link():
    """A link to a worker, and the worker's end."""
    ours, theirs = socket.socketpair()
    abort = Signal()
    with ours, theirs:
        yield PeerLink(ours, "site-1", "site-1/1", abort), theirs
    abort.close()


def test_after_an_answer_that_comes_too_late_nothing_more_is_asked(link):
    # It would pass for the answer to the next request.
    asking, worker = link
    request = OfferModel("round-0001.safetensors", "0" * 32, "site-2/1")
    assert asking.is_open
    with pytest.raises(DeadlineError):
        asking.ask(request, Offered, seconds=0.05)
    assert not asking.is_open
    with pytest.raises(StreamingError):
        asking.ask(request, Offered, seconds=0.05)
    # The worker sees the end, too.
    worker.settimeout(5)
    while worker.recv(1 << 16):
        pass


def test_a_link_that_is_closed_is_not_open(link):
    asking, _ = link
    asking.close()
    assert not asking.is_open
