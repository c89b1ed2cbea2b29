"""The download service: offers snapshots and serves ranges of them to declared receivers.

One thread serves every channel. It never blocks on one of them: each gets a chunk in its turn
whenever it can take more, so that a slow or dead receiver holds up nobody.
"""

from __future__ import annotations

import selectors
import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Self

from flstream.errors import ChannelClosedError, LayoutError, ProtocolError
from flstream.model.body import Scratch, Source
from flstream.model.layout import MAX_HEADER_BYTES
from flstream.streaming.connection import Connection
from flstream.streaming.receiver import StreamSettings
from flstream.streaming.refs import Ref
from flstream.transport.channel import Channel, Signal


class DownloadService:
    """Serves refs to the receivers at the other ends of attached channels.

    Use it as a context manager: leaving it aborts what is still on offer and ends its thread.

    Args:
        name: the name of its thread.
    """

    def __init__(self, name: str = "download-service") -> None:
        self._refs: dict[bytes, Ref] = {}
        self._wake = Signal()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        # Whom the thread is to serve, and by name whom no more, in the order in which it was told.
        self._coming: deque[Connection | str] = deque()
        # Refs that are sent unasked, once the thread has taken them in.
        self._pushing: deque[tuple[Ref, StreamSettings]] = deque()
        self._pushed: list[tuple[Ref, StreamSettings]] = []
        self._scratch = Scratch()
        self._lost: dict[str, str] = {}
        self._closing = False
        self._waking = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def offer(
        self,
        source: Source,
        receivers: Iterable[str],
        on_settled: Callable[[Ref], None] | None = None,
        push: StreamSettings | None = None,
        quorum: int | None = None,
    ) -> Ref:
        """Offer a snapshot to receivers, who need the returned ref's token to fetch it.

        The source must not change before the ref settles. Reading costs nothing here: its bytes
        are taken when they are asked for.

        Args:
            source: the snapshot.
            receivers: names under which their channels were attached.
            on_settled: called once, when the ref has settled, on whatever thread settled it.
            push: send it to the receivers before they ask, in frames of this size, and at first as
                much as this window covers. None leaves it to them to pull it.
            quorum: settle as soon as so many of them have it; by default all of them have to.

        Raises:
            LayoutError: there are more tensors, or longer names, than a layout has room for.
            ValueError: there is no such quorum of these receivers.
        """
        count, header = len(source.layout.tensors), len(source.layout.plain_header)
        if header > MAX_HEADER_BYTES:
            raise LayoutError(
                f"the names and shapes of {count} tensors take {header} bytes, and a layout may "
                f"have {MAX_HEADER_BYTES}; offer them in several parts"
            )

        def forget(ref: Ref) -> None:
            self._refs.pop(ref.token, None)
            self._rouse()  # to let go of what is on its way
            if on_settled is not None:
                on_settled(ref)

        ref = Ref.issue(source, receivers, forget, quorum)
        self._refs[ref.token] = ref
        # A receiver whose channel is gone already will never say that it is done. Its loss is noted
        # before the open refs are told of it, so that a ref made meanwhile hears of it here.
        for name in ref.deliveries:
            if name in self._lost:
                ref.receiver_done(name, self._lost[name])
        if self._closing:
            ref.abort("the service was closed")
        if push is not None and push.frame_size:
            self._pushing.append((ref, push))
            self._rouse()
        return ref

    def attach(self, channel: Channel, receiver: str) -> None:
        """Serve a channel. Whoever holds its other end is taken to be ``receiver``."""
        self._lost.pop(receiver, None)
        self._coming.append(Connection(channel, receiver, self._refs, self._scratch))
        self._wake.set()

    def detach(self, receiver: str) -> None:
        """Close a receiver's channel, if it is still open, and know of the receiver no more.

        What is on offer to it is lost to it. Without this, the name of every receiver that is gone
        is kept, so that an offer to it is settled.
        """
        self._coming.append(receiver)
        self._rouse()

    def close(self) -> None:
        """Abort every ref on offer, close every channel and end the thread."""
        with self._waking:
            if self._closing:
                return
            self._closing = True
            self._wake.set()
        self._thread.join()
        # Not by the thread: it may see the flag, and be gone, before it is woken.
        self._wake.close()
        for coming in self._coming:
            if isinstance(coming, Connection):
                coming.channel.close()
        for ref in list(self._refs.values()):
            ref.abort("the service was closed")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _rouse(self) -> None:
        """Make the thread look at what has changed."""
        with self._waking:
            if not self._closing:
                self._wake.set()

    def _serve(self) -> None:
        with self._selector:
            try:
                while not self._closing:
                    ready = self._selector.select()
                    for key, events in ready:
                        if key.data is not None:
                            self._advance(key.data, events)
                    # What is new comes last: it may end channels that are among those.
                    if any(key.data is None for key, _ in ready):
                        self._take_in()
            finally:
                # Also after a defect, or for want of memory: receivers then see the end of their
                # channels at once, instead of silence until their requests time out.
                for key in list(self._selector.get_map().values()):
                    if key.data is not None:
                        self._drop(key.data, "the service was closed")

    def _take_in(self) -> None:
        self._wake.clear()
        connections = [key.data for key in self._selector.get_map().values() if key.data]
        for connection in connections:
            connection.outbox.let_go()
        self._pushed = [(ref, push) for ref, push in self._pushed if ref.source is not None]
        while self._pushing:
            ref, push = self._pushing.popleft()
            self._pushed.append((ref, push))
            for connection in connections:
                connection.push(ref, push)
        while self._coming:
            connection = self._coming.popleft()
            if isinstance(connection, str):
                self._let_go(connection, connections)
                continue
            self._selector.register(connection.channel, selectors.EVENT_READ, connection)
            connections.append(connection)
            for ref, push in self._pushed:
                connection.push(ref, push)
        for connection in connections:
            if connection.outbox.has_output:
                self._advance(connection, selectors.EVENT_WRITE)

    def _let_go(self, receiver: str, connections: list[Connection]) -> None:
        for connection in [each for each in connections if each.receiver == receiver]:
            connections.remove(connection)
            self._drop(connection, "its channel was closed here")
        self._lost.pop(receiver, None)

    def _advance(self, connection: Connection, events: int) -> None:
        try:
            if events & selectors.EVENT_READ:
                connection.read()
            if events & selectors.EVENT_WRITE or connection.outbox.has_output:
                connection.outbox.write()
        except (ChannelClosedError, ProtocolError) as error:
            # Nobody is there any more, or somebody who does not speak the protocol.
            self._drop(connection, str(error))
            return
        wanted = (connection.takes_input and selectors.EVENT_READ) | (
            connection.outbox.has_output and selectors.EVENT_WRITE
        )
        if self._selector.get_key(connection.channel).events != wanted:
            self._selector.modify(connection.channel, wanted, connection)

    def _drop(self, connection: Connection, reason: str) -> None:
        self._selector.unregister(connection.channel)
        connection.channel.close()
        self._lost[connection.receiver] = reason
        for ref in list(self._refs.values()):
            if connection.receiver in ref.deliveries:
                ref.receiver_done(connection.receiver, reason)
