"""The download service: offers snapshots, and serves ranges of them to declared receivers.

One thread serves every channel. It never blocks on one of them: each is sent a chunk in its turn
whenever it can take more, so that a slow or dead receiver delays no other.
"""

from __future__ import annotations

import selectors
import threading
from collections import deque
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Self, Unpack

from flstream.errors import ChannelClosedError, LayoutError, ProtocolError
from flstream.model.source import Scratch, Source
from flstream.streaming.callbacks import Callbacks
from flstream.streaming.connection import Connection
from flstream.streaming.deadlines import Deadlines
from flstream.streaming.limits import DEFAULT_LIMITS, Limits
from flstream.streaming.offers import Offers
from flstream.streaming.refs import OfferOptions, Outcome, Ref
from flstream.transport.channel import Channel, Signal

# Connections that one receiver may have; the oldest one goes.
_MOST_CONNECTIONS = 16


class DownloadService:
    """Serves refs to the receivers at the other ends of attached channels.

    Use it as a context manager: leaving it aborts all open refs and ends its thread.

    Args:
        name: Name of its thread.
        limits: What a receiver may cause.
    """

    def __init__(self, name: str = "download-service", limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._offers = Offers(self._take_back, self._note_settled)
        self._wake = Signal()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._wake, selectors.EVENT_READ)
        # Connections to be served, names of receivers to be detached, and refs whose receivers may
        # stall, in the order of the calls.
        self._changes: deque[Connection | Ref | tuple[str, list[Ref]]] = deque()
        self._callbacks = Callbacks(f"{name}-callbacks")
        self._scratch = Scratch()
        self._digesting = ThreadPoolExecutor(1, f"{name}-digests")  # whose thread starts when used
        # Connections with requests that can be answered now, in the order of their turns.
        self._busy: dict[Connection, None] = {}
        # Connections that are open, and why the last one of a receiver's name has ended.
        self._connections: set[Connection] = set()
        self._lost: dict[str, str] = {}
        self._losing = threading.Lock()
        self._deadlines = Deadlines(self._drop, self._lose)
        self._closing = False
        self._waking = threading.Lock()
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def offer(
        self, source: Source, receivers: Iterable[str], **options: Unpack[OfferOptions]
    ) -> Ref:
        """Offer a snapshot to receivers, which need the returned ref's token to fetch it.

        The source must not change before the ref settles. Nothing is read here: ranges are read
        when they are requested.

        Args:
            source: Snapshot to offer.
            receivers: Names under which their channels are attached. Without any, the ref is
                finished at once.
            options: See :class:`~flstream.streaming.refs.OfferOptions`.

        Raises:
            LayoutError: There are more tensors, or longer names, than a layout may have.
            ValueError: The source lacks random access, the quorum is not from 1 to the number of
                receivers, a timeout or a size makes no sense, or the receivers are one text.
        """
        if not getattr(source, "random_access", True):
            raise ValueError(
                "a source that is read once cannot be offered; copy it into a file or memory first"
            )
        count, header = len(source.layout.tensors), len(source.layout.plain_header)
        if header > self._limits.layout_bytes or count > self._limits.layout_tensors:
            raise LayoutError(
                f"the names and shapes of {count} tensors take {header} bytes, and a layout may "
                f"have {self._limits.layout_tensors} and {self._limits.layout_bytes} (Limits); "
                "offer them in several parts, or raise the limits at both ends"
            )
        ref = self._offers.add(source, receivers, **options)
        if not ref.deliveries:
            ref.settle(Outcome("finished"))
        # A receiver whose channel is gone will never report that it is done. The thread records the
        # loss before it tells the open refs, so that a ref made meanwhile learns of it here.
        for name in ref.deliveries:
            if (reason := self._lost.get(name)) is not None:
                ref.receiver_done(name, reason)
        if self._closing:
            ref.abort("the service was closed")
        if options.get("stall_timeout") is not None:
            self._changes.append(ref)
            self._wake_thread()
        return ref

    def attach(self, channel: Channel, receiver: str) -> None:
        """Serve a channel, whose other end is held by ``receiver``.

        A receiver may have several: it is lost once the last of them has ended; where it may come
        back on another one, some seconds later.
        """
        connection = Connection(
            channel, receiver, self._offers, self._scratch, self._limits, self._digesting
        )
        with self._losing:
            self._lost.pop(receiver, None)
            self._connections.add(connection)
        self._changes.append(connection)
        if not self._wake_thread():
            channel.close()

    def detach(self, receiver: str) -> None:
        """Close a receiver's channels, and forget the receiver, also one that may come back.

        Refs that are open for it are lost to it. Without this call, the names of lost receivers are
        kept, so that offers to them settle.
        """
        # Not what is offered to it from here on: it may come again.
        refs = [ref for ref in list(self._offers.refs.values()) if receiver in ref.deliveries]
        self._changes.append((receiver, refs))
        self._wake_thread()

    def close(self) -> None:
        """Abort every open ref, close every channel and end the thread."""
        with self._waking:
            if self._closing:
                return
            self._closing = True
            self._wake.set()
        self._thread.join()
        # Not in the thread, which may see the flag and end before it is woken.
        self._wake.close()
        for change in self._changes:
            if isinstance(change, Connection):
                change.channel.close()
        for ref in list(self._offers.refs.values()):
            ref.abort("the service was closed")
        self._digesting.shutdown()
        self._callbacks.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _note_settled(self, ref: Ref) -> None:
        self._wake_thread()  # to release frames that are being sent
        on_settled = ref.options.get("on_settled")
        if on_settled is not None:
            self._callbacks.call(on_settled, ref)

    def _take_back(self, ref: Ref) -> None:
        """Have no receiver read a ref's memory any more."""
        with self._losing:
            connections = [each for each in self._connections if each.receiver in ref.deliveries]
        for connection in connections:
            connection.send_queue.loans.take_back(ref.token)

    def _wake_thread(self) -> bool:
        """Wake the thread, to make it see what has changed; return False if it has ended."""
        with self._waking:
            if not self._closing:
                self._wake.set()
            return not self._closing

    def _serve(self) -> None:
        with self._selector:
            try:
                while not self._closing:
                    # A connection whose requests take long is served a piece of them in each turn.
                    ready = self._selector.select(0 if self._busy else self._deadlines.seconds_left)
                    events_of = dict.fromkeys(self._busy, 0)
                    events_of |= {key.data: events for key, events in ready if key.data is not None}
                    for connection, events in events_of.items():
                        self._advance(connection, events)
                    # Changes come last, since they may close channels that are ready.
                    if any(key.data is None for key, _ in ready):
                        self._apply_changes()
                    self._deadlines.act()
            finally:
                # Also after a defect or a lack of memory, so that receivers see the end of their
                # channels at once, instead of silence until their requests time out.
                for key in list(self._selector.get_map().values()):
                    if key.data is not None:
                        self._end(key.data)
                        self._lose(key.data.receiver, "the service was closed")

    def _apply_changes(self) -> None:
        self._wake.clear()
        connections = [key.data for key in self._selector.get_map().values() if key.data]
        for connection in connections:
            connection.send_queue.drop_settled()
        while self._changes:
            match self._changes.popleft():
                case (receiver, refs):
                    self._detach(receiver, refs, connections)
                case Ref() as ref:
                    self._deadlines.watch(ref)
                case Connection() as connection:
                    self._make_room(connection.receiver)
                    self._selector.register(connection.channel, selectors.EVENT_READ, connection)
                    connections.append(connection)
                    connection.greet()
                    self._deadlines.is_back(connection.receiver)
                    self._deadlines.watch_silence(connection)
        for connection in connections:
            if connection.send_queue.has_output:
                self._advance(connection, selectors.EVENT_WRITE)

    def _detach(self, receiver: str, refs: list[Ref], connections: list[Connection]) -> None:
        for connection in [each for each in connections if each.receiver == receiver]:
            connections.remove(connection)
            self._end(connection)
        self._deadlines.is_back(receiver)
        self._lost.pop(receiver, None)
        for ref in refs:
            ref.receiver_done(receiver, "its channel was closed here")

    def _advance(self, connection: Connection, events: int) -> None:
        if connection not in self._connections:
            return  # another one superseded it in this turn
        try:
            if events & selectors.EVENT_READ:
                connection.read()
            greeted = connection.instance is not None
            connection.answer_some()
            if connection.instance and not greeted:
                self._supersede(connection)
            if events & selectors.EVENT_WRITE or connection.send_queue.has_output:
                connection.send_queue.write()
        except (ChannelClosedError, ProtocolError) as error:
            # The receiver is gone, or does not follow the protocol.
            self._drop(connection, str(error))
            return
        if connection.is_busy:
            self._busy[connection] = None
        else:
            self._busy.pop(connection, None)
        wanted = (connection.takes_input and selectors.EVENT_READ) | (
            connection.send_queue.has_output and selectors.EVENT_WRITE
        )
        if self._selector.get_key(connection.channel).events != wanted:
            self._selector.modify(connection.channel, wanted, connection)

    def _make_room(self, receiver: str) -> None:
        """Drop the oldest connection of a receiver that has too many."""
        served = [key.data for key in self._selector.get_map().values() if key.data]
        mine = [each for each in served if each.receiver == receiver]
        if len(mine) >= _MOST_CONNECTIONS:
            self._drop(mine[0], f"it has more than {_MOST_CONNECTIONS} connections")

    def _supersede(self, connection: Connection) -> None:
        """Drop earlier connections of a receiver that came back before their end was known."""
        who = connection.receiver, connection.instance
        for each in list(self._connections):
            if each is not connection and (each.receiver, each.instance) == who:
                self._drop(each, "its receiver has come back on another channel")

    def _end(self, connection: Connection) -> None:
        if connection not in self._connections:
            return
        self._selector.unregister(connection.channel)
        self._busy.pop(connection, None)
        self._deadlines.forget(connection)
        # What waits in the pair can still be read once this end is closed.
        connection.send_queue.loans.take_back()
        connection.channel.close()
        with self._losing:
            self._connections.discard(connection)

    def _drop(self, connection: Connection, reason: str) -> None:
        self._end(connection)
        receiver = connection.receiver
        may_return = connection.channel.beats and not self._closing
        with self._losing:
            if any(each.receiver == receiver for each in self._connections):
                return  # it has come back meanwhile, or has another one
            if not may_return:
                self._lost[receiver] = reason
        if may_return:
            self._deadlines.expect_back(receiver, reason)
        else:
            self._lose(receiver, reason)

    def _lose(self, receiver: str, reason: str) -> None:
        """Have open refs know that a receiver will not be done."""
        with self._losing:
            if any(each.receiver == receiver for each in self._connections):
                return
            self._lost[receiver] = reason
            refs = [ref for ref in list(self._offers.refs.values()) if receiver in ref.deliveries]
        for ref in refs:
            ref.receiver_done(receiver, reason)
