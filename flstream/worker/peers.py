"""A worker's work with other workers: offer, connect, fold.

A thread of its own takes the server's requests, since the training code has the main thread: an
update is fetched, and others are folded, while the site that trained waits in ``send``.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import count
from pathlib import Path

from flstream.aggregation.adoption import FoldKeeper
from flstream.aggregation.ahead import WriteBehind
from flstream.aggregation.update import CollectedUpdate, naming
from flstream.aggregation.update_body import LocalBody, RemoteBody
from flstream.aggregation.walk import fold_updates
from flstream.codecs.chain import UpdateForm, chain_of
from flstream.errors import ChannelClosedError, FlstreamError, RefusedError, StreamingError
from flstream.job.bodies import MAIN
from flstream.model.checkpoint import FileSource
from flstream.model.source import Source
from flstream.runs.model_draft import model_draft
from flstream.streaming.receiver import Receiver
from flstream.streaming.service import DownloadService
from flstream.streaming.settings import RUN_LIMITS
from flstream.telemetry.events import SERVER
from flstream.transport.channel import Channel
from flstream.transport.link import LinkRelay
from flstream.transport.messages import MessageChannel
from flstream.transport.tcp import UNIX, Admission, StartToken, TcpListener, dial
from flstream.worker.messages import Offered, SiteAnswer
from flstream.worker.peer_messages import (
    Folded,
    Folding,
    FoldTask,
    Offer,
    PeerFailed,
    PeerReply,
    PeerRequest,
)
from flstream.worker.worker_info import WorkerInfo

# Seconds between reports of how far a fold is.
_REPORT_SECONDS = 0.1


class Peers:
    """Peers of a worker, and its work for them.

    Args:
        info: Facts about the worker.
        sock: The worker's end of the socket for the server's requests.
        service: Has the updates on offer to the server; offers models to peers.
        relay: Emulates the link of the worker's site; None where none is emulated.
    """

    def __init__(
        self,
        info: WorkerInfo,
        sock: socket.socket,
        service: DownloadService,
        relay: LinkRelay | None = None,
    ) -> None:
        self.info = info
        self._socket = sock
        self._service = service
        self._relay = relay
        self._channel: MessageChannel[PeerRequest] = MessageChannel(sock, SERVER, PeerRequest)
        self._listener: TcpListener | None = None
        self._numbers = count(1)
        # Names under which each peer was offered a model last.
        self._receivers: dict[str, str] = {}
        self._thread = threading.Thread(target=self._serve, name="peers", daemon=True)
        self._thread.start()

    def dial(self, offered: Offered, role: str = "receiver") -> Receiver:
        """Connect to a peer for a body on offer.

        The role is ``server`` for an update, which is fetched in the place of the server.
        """
        channel = dial(offered.address, StartToken(offered.key), offered.peer, role)
        channel = self._linked(channel, f"{offered.peer} {next(self._numbers)}")
        return Receiver(channel, offered.peer, limits=RUN_LIMITS)

    def own_update(self, token: bytes) -> Source:
        """Return this worker's update that is on offer to the server."""
        ref = self._service.ref(token, SERVER)
        source = None if ref is None else ref.source
        if source is None:
            raise RefusedError("the update is not on offer any more")
        return source

    def close(self) -> None:
        """End the thread and its work."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
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

    def _answer(self, request: PeerRequest) -> PeerReply:
        try:
            match request:
                case Offer():
                    return self._offer(request)
                case FoldTask():
                    return fold(request, self, self._channel.send)
        except ChannelClosedError:
            raise  # of the server, which is gone
        except FlstreamError as error:
            return PeerFailed(type(error).__name__, [*map(str, error.args)])

    def _offer(self, request: Offer) -> Offered:
        if self._listener is None:
            # Where the server reaches this node, other nodes do.
            is_local = self._socket.family == socket.AF_UNIX
            address = UNIX if is_local else f"[{self._socket.getsockname()[0]}]:0"
            self._listener = TcpListener(address, self._attach)
        name = f"{request.peer} {next(self._numbers)}"
        token, role = request.token, SERVER
        if request.path:
            model = FileSource(Path(request.path))
            self._service.detach(self._receivers.pop(request.peer, name))  # of an earlier task
            self._receivers[request.peer] = name
            token, role = self._service.offer(model, [name]).token, "receiver"
        key = self._listener.admit(name, role).key
        return Offered(self.info.name, self._listener.address, key, token)

    def _attach(self, channel: Channel, admission: Admission) -> None:
        """Serve a peer under its own name, or in the server's place."""
        token, name, role = admission
        assert self._listener is not None
        self._listener.dismiss(token)  # a key is of use once
        receiver = SERVER if role == SERVER else name
        self._service.attach(self._linked(channel, name), receiver=receiver)

    def _linked(self, channel: Channel, name: str) -> Channel:
        """Return a channel to another worker over the link of this worker's site."""
        peer = name.rpartition(" ")[0]
        if self._relay is None or peer == self.info.name:
            return channel
        return self._relay.channel(channel.detach(), peer, name)


def fold(task: FoldTask, peers: Peers, report: Callable[[Folding], None]) -> Folded:
    """Fold peers' updates into the next model as a server does; no file on failure.

    The report is called with how far the fold is, now and then.

    Raises:
        UpdateRefusedError: An update is of no use.
        FlstreamError: The model cannot be made, or the server is gone.
    """
    base, info = FileSource(Path(task.base)), peers.info
    codecs = info.job.streaming.codecs
    # Frames come as they are: they are encoded for the server, which has other models.
    form = UpdateForm(base, chain_of(codecs.of_updates)._replace(frames=None))
    reported = time.monotonic()

    def on_range(done: int) -> None:
        nonlocal reported
        if time.monotonic() - reported >= _REPORT_SECONDS:
            reported = time.monotonic()
            report(Folding(done))

    def update_of(answer: SiteAnswer, where: Offered | str) -> CollectedUpdate:
        """Return an update as the walk reads it."""
        body: LocalBody | RemoteBody
        with naming(answer.site, StreamingError):
            if isinstance(where, str):
                body = LocalBody(FileSource(Path(where)))
            elif where.peer == info.name:
                body = LocalBody(peers.own_update(where.token))
            else:  # which is fetched in the server's place
                receiver = connections.enter_context(peers.dial(where, SERVER))
                body = RemoteBody(receiver, where.token, info.streaming)
        return CollectedUpdate(
            answer.site, body, form, answer.weight, answer.params_type, answer.partial
        )

    state = None if task.state is None else FileSource(Path(task.state))
    drafting = model_draft(
        Path(task.path),
        {MAIN: base.layout},
        task.metadata,
        task.rule,
        task.optimizer,
        state,
        chain_of(codecs.of_models),
        base,
    )
    keeper = FoldKeeper(lambda site: Path(task.last[site]), base, task.rule, partial(on_range, 0))
    with ExitStack() as connections, drafting as draft:
        updates = [update_of(*update) for update in task.updates]
        for update in updates if task.last else ():
            keeper.keep(update, task.step)
            report(Folding(0, dict(keeper.digests)))
        with closing(WriteBehind(draft.target.layout, draft.target.write)) as sink:
            walk = sink, task.step, on_range, draft.optimization
            digest = fold_updates(base, updates, task.rule, *walk)
        costs = {update.site: update.body.cost for update in updates}
        began = time.monotonic()
        digests = draft.finish(digest)
    unchanged = [update.site for update in updates if not update.has_changed]
    return Folded(digests, unchanged, costs, time.monotonic() - began)
