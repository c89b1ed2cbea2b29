"""Bodies of updates: in this process's memory, in a file, or in another process."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from flstream.aggregation.update import naming
from flstream.errors import FlstreamError, StreamingError
from flstream.model.checkpoint import FileSource
from flstream.model.memory import BufferSource
from flstream.model.source import Source
from flstream.streaming.download import RemoteSource
from flstream.streaming.receiver import Receiver
from flstream.streaming.settings import StreamSettings
from flstream.telemetry.events import Transfer

if TYPE_CHECKING:
    from flstream.aggregation.update import CollectedUpdate


class LocalBody:
    """Body of an update in memory or in a file.

    Attributes:
        source: The body as the site sent it.
        cost: Cost of fetching it.
        digest: Digest of what is in the file; empty for memory.
        stays: Whether the file stays once the update is released, as the workflow may fold it more
            than once.
    """

    def __init__(self, source: Source, cost: Transfer | None = None, digest: str = "") -> None:
        self.source = source
        self.cost = cost or Transfer()
        self.digest = digest
        self.stays = False

    @property
    def path(self) -> Path | None:
        """Path of the file; None for memory."""
        return self.source.path if isinstance(self.source, FileSource) else None

    def open(self, update: CollectedUpdate, step: int) -> Source:
        """Return the body, which may be read in any order."""
        return self.source

    def confirm(self) -> None:
        """Nobody changes it."""

    def release(self, failure: str = "") -> None:
        """Remove the file, unless it stays."""
        if self.path is not None and not self.stays:
            self.path.unlink(missing_ok=True)


class RemoteBody:
    """Body of an update in another process, fetched each time that a walk reads it.

    Attributes:
        receiver: Receiving side of the channel to the process.
        token: Token of the body.
        settings: Settings of the transfer.
    """

    def __init__(self, receiver: Receiver, token: bytes, settings: StreamSettings) -> None:
        self.receiver = receiver
        self.token = token
        self.settings = settings
        self._remotes: list[RemoteSource] = []

    @property
    def cost(self) -> Transfer:
        """Cost of fetching the body so far."""
        return sum((remote.cost for remote in self._remotes), start=Transfer())

    def fetch(self, update: CollectedUpdate, chunk_size: int) -> RemoteSource:
        """Open the body of an update; what the model has of it is not to be fetched.

        Raises:
            StreamingError: It cannot be fetched.
        """
        if self._remotes:
            # A walk that was given up, or that is done, read it last; this one is on any thread.
            self._remotes[-1].leave()
        settings = replace(self.settings, chunk_size=chunk_size)
        may_reuse = settings.reuse and update.params_type == "FULL"
        remote = RemoteSource(self.receiver, self.token, settings, digests=may_reuse)
        self._remotes.append(remote)
        remote.decoder = update.form.decoder(remote.layout)
        if may_reuse:
            remote.reuse(update.form.model)
        return remote

    def open(self, update: CollectedUpdate, step: int) -> Source:
        """Begin to fetch the body, to be read from front to back.

        Args:
            update: The update.
            step: Most bytes of a frame, of which one may be kept.

        Raises:
            UpdateRefusedError: It cannot be fetched.
        """
        with naming(update.site, FlstreamError):
            remote = self.fetch(update, min(self.settings.chunk_size, step))
            if self.settings.chunk_size == 0:
                # As the old way does: every update whole, in this process's memory, until all of
                # them have been folded.
                update.expect_fit(remote.layout)
                whole = memoryview(bytearray(remote.layout.nbytes))
                if whole:
                    remote.read(0, len(whole), whole)
                return BufferSource(remote.layout, whole)
            # All updates of a fold are on their way before the first of them is read.
            remote.begin()
        return remote

    def confirm(self) -> None:
        """Ask the sender whether the body that was read last is unchanged.

        Raises:
            RefusedError: It is not.
            StreamingError: The sender is gone.
        """
        self._remotes[-1].confirm()

    def release(self, failure: str = "") -> None:
        """Tell the sender that the body is needed no longer, or why it is of no use."""
        with suppress(StreamingError):  # one that is gone is noticed when it is asked again
            if self._remotes:
                self._remotes[-1].close(failure)
                return
            # Folded elsewhere: a request for its layout alone would bring a small body along.
            self.receiver.begin(self.token, self.settings)
            try:
                self.receiver.settle(failure)
            finally:
                self.receiver.end()
