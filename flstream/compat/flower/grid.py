"""The ServerApp's process: its grid, whose messages become effects of the run."""

from __future__ import annotations

import itertools
import socket
import threading
import time
import weakref
from collections import UserList
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, TypeVar

import msgspec
from safetensors import safe_open

from flstream.compat.flower.messages import Error, Message
from flstream.compat.flower.records import (
    Array,
    ArrayRecord,
    RecordDict,
    Unread,
    pack_records,
    unpack_records,
)
from flstream.compat.flower.requests import (
    Answer,
    AppCall,
    AppEnded,
    AppResult,
    Computed,
    FlowerApp,
    Method,
    ModelOfRun,
    Sent,
    get_content,
    put_content,
)
from flstream.errors import LayoutError
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.digests import body_digest
from flstream.model.memory import MemoryBody
from flstream.model.order import ORDER, in_order
from flstream.transport.messages import MessageChannel

ResultT = TypeVar("ResultT")

WEIGHT = "num-examples"
"""Name of the metric that is a reply's weight, unless a strategy names another."""


@dataclass(eq=False)
class Sending:
    """Messages that were sent together.

    Attributes:
        number: Its number, from 1.
        weighted_by: Name of the metric by which the sites weight their answers.
        is_folded_unseen: Whether the strategy folds the answers as they come, which then have to be
            updates of the model.
        models: The models that have the messages' arrays.
        requests: For each message, the number of the run's request that it is in.
    """

    number: int
    weighted_by: str
    is_folded_unseen: bool
    models: list[ModelOfRun] = field(default_factory=list)
    requests: list[int] = field(default_factory=list)


class ReplyUpdate(NamedTuple):
    """Arrays of a site's reply that are an update of the model, and the weight that it has."""

    grid: Grid
    sending: Sending
    place: int
    weight: Any


def arrays_of_file(path: str | Path, order: str | None = None) -> dict[str, Array]:
    """Return the arrays of a safetensors file, each read when it is asked for."""
    source, file = FileSource(Path(path)), safe_open(path, framework="pt")
    text = source.metadata.get(ORDER, "") if order is None else order
    arrays = {name: Array.over(partial(file.get_tensor, name)) for name in source.layout.names}
    return in_order(arrays, source.layout, text)


class Replies(Unread, UserList[Message]):
    """List of replies to messages, in their order, that a strategy folds as they come.

    Nodes answer then, or once one reply is looked at.

    Attributes:
        sent: The grid, and the sending of the messages.
    """

    sent: tuple[Grid, Sending]


class RunOverError(BaseException):
    """The run has met its ``stop_when`` or ``patience``: the ServerApp is to end."""


