"""What packets are made of: bytes that are copied, lent, in a file, or gathered in pieces."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flstream.model.descriptors import file_id
from flstream.model.source import Extent, Scratch, Source, views_of
from flstream.transport.channel import Channel
from flstream.transport.lending import Lending
from flstream.transport.splice import Pages
from flstream.transport.views import advance


class Content(Protocol):
    """Part of a packet that is still to be sent."""

    @property
    def left(self) -> int:
        """Number of bytes to be sent."""
        ...

    def send_some(self, channel: Channel) -> int:
        """Send what the channel takes, and return the number of bytes."""
        ...

    def lent(self) -> Lending | None:
        """Return what was lent to the channel since the last call, if anything was."""
        ...


class Copied:
    """Bytes that the kernel copies.

    Args:
        views: The bytes.
        more: Whether others follow at once.
    """

    def __init__(self, views: Sequence[memoryview], *, more: bool = False) -> None:
        self._views = list(views)
        self._more = more

    def after(self, head: memoryview) -> Copied:
        """Return the same with bytes before it."""
        return Copied([head, *self._views])

    @property
    def left(self) -> int:
        """Number of bytes to be sent."""
        return sum(map(len, self._views))

    def send_some(self, channel: Channel) -> int:
        """Send what the channel takes, and return the number of bytes."""
        count = channel.send_some(self._views, more=self._more)
        self._views = advance(self._views, count)
        return count

    def lent(self) -> Lending | None:
        """Return nothing."""
        return None


class Lent:
    """Bytes that the receiver reads from the sender's memory, so that they are not copied twice.

    Args:
        view: The bytes, in pages of private memory that have nothing else on them.
    """

    def __init__(self, view: memoryview) -> None:
        self._view = view
        self._pages = Pages([view])

    @property
    def left(self) -> int:
        """Number of bytes to be sent."""
        return self._pages.left

    def send_some(self, channel: Channel) -> int:
        """Send what the channel takes, and return the number of bytes."""
        return channel.lend_some(self._pages)

    def lent(self) -> Lending | None:
        """Return what was lent to the channel since the last call, if anything was."""
        taken = self._pages.taken()
        return Lending(taken, self._view) if taken else None


class InFile:
    """Bytes of a file, which the receiver reads from the page cache."""

    def __init__(self, source: Source, extent: Extent, nbytes: int) -> None:
        self._source = source  # the descriptor is open as long as it exists
        self._fd, self._offset, self._immutable = extent.fd, extent.offset, extent.immutable
        self._left = self._noted = nbytes

    @property
    def left(self) -> int:
        """Number of bytes to be sent."""
        return self._left

    def send_some(self, channel: Channel) -> int:
        """Send what the channel takes, and return the number of bytes."""
        count = channel.send_file_some(
            self._fd, self._offset, self._left, immutable=self._immutable
        )
        self._offset += count
        self._left -= count
        return count

    def lent(self) -> Lending | None:
        """Return what was lent to the channel since the last call, if anything was."""
        sent, self._noted = self._noted > self._left, self._left
        return Lending((), file=file_id(self._fd)) if sent else None


class Gathered:
    """Bytes of a source that does not have them in one place, which are gathered as they are sent.

    Args:
        source: Source of the bytes.
        start: Offset in bytes of the first one.
        stop: Offset in bytes after the last one; not many more, for all of them are gathered anew
            each time that the channel takes some.
    """

    def __init__(self, source: Source, start: int, stop: int) -> None:
        self._source = source
        self._next, self._start, self._stop = start, start, stop

    @property
    def left(self) -> int:
        """Number of bytes to be sent."""
        return self._stop - self._next

    def send_some(self, channel: Channel) -> int:
        """Send what the channel takes, and return the number of bytes."""
        views = list(views_of(self._source, self._start, self._stop, Scratch()))
        count = channel.send_some(advance(views, self._next - self._start))
        self._next += count
        return count

    def lent(self) -> Lending | None:
        """Return nothing."""
        return None
