"""The server's hold on one site."""

from __future__ import annotations

from flstream.client.messages import FromSite
from flstream.simulator.links import LinkEnd
from flstream.streaming.receiver import Receiver
from flstream.streaming.service import DownloadService
from flstream.transport.channel import AbortSignal
from flstream.transport.messages import MessageChannel
from flstream.transport.pipe import PipeChannel


class Site:
    """A site, as the server sees it.

    Attributes:
        name: of the site.
        control: messages to and from it.
        up: where its updates are fetched.
        ended: whether it has said goodbye, or is lost.
    """

    def __init__(
        self, name: str, end: LinkEnd, service: DownloadService, abort: AbortSignal
    ) -> None:
        self.name = name
        self.control: MessageChannel[FromSite] = MessageChannel(
            PipeChannel(end.control, name), name, FromSite
        )
        self.up = Receiver(PipeChannel(end.up, name), name, abort)
        self.ended = False
        service.attach(PipeChannel(end.down, name), receiver=name)
