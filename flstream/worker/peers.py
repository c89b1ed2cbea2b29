"""A worker's end of what the server has workers do with each other: connect, offer, fold.

A thread of its own takes the server's requests, since the training code has the main thread: an
update is offered, and others are folded, while the site that trained waits in ``send``.
"""

from __future__ import annotations

import os
import socket
import threading
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from flstream.errors import ChannelClosedError, FlstreamError, RefusedError, StreamingError
from flstream.model.checkpoint import FileSource
from flstream.model.source import Source
from flstream.streaming.receiver import Receiver
from flstream.streaming.refs import Ref
from flstream.streaming.service import DownloadService
from flstream.streaming.settings import Limits
from flstream.telemetry.events import SERVER
from flstream.transport.channel import Channel
from flstream.transport.link import LinkRelay
from flstream.transport.messages import MessageChannel
from flstream.transport.tcp import Admission, StartToken, TcpListener, dial
from flstream.worker.peer_fold import WorkerFold
from flstream.worker.peer_messages import (
    Dial,
    FoldTask,
    Keep,
    Listen,
    Listening,
    Offered,
    OfferModel,
    OfferUpdate,
    PeerDone,
    PeerFailed,
    PeerReply,
    PeerRequest,
    Reach,
    Serve,
    Withdraw,
)


@dataclass
class HeldUpdate:
    """An update that waits in this process until it is settled.

    Attributes:
        source: Its body.
        refs: What peers were offered of it, by token.
    """

    source: Source
    refs: dict[bytes, Ref] = field(default_factory=dict)


