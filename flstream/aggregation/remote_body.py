"""Body of an update that is fetched while it is folded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flstream.aggregation.update import naming
from flstream.errors import FlstreamError
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource
from flstream.model.source import Source
from flstream.streaming.coding import Coder
from flstream.streaming.download import RemoteSource
from flstream.streaming.receiver import Receiver
from flstream.streaming.settings import StreamSettings
from flstream.telemetry.events import Transfer


class RemoteBody:
    """Body of an update in another process, fetched each time that a walk reads it.

    Args:
        site: Name of the site, for messages.
        receiver: Receiving side of the channel to the process.
        token: Token of the body.
        settings: Settings of the transfer.
        base: The model that it was trained from, for what is the same in it; None for none.
        check: Called with its layout before all of it is fetched at once, which a whole message is;
            refuses one that does not fit the model.
        decoder_for: Function from its layout to the decoder of its frames; None is for none.
    """

    def __init__(
        self,
        site: str,
        receiver: Receiver,
        token: bytes,
        settings: StreamSettings,
        base: Source | None,
        check: Callable[[Layout], None],
        decoder_for: Callable[[Layout], Coder | None] = lambda layout: None,
    ) -> None:
        self._site = site
        self._receiver = receiver
        self._token = token
        self._settings = settings
        self._base = base
        self._check = check
        self._decoder_for = decoder_for
        self._remotes: list[RemoteSource] = []

    @property
    def cost(self) -> Transfer:
        """Cost of fetching the body so far."""
        return sum((remote.cost for remote in self._remotes), start=Transfer())

    def open(self, step: int) -> Source:
        """Begin to fetch the body, to be read from front to back.

        Args:
            step: Most bytes of a frame, of which one may be kept.

        Raises:
            UpdateRefusedError: It cannot be fetched.
        """
        if self._remotes:
            # A walk that was given up, or that is done, read it last; this one is on any thread.
            self._remotes[-1].leave()
        settings = replace(self._settings, chunk_size=min(self._settings.chunk_size, step))
        with naming(self._site, FlstreamError):
            remote = RemoteSource(
                self._receiver,
                self._token,
                settings,
                digests=settings.reuse and self._base is not None,
            )
            remote.decoder = self._decoder_for(remote.layout)
            self._remotes.append(remote)
            if settings.chunk_size == 0:
                # As the old way does: every update whole, in this process's memory, until all of
                # them have been folded.
                self._check(remote.layout)
                whole = memoryview(bytearray(remote.layout.nbytes))
                if whole:
                    remote.read(0, len(whole), whole)
                return BufferSource(remote.layout, whole)
            if self._base is not None:
                remote.reuse(self._base)
            # All updates of a fold are on their way before the first of them is read.
            remote.begin()
        return remote

    def confirm(self) -> None:
        """Confirm with the sender that the body read last was not changed.

        An UpdateRefusedError says that it was, or that the sender is gone.
        """
        with naming(self._site, FlstreamError):
            self._remotes[-1].confirm()

    def close(self, failure: str = "") -> None:
        """Tell the sender that the body is needed no longer.

        ``failure`` says why the body is of no use; empty where it was used. A StreamingError says
        that the sender is gone.
        """
        if self._remotes:
            self._remotes[-1].close(failure)
        else:
            # Folded elsewhere: a request for its layout alone would bring a small body along.
            self._receiver.begin(self._token, self._settings)
            try:
                self._receiver.settle(failure)
            finally:
                self._receiver.end()
