"""The channels there are. A new one is a function and a line in :data:`CHANNELS`."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from queue import Queue

from flstream.job.link import NetworkLink
from flstream.transport.channel import Channel, pipe
from flstream.transport.link import LinkRelay
from flstream.transport.tcp import TcpListener, dial

Ends = tuple[Channel, Channel]


@contextmanager
def tcp() -> Iterator[Ends]:
    """The ends of an authenticated connection, once each has the other's proof."""
    accepted: Queue[Channel] = Queue()
    with TcpListener("127.0.0.1:0", lambda channel, _: accepted.put(channel)) as listener:
        site = dial(listener.address, listener.admit("site-1"), "server")
        server = accepted.get(timeout=10)
    with closing(server), closing(site):
        yield server, site


@contextmanager
def pipes() -> Iterator[Ends]:
    """Two ends of a pipe: the server's, whose peer is site-1, and the site's."""
    server, site = pipe("server", "site-1")
    with closing(server), closing(site):
        yield server, site


@contextmanager
def linked() -> Iterator[Ends]:
    """A TCP connection over an emulated link, which is fast and loses packets."""
    link = NetworkLink(up=1e9, down=1e9, latency=0.001, jitter=0.001, loss=0.01)
    with (
        tcp() as (server, site),
        closing(LinkRelay({"site-1": link}, 0, "site-1")) as relay,
        closing(relay.channel(site.detach(), "server", "up")) as near,
    ):
        yield server, near


CHANNELS: dict[str, Callable[[], AbstractContextManager[Ends]]] = {
    "pipe": pipes,
    "tcp": tcp,
    "link": linked,
}
