"""A server that a worker can be tried against: real pipes, real downloads, no workflow."""

from __future__ import annotations

import textwrap
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Self, TypeVar

from journal_support import a_job

from flstream.engines.engine import WorkerSockets, worker_socket_pairs
from flstream.errors import ChannelClosedError
from flstream.model.copy import copy
from flstream.model.header import parse_header
from flstream.model.memory import BufferSource, MemoryBody, Params
from flstream.runs.results import StateVersion
from flstream.streaming.download import RemoteSource
from flstream.streaming.receiver import Receiver
from flstream.streaming.service import DownloadService
from flstream.streaming.settings import StreamSettings
from flstream.telemetry.events import SERVER
from flstream.transport.channel import Channel
from flstream.transport.messages import MessageChannel
from flstream.worker.messages import (
    Answered,
    Failed,
    FromWorker,
    InlineUpdate,
    OfferedUpdate,
    Progress,
    SiteTask,
    Stop,
    Task,
    TaskKind,
    ToWorker,
)
from flstream.worker.peers import Peers
from flstream.worker.worker import Worker
from flstream.worker.worker_info import WorkerInfo

PEER = "worker"
# Seconds: whoever is asked may have to import torch first, beside other tests.
PATIENCE = 60.0
SETTINGS = StreamSettings(request_timeout=PATIENCE)
MessageT = TypeVar("MessageT")


def write(folder: Path, text: str) -> Path:
    """Put a script or a learner into a folder."""
    path = folder / "client.py"
    path.write_text(textwrap.dedent(text))
    return path


def worker_info(
    sites_folder: Path, site: str | None = None, *, exclude: tuple[str, ...] = (), **train: Any
) -> WorkerInfo:
    """Facts about a worker of a job with this section ``train``."""
    job = a_job(
        rounds=5,
        name="test",
        seed=3,
        clients={"count": 9, "threads": 1},
        aggregation={"exclude": list(exclude)},
        train=train or {"script": __file__},
    )
    job._folder = sites_folder.parent
    return WorkerInfo(site or "worker-1", job, 9, str(sites_folder), SETTINGS, site)


class Server:
    """The server's end of a link to one worker."""

    def __init__(self, end: WorkerSockets) -> None:
        self.control: MessageChannel[FromWorker] = MessageChannel(end.control, PEER, FromWorker)
        self.up = Receiver(Channel(end.up, PEER), PEER)
        self.service = DownloadService()
        self.service.attach(Channel(end.down, PEER), PEER)
        self._end = end
        self.heard: list[FromWorker] = []
        self.acknowledged: list[int] = []
        self._states: dict[str, StateVersion] = {}

    def ask(
        self,
        kind: TaskKind,
        params: Params,
        *sites: str,
        round_number: int = 1,
        token: bytes | None = None,
        **more: Any,
    ) -> None:
        """Send a task; a site's seed is its number. A token may name another model, or none.

        Further arguments are fields of the task.
        """
        ref = self.service.offer(MemoryBody.of(params), [PEER])
        numbers = {name: int(name.removeprefix("site-")) for name in sites}
        named = [SiteTask(name, n - 1, n, self._states.get(name)) for name, n in numbers.items()]
        if len(sites) > 1:
            more.setdefault("inline", 1 << 20)
        # Effects are numbered as rounds are: a test asks for one task of a kind in each.
        task = Task(kind, round_number, round_number, 5, token or ref.token, named, **more)
        self.control.send(task)

    def hear(self, kind: type[MessageT]) -> MessageT:
        """The next message of a kind; those before it are in ``heard``."""
        self.heard = []
        while not isinstance(message := self.control.receive(PATIENCE), kind):
            if isinstance(message, Progress) and message.step == "taken":
                self.acknowledged.append(message.effect)
            else:
                self.heard.append(message)
        if isinstance(message, Answered):
            self._states |= {
                answer.site: answer.state for answer in message.sites if answer.state is not None
            }
        return message

    @property
    def steps(self) -> list[str]:
        """Steps of a task in the received messages."""
        return [message.step for message in self.heard if isinstance(message, Progress)]

    def failures(self) -> list[tuple[str, int, str]]:
        """Site, effect and reason of each failure in the received messages."""
        return [(m.site, m.effect, m.reason) for m in self.heard if isinstance(m, Failed)]

    def fetch(self, answer: Answered) -> dict[str, Any]:
        """The update of the one site that has answered."""
        (update,) = self.updates(answer)
        return update

    def updates(self, answer: Answered) -> list[dict[str, Any]]:
        """The updates of an answer, which settles them; those that are on offer are downloaded."""
        updates = []
        for site in answer.sites:
            match site.update:
                case OfferedUpdate(token):
                    with RemoteSource(self.up, token, SETTINGS) as remote:
                        body = MemoryBody.allocate(remote.layout)
                        remote.deliver(body)
                    updates.append(body.tensors)
                case InlineUpdate(header, data):
                    layout, _ = parse_header(header, site.site)
                    body = MemoryBody.allocate(layout)
                    copy(BufferSource(layout, memoryview(data)), body)
                    updates.append(body.tensors)
        return updates

    def close(self) -> None:
        """End the server, without a farewell to the worker."""
        self.service.close()
        self._end.close()

    def train(self, params: Params, *sites: str, round_number: int = 1, **more: Any) -> Answered:
        """Train at sites, and return their answers; fetch that of one site before the next task."""
        self.ask("train", params, *sites, round_number=round_number, **more)
        return self.hear(Answered)

    def evaluate(self, params: Params, *sites: str, round_number: int = 1, **more: Any) -> Answered:
        """Evaluate at sites, and return their answers."""
        self.ask("evaluate", params, *sites, round_number=round_number, **more)
        return self.hear(Answered)


class Serving:
    """A worker on a thread of its own, and the server that it works for.

    Use it as a context manager; leaving it stops the worker.
    """

    def __init__(
        self,
        info: WorkerInfo,
        serve: Callable[[Worker], None],
    ) -> None:
        self._ours, self._theirs = worker_socket_pairs()
        self.server = Server(self._ours)
        self.turns: list[str | None] = []
        self.error: BaseException | None = None
        self._info, self._serve = info, serve
        self._thread = threading.Thread(target=self._run, name="worker", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        with suppress(ChannelClosedError):  # it may have ended by itself
            self.server.control.send(Stop())
        self._ours.up.close()  # nobody fetches what is still on offer
        self.join()
        self.server.close()
        if kind is None and self.error is not None:
            raise self.error

    def join(self) -> None:
        """Wait until the worker has ended."""
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def _run(self) -> None:
        end = self._theirs
        control: MessageChannel[ToWorker] = MessageChannel(end.control, SERVER, ToWorker)
        with (
            DownloadService() as service,
            closing(Peers(self._info, end.peers, service)) as peers,
        ):
            service.attach(Channel(end.up, SERVER), SERVER)
            down = Receiver(Channel(end.down, SERVER), SERVER)
            turn = self.turns.append
            worker = Worker(self._info, control, down, service, peers, turn)
            try:
                self._serve(worker)
            except BaseException as error:
                self.error = error
        end.close()
