"""The channels there are. A new one is a function and a line in :data:`CHANNELS`."""

import errno
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from unittest.mock import patch

from flstream.transport.channel import Channel
from flstream.transport.pipe import pipe
from flstream.transport.splice import Pages

Ends = tuple[Channel, Channel]


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
}
