"""The pipes between the server and one site, and the ends that each of them holds."""

from __future__ import annotations

import os
import socket
from typing import NamedTuple


class LinkEnd(NamedTuple):
    """One end of the three pipes between the server and a site.

    Each pipe has one purpose, so nothing has to be told apart on it, and each end of a data pipe
    is either a service's or a receiver's.

    Attributes:
        control: messages, both ways.
        down: the server's service sends models.
        up: the site's service sends updates.
    """

    control: socket.socket
    down: socket.socket
    up: socket.socket

    def close(self) -> None:
        """Close this process's hold on the pipes."""
        for end in self:
            end.close()

    def abandon(self) -> None:
        """Close the descriptors under objects that others still refer to, as after a fork."""
        for end in self:
            os.close(end.detach())


def link() -> tuple[LinkEnd, LinkEnd]:
    """New pipes: the server's end, and the site's."""
    pairs = [socket.socketpair() for _ in LinkEnd._fields]
    return LinkEnd(*(ours for ours, _ in pairs)), LinkEnd(*(theirs for _, theirs in pairs))
