"""A receiver that is gone for good can be forgotten, and what was on offer to it is settled."""

import socket

import pytest

from flstream.model.layout import Layout
from flstream.model.memory import BufferSource
from flstream.streaming.service import DownloadService
from flstream.transport.sockets import SocketChannel

LAYOUT = Layout.of([("w", "U8", (64,))])
BODY = BufferSource(LAYOUT, memoryview(bytes(64)))
PATIENCE = 20.0


@pytest.fixture
def service():
    with DownloadService() as service:
        yield service


def attached(service, name):
    ours, theirs = socket.socketpair()
    theirs.settimeout(PATIENCE)
    service.attach(SocketChannel(ours, name), name)
    return theirs


def is_closed(sock):
    """Whether there is an end after the greeting, if that was sent."""
    return len(sock.recv(1000)) < 1000 and sock.recv(1) == b""


def test_what_was_on_offer_to_it_is_settled(service):
    with attached(service, "worker-1"):
        ref = service.offer(BODY, ["worker-1"])
        service.detach("worker-1")
        outcome = ref.wait(PATIENCE)
        assert (outcome.status, outcome.reason) == (
            "aborted",
            "worker-1: its channel was closed here",
        )


@pytest.mark.parametrize("ends", ["itself", "after it was let go"])
def test_no_name_is_kept_of_those_that_are_gone(service, ends):
    for number in range(50):
        name = f"worker-1/{number}"
        with attached(service, name) as theirs:
            if ends == "itself":
                theirs.shutdown(socket.SHUT_RDWR)
                # It is known to be lost once an offer to it has settled.
                assert service.offer(BODY, [name]).wait(PATIENCE).status == "aborted"
            service.detach(name)
            assert is_closed(theirs)
    # The next one is served as ever.
    with attached(service, "worker-1/50"):
        ref = service.offer(BODY, ["worker-1/50"])
        assert ref.outcome is None
        service.detach("worker-1/50")
        assert ref.wait(PATIENCE).status == "aborted"
    service.close()
    assert service._lost == {}
