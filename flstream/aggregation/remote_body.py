"""An update that is fetched while it is folded: what goes wrong on the way is its site's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from flstream.errors import (
    AbortedError,
    FlstreamError,
    StreamingError,
    UpdateRefusedError,
)
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource
from flstream.model.source import OnRange, Sink, Source
from flstream.streaming.coding import DecoderFor
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.remote import RemoteSource, close_ref
from flstream.telemetry.events import Transfer


class RemoteBody:
    """The body of an update in another process. It is fetched each time a walk reads it.

    Args:
        site: Name of the site, for messages.
        receiver: Receiving side of the channel to the process.
        token: Token of the body.
        settings: How it is streamed.
        base: The model that it was trained from, for what is the same in it; None for none.
        check: Called with its layout before all of it is fetched at once, which a whole message is;
            raises :class:`UpdateRefusedError` if it does not fit.
        decoder_for: Makes what gives encoded frames back; None to have them as they are.
    """

    def __init__(
        self,
        site: str,
        receiver: Receiver,
        token: bytes,
        settings: StreamSettings,
        base: Source | None,
        check: Callable[[Layout], None],
        decoder_for: DecoderFor | None = None,
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
        """The cost of fetching it so far."""
        return sum((remote.cost for remote in self._remotes), start=Transfer())

    @property
    def frame_size(self) -> int:
        """Bytes of the longest frame in which it may be fetched; 0 is the whole of it at once."""
        return self._settings.frame_size

    def fetch_in_frames(self, size: int) -> None:
        """Fetch it in frames of at most so many bytes, unless it comes whole."""
        if self._settings.chunk_size:
            self._settings = replace(self._settings, chunk_size=size)

    def open(self) -> Source:
        """Begin to fetch it.

        Raises:
            UpdateRefusedError: It cannot be fetched.
        """
        if self._remotes:
            # A walk that was given up, or that is done, read it last; this one is on any thread.
            self._remotes[-1].leave()
        try:
            remote = RemoteSource(
                self._receiver, self._token, self._settings, decoder_for=self._decoder_for
            )
            self._remotes.append(remote)
            if self._settings.chunk_size == 0:
                # As the old way does: every update whole, in this process's memory, until all of
                # them have been folded.
                self._check(remote.layout)
                return BufferSource(remote.layout, remote.receive_whole())
            if self._base is not None:
                remote.reuse(self._base)
            # All updates of a fold are on their way before the first of them is read.
            remote.begin()
        except (AbortedError, UpdateRefusedError):
            raise
        except FlstreamError as error:
            raise UpdateRefusedError(self._site, f"could not be fetched: {error}") from error
        return _AttributedSource(remote, self._site)

    def close(self, failure: str = "") -> None:
        """Let the sender know that it is not needed any more.

        Args:
            failure: Why it is of no use; empty if it was used.

        Raises:
            StreamingError: The sender is gone.
        """
        if self._remotes:
            self._remotes[-1].close(failure)
        else:
            # It was folded elsewhere, so not even its layout is asked for: a small body would come.
            close_ref(self._receiver, self._token, self._settings, failure)


class _AttributedSource:
    """A remote source whose failures name the site."""

    random_access = False
    lendable = False
    extent = None
    changed = None

    def __init__(self, remote: RemoteSource, site: str) -> None:
        self.layout = remote.layout
        self._remote = remote
        self._site = site

    def deliver(self, sink: Sink, on_range: OnRange | None) -> None:
        """Receive the whole update into a sink."""
        try:
            self._remote.deliver(sink, on_range)
        except AbortedError:
            raise
        except StreamingError as error:
            raise self._refused(error) from error

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Receive the next bytes."""
        try:
            self._remote.read(start, stop, into)
        except AbortedError:
            raise
        except StreamingError as error:
            raise self._refused(error) from error

    def _refused(self, error: StreamingError) -> UpdateRefusedError:
        return UpdateRefusedError(self._site, f"could not be fetched: {error}")
