"""The channels there are. A new one is a function and a line in :data:`CHANNELS`."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from queue import Queue
from unittest.mock import patch

from flstream.transport.channel import Channel
from flstream.transport.sockets import pipe
from flstream.transport.splice import Pages
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
def pipes_that_copy() -> Iterator[Ends]:
    """The same on a system that hands over no pages."""
    refused = OSError(errno.ENOSYS, "not here")
    with (
        patch.object(Pages, "splice_some", side_effect=refused),
        patch.object(os, "sendfile", side_effect=refused),
        pipes() as ends,
    ):
        yield ends


CHANNELS: dict[str, Callable[[], AbstractContextManager[Ends]]] = {
    "pipe": pipes,
    "pipe without splice": pipes_that_copy,
    "tcp": tcp,
}