class Grid:
    """Nodes of a run, and the messages to them, over the socket of its workflow.

    Args:
        app: The app.
        sites: Names of the sites, in their order.

    Attributes:
        app: The app.
        run_id: Id of the run.
        last: The model that the run was left with last.
        stepped_by: The strategy whose moments lie beside it; None for none.
    """

    last: ModelOfRun
    stepped_by: object = None

    def __init__(self, app: FlowerApp, sites: Iterable[str]) -> None:
        self.app, self.run_id = app, app.run_id
        self._sites = {app.node_id(site): site for site in sites}
        self._pushed: dict[str, Message] = {}

    def connect(self, server: socket.socket, folder: str) -> None:
        """Connect to the workflow.

        Args:
            server: The socket.
            folder: Folder of files of contents, updates and models.
        """
        self._channel = MessageChannel[AppResult](server, "the server", AppResult)
        self._turn = threading.RLock()  # an app may use the grid in threads
        self._folder = Path(folder)
        # Numbers of sendings and versions of models that nobody refers to any more.
        self._unused = list[tuple[str, int]]()
        self.last = self._model("newest")
        source = FileSource(Path(self.last.path))
        self._layout, self._order = source.layout, source.metadata.get(ORDER, "")
        self._sendings, self._messages = itertools.count(1), itertools.count(1)
        began = self.remember("the time", lambda: repr(time.time()).encode())
        self._began = float(began.decode())

    def get_node_ids(self) -> list[int]:
        """Return the ids of the nodes, in the order of the sites."""
        return list(self._sites)

    def _call(self, kind: type[ResultT], method: Method, *arguments: Any) -> ResultT:
        """Call a method of :class:`flstream.compat.flower.program.RunCalls`."""
        with self._turn:
            return msgspec.convert(self._ask(AppCall(method, arguments)), kind)

    def _ask(self, message: AppCall | Computed) -> Any:
        self._channel.send(message, timeout=None)
        return self._channel.receive().value

    def _model(self, method: Method, *arguments: Any) -> ModelOfRun:
        """Call a method for a new model, whose version is noted once nobody refers to it."""
        model = self._call(ModelOfRun, method, *arguments)
        weakref.finalize(model, self._unused.append, ("model", model.version)).atexit = False
        return model

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Sequence[Message]:
        """Send messages, and return the replies to them, in their order.

        Args:
            messages: The messages.
            timeout: Seconds that a node may take; None for ``clients.round_timeout``.
        """
        messages = list(messages)
        with self._turn:
            sending = self._send(messages, timeout)
        if not sending.is_folded_unseen:
            return self._replies(sending, messages)
        replies = Replies()
        replies.sent, replies.look = (self, sending), partial(self._replies, sending, messages)
        return replies

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send messages, and wait until the nodes have answered; return their ids."""
        messages = list(messages)
        self._pushed |= {
            reply.metadata.reply_to_message_id: reply for reply in self.send_and_receive(messages)
        }
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Return the replies to messages that were pushed, once each."""
        replies = [self._pushed.pop(number, None) for number in message_ids]
        return [reply for reply in replies if reply is not None]

    def create_message(
        self,
        content: RecordDict,
        message_type: str,
        dst_node_id: int,
        group_id: str = "",
        ttl: float | None = None,
    ) -> Message:
        """Return a message to a node."""
        return Message(content, dst_node_id, message_type, group_id=group_id, ttl=ttl)

    def _send(self, messages: Sequence[Message], timeout: float | None) -> Sending:
        """Send messages."""
        weighted_by = messages[0].weighted_by if messages else WEIGHT
        is_unseen = any(message.is_folded_unseen for message in messages)
        sending = Sending(next(self._sendings), weighted_by, is_unseen)
        weakref.finalize(sending, self._unused.append, ("sent", sending.number)).atexit = False
        packed: dict[Any, bytes] = {}
        stored: dict[int, ModelOfRun | None] = {}
        sent = []
        for message in messages:
            metadata, records = message.metadata, message.content
            number, node = next(self._messages), metadata.dst_node_id
            metadata.run_id, metadata.message_id = self.run_id, f"{self.run_id}-{number}"
            metadata.created_at = self._began + number / 1e6
            if node not in self._sites:
                raise ValueError(
                    f"a message is for the node {node}, and the run has none of that id; take one "
                    "of grid.get_node_ids()"
                )
            body, model = self._body_of(records, stored)
            sending.models += [] if model is None else [model]
            version = None if model is None else model.version
            if (id(records), version) not in packed:
                data = put_content(self._folder, pack_records(records, body))
                packed[id(records), version] = data
            facts = {
                "group_id": metadata.group_id,
                "created_at": self._began,
                "ttl": metadata.ttl,
                "message_type": metadata.message_type,
            }
            for_site = {
                "content": packed[id(records), version],
                "metadata": facts,
                "weight": weighted_by,
                "needs_update": is_unseen,
            }
            category = metadata.message_type.partition(".")[0]
            sent.append(Sent(self._sites[node], category, version, for_site))
        if sent:
            unused = [self._unused.pop(0) for _ in range(len(self._unused))]
            seconds = None if timeout is None else float(timeout)
            sending.requests = self._call(list[int], "send", sending.number, sent, seconds, unused)
            if not sending.requests:
                raise RunOverError
        return sending

    def _body_of(
        self, records: RecordDict, stored: dict[int, ModelOfRun | None]
    ) -> tuple[str | None, ModelOfRun | None]:
        """Return the name and the model of the record that travels as one, if there is any."""
        for name, record in records.array_records.items():
            if id(record) not in stored:
                stored[id(record)] = self.store(record)
            if (model := stored[id(record)]) is not None:
                return name, model
        return None, None

    def store(self, record: ArrayRecord) -> ModelOfRun | None:
        """Return the model with some arrays, which is stored if it is new; None if they fit none.

        Arrays fit if they have the names, dtypes and shapes of the model that the run began with.
        """
        with self._turn:
            if isinstance(record.origin, ModelOfRun):
                return record.origin
            values = {name: array.value for name, array in record.items()}
            try:
                body = MemoryBody.of(values, tied=self._layout.aliases)
            except LayoutError:  # a dtype that no model has
                return None
            if body.layout.difference(self._layout):
                return None
            digest = body_digest(body)
            if digest != self.last.digest:
                path = self._folder / f"arrays-{digest}.safetensors"
                write_checkpoint(path, body)
                self._new_model("store", str(path))
                path.unlink()
            record.origin = self.last
            return self.last

    def _new_model(self, method: Method, *arguments: Any) -> ArrayRecord:
        """Call a method for the run's next model, and return its arrays."""
        self.last = model = self._model(method, *arguments)
        return ArrayRecord.lying(model, lambda: arrays_of_file(model.path))

    def _replies(self, sending: Sending, sent: Sequence[Message]) -> list[Message]:
        """Return the replies to the messages of a sending, in their order."""
        answers = self._call(list[Answer], "read", sending.number) if sent else []
        return [
            self._reply(message, sending, place, answer)
            for place, (message, answer) in enumerate(zip(sent, answers, strict=True))
        ]

    def _reply(self, to: Message, sending: Sending, place: int, answer: Answer) -> Message:
        def look() -> dict[str, Array]:
            path = self._call(str, "write_update", sending.number, place)
            return arrays_of_file(path, self._order)

        def update() -> ArrayRecord:
            return ArrayRecord.lying(ReplyUpdate(self, sending, place, None), look)

        if answer.content is None:
            reply = Message(Error(answer.code, answer.failure), reply_to=to)
        else:
            records = unpack_records(get_content(self._folder, answer.content), update)
            metrics: Mapping[str, Any] = next(iter(records.metric_records.values()), {})
            for record in records.array_records.values():
                if isinstance(record.origin, ReplyUpdate):
                    record.origin = record.origin._replace(weight=metrics.get(sending.weighted_by))
            reply = Message(records, reply_to=to)
        reply.metadata.message_id = f"{to.metadata.message_id}-reply"
        return reply

    def fold(
        self,
        sending: Sending,
        places: list[int] | None = None,
        weights: list[float] | None = None,
        rule: tuple[str, dict[str, Any]] | None = None,
    ) -> ArrayRecord:
        """Fold updates into the next model of the run; see :class:`RunCalls`."""
        return self._new_model("fold", sending.number, places, weights, rule)

    def remember(self, name: str, compute: Callable[[], bytes]) -> bytes:
        """Compute bytes once in the run: where it was resumed, return what they were."""
        with self._turn:
            if (value := self._ask(AppCall("remember", [name]))) is None:
                value = self._ask(Computed(compute()))
        return msgspec.convert(value, bytes)

    def report(self, record: ArrayRecord, metrics: Mapping[str, Any]) -> None:
        """Report the metrics of a model to the run, as its score."""
        numbers = {
            name: float(value) for name, value in metrics.items() if not isinstance(value, list)
        }
        if numbers and (model := self.store(record)) is not None:
            self._call(NoneType, "report", model.version, numbers)

    def end(self, error: str = "") -> None:
        """Tell that the ServerApp has ended."""
        self._channel.send(AppEnded(self.last.version, error), timeout=None)


class CaughtError(BaseException):
    """A ServerApp has sent its first messages, or begun a strategy: with these arrays."""

    def __init__(self, arrays: ArrayRecord | None) -> None:
        super().__init__("the app's first arrays")
        self.arrays = arrays


class FirstArrays(Grid):
    """Grid that ends a ServerApp once it is known which arrays it begins with."""

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Sequence[Message]:
        """Take the first arrays of the messages, if there are any."""
        records = [record for m in messages for record in m.content.array_records.values()]
        raise CaughtError(records[0] if records else None)
