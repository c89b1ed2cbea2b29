"""Download service: offers snapshots, and serves their ranges to receivers.

Each channel has a thread of its own, so that a slow or dead receiver delays no other.
"""

from __future__ import annotations

import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Self, Unpack

from flstream.errors import LayoutError
from flstream.model.layout import Layout
from flstream.model.source import Source
from flstream.streaming.connection import Connection
from flstream.streaming.receiver import RECONNECT_SECONDS
from flstream.streaming.refs import OfferOptions, Outcome, Ref
from flstream.streaming.settings import DEFAULT_LIMITS, Limits
from flstream.transport.channel import Channel

# Connections that one receiver may have; the oldest one goes.
_MOST_CONNECTIONS = 16
# Refs that are remembered once they have settled, in case that a receiver repeats itself.
_MOST_REMEMBERED = 1024


class DownloadService:
    """Service of refs for the receivers at the other ends of attached channels.

    Use it as a context manager: leaving it aborts all open refs and ends its threads.

    Args:
        limits: Limits on what a receiver may cause.
    """

    def __init__(self, limits: Limits = DEFAULT_LIMITS) -> None:
        self._limits = limits
        self._refs: dict[bytes, Ref] = {}  # on offer, and those that settled last
        self._settled: deque[bytes] = deque()
        # Connections that are open, and why the last one of a receiver's name has ended.
        self._connections: list[Connection] = []
        self._lost: dict[str, str] = {}
        # Scheduled calls, by their ref or receiver.
        self._timers: dict[Ref | str, threading.Timer] = {}
        self._lock = threading.RLock()  # guards all of these
        self._callbacks = ThreadPoolExecutor(1, "callbacks")  # whose thread starts when used
        self._calls_in = 0  # thread
        self._is_closed = False

    def offer(
        self, source: Source, receivers: Iterable[str], **options: Unpack[OfferOptions]
    ) -> Ref:
        """Offer a snapshot to receivers, which fetch it by the returned ref's token.

        The source must not change before the ref settles. Nothing is read here: ranges are read
        when they are requested, by a thread for each receiver.

        Args:
            source: Snapshot to offer: tensors in memory, a file, or a source of your own.
            receivers: Names under which their channels are attached. Without any, the ref is
                finished at once.
            options: See :class:`~flstream.streaming.refs.OfferOptions`.

        Raises:
            LayoutError: There are more tensors, or longer names, than a layout may have.
            ValueError: It is no source, an option makes no sense, or the receivers are one text.
        """
        if not isinstance(getattr(source, "layout", None), Layout) or not hasattr(source, "read"):
            raise ValueError(f"a {type(source).__name__} is no source, with layout and read()")
        count, header = len(source.layout.tensors), len(source.layout.plain_header)
        if header > self._limits.layout_bytes or count > self._limits.layout_tensors:
            raise LayoutError(
                f"the names and shapes of {count} tensors take {header} bytes, and a layout may "
                f"have {self._limits.layout_tensors} and {self._limits.layout_bytes} (Limits); "
                "offer them in several parts, or raise the limits at both ends"
            )
        ref = Ref(source, receivers, self._forget, **options)
        with self._lock:
            self._refs[ref.token] = ref
            # A receiver whose channel is gone will never report that it is done.
            lost = {name: self._lost[name] for name in ref.deliveries if name in self._lost}
        if self._is_closed:
            ref.abort("the service was closed")
        if not ref.deliveries:
            ref.settle(Outcome("finished"))
        for name, reason in lost.items():
            ref.receiver_done(name, reason)
        self._watch(ref)
        return ref

    def attach(self, channel: Channel, receiver: str) -> None:
        """Serve a channel, whose other end is held by ``receiver``.

        A receiver may have several: it is lost once the last of them has ended; where it may come
        back on another one, some seconds later.
        """
        connection = Connection(channel, receiver, self, self._limits)
        with self._lock:
            if self._is_closed:
                channel.close()
                return
            self._lost.pop(receiver, None)
            mine = [other for other in self._connections if other.receiver == receiver]
            if len(mine) >= _MOST_CONNECTIONS:
                self._connections.remove(mine[0])
                mine[0].channel.shut()
            self._connections.append(connection)
            connection.start()

    def detach(self, receiver: str) -> None:
        """Close a receiver's channels, and forget the receiver.

        Refs that are open for it are lost to it. Without this call, the names of lost receivers are
        kept, so that offers to them settle.
        """
        with self._lock:
            mine = [other for other in self._connections if other.receiver == receiver]
            self._connections = [other for other in self._connections if other not in mine]
            self._lost.pop(receiver, None)
            if (timer := self._timers.pop(receiver, None)) is not None:
                timer.cancel()
            refs = self._offered_to(receiver)
        for other in mine:
            other.channel.shut()
        for ref in refs:
            ref.receiver_done(receiver, "its channel was closed here")

    def close(self) -> None:
        """Abort every open ref, close every channel and end the threads."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            connections, refs = self._connections, list(self._refs.values())
            self._connections = []
            for timer in self._timers.values():
                timer.cancel()
        for connection in connections:
            connection.channel.shut()  # its thread ends soon
        for ref in refs:
            ref.abort("the service was closed")
        for connection in connections:
            if connection is not threading.current_thread():
                connection.join()
        # One of the callbacks may be what calls this.
        self._callbacks.shutdown(wait=self._calls_in != threading.get_ident())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Calls from connections.

    def ref(self, token: bytes, receiver: str) -> Ref | None:
        """Return a present or past ref for a receiver; None if it is unknown."""
        ref = self._refs.get(token)
        return ref if ref is not None and receiver in ref.deliveries else None

    def find(
        self, receiver: str, specs: Iterable[tuple[str, int, tuple[str, ...], bool]]
    ) -> list[bytes]:
        """Return the token of the oldest ref on offer that has each of some tensors, or none."""
        with self._lock:
            refs = self._offered_to(receiver)
        return [next((ref.token for ref in refs if ref.has(*spec)), b"") for spec in specs]

    def is_sending_beside(self, connection: Connection) -> bool:
        """Return whether another connection is sending frames."""
        return any(other.fetch for other in self._connections if other is not connection)

    def ended(self, connection: Connection, reason: str) -> None:
        """Record the end of a connection, and of its receiver with the last one."""
        with self._lock:
            if connection not in self._connections:
                return  # detached
            self._connections.remove(connection)
            may_return = connection.channel.beats and not self._is_closed
        if may_return:
            receiver = connection.receiver
            self._later(receiver, RECONNECT_SECONDS, lambda: self._lose(receiver, reason))
        else:
            self._lose(connection.receiver, reason)

    def _lose(self, receiver: str, reason: str) -> None:
        """Count a receiver as failed for its open refs, unless it has reconnected."""
        with self._lock:
            if any(other.receiver == receiver for other in self._connections):
                return
            self._lost[receiver] = reason
            refs = self._offered_to(receiver)
        for ref in refs:
            ref.receiver_done(receiver, reason)

    def _offered_to(self, receiver: str) -> list[Ref]:
        refs = self._refs.values()
        return [ref for ref in refs if ref.source is not None and receiver in ref.deliveries]

    def _forget(self, ref: Ref) -> None:
        """Take a settled ref off, and forget the oldest ones; call ``on_settled``."""
        with self._lock:
            if (timer := self._timers.pop(ref, None)) is not None:
                timer.cancel()
            self._settled.append(ref.token)
            if len(self._settled) > _MOST_REMEMBERED:
                self._refs.pop(self._settled.popleft())
        on_settled = ref.options.get("on_settled")
        if on_settled is not None:
            try:
                self._callbacks.submit(self._call, on_settled, ref)
            except RuntimeError:  # closed meanwhile
                self._call(on_settled, ref)

    def _call(self, on_settled: Callable[[Ref], None], ref: Ref) -> None:
        self._calls_in = threading.get_ident()
        try:
            on_settled(ref)
        except Exception:  # of its owner, whose thread is elsewhere
            traceback.print_exc()

    def _watch(self, ref: Ref) -> None:
        """Drop the stalled receivers of a ref, now and later."""
        seconds = ref.give_up_stalled()
        if seconds is not None:
            self._later(ref, seconds, lambda: self._watch(ref))

    def _later(self, about: Ref | str, seconds: float, call: Callable[[], None]) -> None:
        """Schedule a call, in place of an earlier one on the same subject."""
        timer = threading.Timer(min(seconds, threading.TIMEOUT_MAX), call)
        timer.daemon = True
        with self._lock:
            if self._is_closed or (isinstance(about, Ref) and about.outcome is not None):
                return
            if (earlier := self._timers.pop(about, None)) is not None:
                earlier.cancel()
            self._timers[about] = timer
            timer.start()
