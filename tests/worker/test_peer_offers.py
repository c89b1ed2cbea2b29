"""How workers reach each other: by one key for one body, which the server hands on."""

from contextlib import ExitStack, closing, contextmanager

import numpy as np
import pytest
from serving import worker_info

from flstream.engines.engine import worker_socket_pairs
from flstream.errors import CheckpointError, StreamingError
from flstream.model.checkpoint import write_checkpoint
from flstream.model.memory import MemoryBody
from flstream.server.peer_link import PeerLink
from flstream.streaming.download import RemoteSource
from flstream.streaming.service import DownloadService
from flstream.streaming.settings import StreamSettings
from flstream.telemetry.events import SERVER
from flstream.transport.channel import Channel, Signal
from flstream.worker.messages import Offered
from flstream.worker.peer_messages import Offer
from flstream.worker.peers import Peers

BODY = MemoryBody.of({"weight": np.arange(300_000, dtype="float32")})


@contextmanager
def worker(folder, site):
    """A worker's peers, its service, and the server's link to it."""
    with ExitStack() as stack:
        ours, theirs = worker_socket_pairs()
        stack.callback(ours.close)
        stack.callback(theirs.close)
        service = stack.enter_context(DownloadService())
        service.attach(Channel(theirs.up, SERVER), SERVER)
        info = worker_info(folder, site)
        peers = stack.enter_context(closing(Peers(info, theirs.peers, service)))
        abort = stack.enter_context(closing(Signal()))
        yield peers, service, PeerLink(ours.peers, site, abort)


@pytest.fixture
def two(tmp_path):
    with worker(tmp_path, "site-1") as first, worker(tmp_path, "site-2") as second:
        yield first, second


def allocated(layout):
    return MemoryBody.allocate(layout, "numpy")


def fetched(receiver, token):
    """What a receiver gets, which leaves the body on offer."""
    remote = RemoteSource(receiver, token, StreamSettings())
    body = allocated(remote.layout)
    remote.deliver(body)
    remote.confirm()
    remote.leave()
    return body.tensors["weight"].tobytes()


def test_a_peer_fetches_an_update_in_the_place_of_the_server_which_has_it_still(two):
    (_, service, link), (peers, _, _) = two
    update = service.offer(BODY, [SERVER])
    for _ in range(2):  # such as for a fold that is done again
        offered = link.ask(Offer("site-2", token=update.token), Offered)
        assert offered.token == update.token
        with peers.dial(offered, SERVER) as receiver:
            assert fetched(receiver, update.token) == BODY.tensors["weight"].tobytes()
        assert update.outcome is None
    with pytest.raises(StreamingError, match="closed the connection"):
        peers.dial(offered, SERVER)  # its key was of use once


def test_a_peer_fetches_a_model_and_nothing_that_is_on_offer_to_the_server(two, tmp_path):
    (_, service, link), (peers, _, _) = two
    update = service.offer(BODY, [SERVER])
    write_checkpoint(tmp_path / "model.safetensors", BODY)
    offer = Offer("site-2", str(tmp_path / "model.safetensors"))
    first = link.ask(offer, Offered)
    with peers.dial(first) as earlier:
        offered = link.ask(offer, Offered)
        with pytest.raises(StreamingError):  # a worker has one task at a time
            RemoteSource(earlier, first.token, StreamSettings())
    with pytest.raises(StreamingError, match="another key or role"):
        peers.dial(offered, SERVER)
    with peers.dial(offered) as receiver:
        with pytest.raises(StreamingError, match="not on offer"):
            fetched(receiver, update.token)
        with RemoteSource(receiver, offered.token, StreamSettings()) as remote:
            body = allocated(remote.layout)
            remote.deliver(body)
        assert body.tensors["weight"].tobytes() == BODY.tensors["weight"].tobytes()


def test_a_model_whose_file_is_gone_is_the_error_that_it_would_be_at_the_server(two, tmp_path):
    (_, _, link), _ = two
    with pytest.raises(CheckpointError, match=r"gone\.safetensors cannot be read"):
        link.ask(Offer("site-2", str(tmp_path / "gone.safetensors")), Offered)