class Peers:
    """The peers of a worker, and what it does for them.

    Args:
        sock: The worker's end of the socket for the server's requests.
        service: Offers bodies to peers.
        limits: What a peer may cause.
        relay: Emulates the link of the worker's site; None where none is emulated.
        worker: Name of the worker, which reaches itself without a link.
    """

    def __init__(
        self,
        sock: socket.socket,
        service: DownloadService,
        limits: Limits,
        relay: LinkRelay | None = None,
        worker: str = "",
    ) -> None:
        self._socket = sock
        self._service = service
        self._limits = limits
        self._relay = relay
        self._worker = worker
        self._channel: MessageChannel[PeerRequest] = MessageChannel(sock, SERVER, PeerRequest)
        self._receivers: dict[str, Receiver] = {}
        # The channels to peers, which a forked child must not keep open.
        self._channels: dict[str, Channel] = {}
        self._listener: TcpListener | None = None
        self._held: dict[int, HeldUpdate] = {}
        self._models: dict[bytes, Ref] = {}
        # The model that was offered or made last: its header was read, its digests are known.
        self._newest: tuple[str, FileSource] | None = None
        self._fold: WorkerFold | None = None
        self._thread = threading.Thread(target=self._serve, name="peers", daemon=True)
        self._thread.start()

    def receiver(self, peer: str) -> Receiver:
        """The receiving side of the channel to a peer.

        Raises:
            RefusedError: There is no such channel.
        """
        try:
            return self._receivers[peer]
        except KeyError as error:
            raise RefusedError(f"there is no connection to {peer}") from error

    def held(self, effect: int) -> Source:
        """The update of an effect's task that waits here.

        Raises:
            RefusedError: There is none.
        """
        return self._held_update(effect).source

    def hold(self, effect: int, source: Source) -> None:
        """Have an update at hand for peers, until :meth:`release`."""
        self._held[effect] = HeldUpdate(source)

    def release(self, effect: int) -> None:
        """Offer an update to no peer any more: its owner may do with the memory what it likes."""
        held = self._held.pop(effect, None)
        if held is not None:
            for ref in list(held.refs.values()):
                ref.abort("the update is settled")

    def abandon(self) -> None:
        """Close the descriptors of the sockets to peers, in a forked child that inherited them."""
        for each in self._channels.values():
            if each.fileno() >= 0:
                os.close(each.detach().detach())
        if self._listener is not None:
            self._listener.abandon()

    def close(self) -> None:
        """End the thread, and what it is doing."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        for each in self._channels.values():
            each.close()
        if self._listener is not None:
            self._listener.close()

    def _serve(self) -> None:
        try:
            # Closed by the server at the end of the run, or because this worker is given up.
            with suppress(StreamingError):
                while True:
                    request = self._channel.receive()
                    self._channel.send(self._answer(request))
        finally:
            # Whatever has ended this, the server is to see at once that nothing more will come.
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
            self._end_fold()

    def _answer(self, request: PeerRequest) -> PeerReply:
        try:
            return self._meet(request)
        except ChannelClosedError:
            raise  # of the server, or of a peer that the next request tells of
        except FlstreamError as error:
            return PeerFailed(type(error).__name__, str(error))

    def _meet(self, request: PeerRequest) -> PeerReply:
        match request:
            case Serve(peer):
                channel = Channel(self._received(), peer)
                self._service.attach(self._linked(channel, peer, peer), receiver=peer)
                return PeerDone()
            case Reach(peer):
                self._add(peer, Channel(self._received(), _worker_of(peer)))
                return PeerDone()
            case Listen(peer):
                return self._listen_for(peer)
            case Dial(peer, address, key):
                self._add(peer, dial(address, StartToken(key), _worker_of(peer)))
                return PeerDone()
            case OfferUpdate(effect, peer):
                return self._offer_update(effect, peer)
            case OfferModel():
                return self._offer_model(request)
            case Withdraw(token, reason):
                self._withdraw(token, reason)
                return PeerDone()
            case FoldTask():
                self._end_fold()
                self._fold = WorkerFold(request, self, self._channel.send)
                return self._fold.walk()
            case Keep():
                return self._keep()

    def _received(self) -> socket.socket:
        return socket.socket(fileno=self._channel.take_descriptor())

    def _listen_for(self, peer: str) -> Listening:
        if self._listener is None:
            # Where the server reaches this node, other nodes do.
            host = self._socket.getsockname()[0]
            self._listener = TcpListener(f"[{host}]:0", self._serve_peer)
        key = self._listener.admit(peer).key
        return Listening(self._listener.address, key)

    def _serve_peer(self, channel: Channel, admission: Admission) -> None:
        assert self._listener is not None
        self._listener.dismiss(admission.token)  # a token is of use once
        peer = admission.name
        self._service.attach(self._linked(channel, peer, peer), receiver=peer)

    def _is_emulated(self, process: str) -> bool:
        return self._relay is not None and _worker_of(process) != self._worker

    def _linked(self, channel: Channel, process: str, peer: str) -> Channel:
        """Return a channel to another worker's process over the link of this worker's site."""
        if self._relay is None or not self._is_emulated(process):
            return channel
        return self._relay.channel(channel.detach(), peer, _worker_of(process))

    def _add(self, peer: str, channel: Channel) -> None:
        channel = self._linked(channel, peer, _worker_of(peer))
        for name in list(self._channels):  # an earlier process of that worker
            if _worker_of(name) == _worker_of(peer):
                self._receivers.pop(name, None)
                self._channels.pop(name).close()
        self._channels[peer] = channel
        self._receivers[peer] = Receiver(channel, _worker_of(peer), limits=self._limits)

    def _offer_update(self, effect: int, peer: str) -> Offered:
        held = self._held_update(effect)
        for earlier in list(held.refs.values()):
            # Of a fold that was given up: what is left of it is not to be sent any more.
            earlier.abort("the fold is done again")
        held.refs.clear()
        ref = self._service.offer(held.source, [peer])
        held.refs[ref.token] = ref
        return Offered(ref.token)

    def _offer_model(self, request: OfferModel) -> Offered:
        if self._newest is None or self._newest[0] != request.digest:
            self._newest = request.digest, FileSource(Path(request.path))
        ref = self._service.offer(self._newest[1], [request.peer])
        self._models[ref.token] = ref
        return Offered(ref.token)

    def _held_update(self, effect: int) -> HeldUpdate:
        held = self._held.get(effect)
        if held is None:
            raise RefusedError(f"the update of effect {effect} is not held here any more")
        return held

    def _withdraw(self, token: bytes, reason: str) -> None:
        if (ref := self._models.pop(token, None)) is not None:
            ref.abort(reason)

    def _keep(self) -> PeerReply:
        fold = self._fold
        if fold is None:
            raise RefusedError("no model was folded here that could be kept")
        kept, digest, source = fold.keep()
        self._newest, self._fold = (digest, source), None
        return kept

    def _end_fold(self) -> None:
        fold, self._fold = self._fold, None
        if fold is not None:
            fold.close()


def _worker_of(process: str) -> str:
    """Return the name of the worker that a process is of."""
    return process.rpartition("/")[0]
