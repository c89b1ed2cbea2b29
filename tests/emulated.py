"""A pair of channels with an emulated link between them."""

import socket
from contextlib import closing, contextmanager

from flstream.transport.channel import Channel
from flstream.transport.link import SMALL_BUFFER, LinkRelay


@contextmanager
def emulated_pipe(first, second, link, *, seed=0):
    """What the second sends goes up the link, and what it receives comes down."""
    ours, theirs = socket.socketpair()
    with (
        closing(LinkRelay({second: link}, seed, second)) as relay,
        closing(relay.channel(theirs, first, first)) as site,
        closing(Channel(ours, second, buffer=SMALL_BUFFER)) as server,
    ):
        yield server, site
