"""The ServerApp's process: its grid, whose messages become effects of the run."""

from __future__ import annotations

import itertools
import socket
import threading
import time
import weakref
from collections import Counter, UserList
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Any, NamedTuple, TypeVar

import msgspec
from safetensors import safe_open

from flstream.compat.flower import content, requests
from flstream.compat.flower.messages import Error, Message
from flstream.compat.flower.records import (
    Array,
    ArrayRecord,
    RecordDict,
    pack_records,
    unpack_records,
)
from flstream.compat.flower.requests import ModelOfRun
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.digests import body_digest
from flstream.model.memory import MemoryBody
from flstream.model.order import ORDER, in_order
from flstream.transport.messages import MessageChannel

ResultT = TypeVar("ResultT")

WEIGHT = "num-examples"
"""Name of the metric that is a reply's weight, unless a strategy names another."""


class ReplyUpdate(NamedTuple):
    """Arrays of a site's reply that are an update of the model, and the weight that it has."""

    grid: Grid
    batch: requests.Batch
    site: str
    weight: Any


def arrays_of_file(path: str | Path, order: str | None = None) -> dict[str, Array]:
    """Return the arrays of a safetensors file, each read when it is asked for."""
    source, file = FileSource(Path(path)), safe_open(path, framework="pt")
    text = source.metadata.get(ORDER, "") if order is None else order
    arrays = {name: Array.over(partial(file.get_tensor, name)) for name in source.layout.names}
    return in_order(arrays, source.layout, text)


class Replies(UserList[Message]):
    """List of replies to messages, in their order; sites answer once one is looked at.

    Passed on to a strategy unseen, they are folded as they come.

    Args:
        replies: The replies, where they were looked at.
        grid: The grid.
        batches: For each message, the batch that it was sent in.
        messages: The messages.
    """

    grid: Grid | None = None
    _replies: list[Message]

    def __init__(
        self,
        replies: Iterable[Message] = (),
        grid: Grid | None = None,
        batches: Sequence[requests.Batch] = (),
        messages: Sequence[Message] = (),
    ) -> None:
        super().__init__(replies)
        self.grid, self.batches, self._messages = grid, batches, messages

    @property
    def data(self) -> list[Message]:
        """The replies, for which the sites are asked first where nobody has looked at them."""
        if self.grid is not None:
            grid, self.grid = self.grid, None
            self._replies = grid.replies(self.batches, self._messages)
        return self._replies

    @data.setter
    def data(self, replies: list[Message]) -> None:
        self._replies = replies


class RunOverError(BaseException):
    """The run has met its ``stop_when`` or ``patience``: the ServerApp is to end."""


class Grid:
    """Nodes of a run, and the messages to them, over the socket of its workflow.

    Args:
        server: The socket.
        place: The app.

    Attributes:
        run_id: Id of the run.
        last: The model that the run was left with last.
        stepped_by: The strategy whose moments lie beside it; None for none.
    """

    stepped_by: object = None

    def __init__(self, server: socket.socket, place: requests.AppPlace) -> None:
        self._enter(place)
        self._channel = MessageChannel[requests.AppResult](server, "the server", requests.AppResult)
        self._turn = threading.RLock()  # an app may use the grid in threads
        self._folder = Path(place.files)
        # Numbers of batches and versions of models that nobody refers to any more.
        self._batches_dropped, self._models_dropped = list[int](), list[int]()
        self.last = self._model("newest")
        source = FileSource(Path(self.last.path))
        self._layout, self._order = source.layout, source.metadata.get(ORDER, "")
        self._forms = {spec.name: (spec.dtype, spec.shape) for spec in source.layout.tensors}
        self._batches, self._messages = itertools.count(1), itertools.count(1)
        began = self.remember("the time", lambda: repr(time.time()).encode())
        self._began = float(began.decode())

    def _enter(self, place: requests.AppPlace) -> None:
        """Take the ids of the run and of its nodes."""
        self.run_id = requests.run_id(place.seed)
        self._sites = {requests.node_id(place.seed, site): site for site in place.sites}
        self._pushed: dict[str, Message] = {}

    def get_node_ids(self) -> list[int]:
        """Return the ids of the nodes, in the order of the sites."""
        return list(self._sites)

    def _call(self, kind: type[ResultT], method: str, *arguments: Any) -> ResultT:
        """Call a method of :class:`flstream.compat.flower.program.RunCalls`."""
        with self._turn:
            self._channel.send(requests.AppCall(method, arguments), timeout=None)
            return msgspec.convert(self._channel.receive().value, kind)

    def _model(self, method: str, *arguments: Any) -> ModelOfRun:
        """Call a method for a new model, whose version is noted once nobody refers to it."""
        model = self._call(ModelOfRun, method, *arguments)
        weakref.finalize(model, self._models_dropped.append, model.version).atexit = False
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
            batches = self._batches_of(messages)
            unused = [
                [dropped.pop(0) for _ in range(len(dropped))]
                for dropped in (self._batches_dropped, self._models_dropped)
            ]
            if messages:
                sent = list(dict.fromkeys(batches))
                seconds = None if timeout is None else float(timeout)
                if not self._call(bool, "send", sent, seconds, *unused):
                    raise RunOverError
                for batch in sent:
                    batch.messages.clear()
        return Replies((), self, batches, messages)

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

    def _batches_of(self, messages: Sequence[Message]) -> list[requests.Batch]:
        """Return the batch of each message, which has it packed.

        A batch has one model, and one message to a node: a second one is in another batch.
        """
        is_unseen = any(message.is_folded_unseen for message in messages)
        batches: dict[Any, requests.Batch] = {}
        packed: dict[Any, requests.Content] = {}
        counts: Counter[Any] = Counter()
        stored: dict[int, ModelOfRun | None] = {}
        batch_of: list[requests.Batch] = []
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
            category = metadata.message_type.partition(".")[0]
            version = None if model is None else model.version
            counts[category, version, node] += 1
            key = category, version, counts[category, version, node]
            if key not in batches:
                weighted_by = messages[0].weighted_by
                batch = requests.Batch(
                    next(self._batches), category, model, weighted_by, is_unseen, []
                )
                weakref.finalize(batch, self._batches_dropped.append, batch.number).atexit = False
                batches[key] = batch
            if (id(records), version) not in packed:
                data = content.put(self._folder, pack_records(records, body))
                packed[id(records), version] = data
            facts = {
                "type": metadata.message_type,
                "group": metadata.group_id,
                "ttl": metadata.ttl,
                "time": self._began,
            }
            sent = requests.Sent(self._sites[node], packed[id(records), version], facts)
            batches[key].messages.append(sent)
            batch_of.append(batches[key])
        return batch_of

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
            if record.forms != self._forms:
                return None
            tensors = {name: array.torch(is_own=False) for name, array in record.items()}
            body = MemoryBody.of(tensors, tied=self._layout.aliases)
            digest = body_digest(body)
            if digest != self.last.digest:
                path = self._folder / f"arrays-{digest}.safetensors"
                write_checkpoint(path, body)
                self._new_model("store", str(path))
                path.unlink()
            record.origin = self.last
            return self.last

    def _new_model(self, method: str, *arguments: Any) -> ArrayRecord:
        """Call a method for the run's next model, and return its arrays."""
        self.last = model = self._model(method, *arguments)
        return ArrayRecord.lying(model, lambda: arrays_of_file(model.path))

    def replies(self, batches: Sequence[requests.Batch], sent: Sequence[Message]) -> list[Message]:
        """Return the replies to messages, in their order, each sent in one of the batches."""
        answers = {
            (batch.number, answer.site): answer
            for batch in dict.fromkeys(batches)
            for answer in self._call(list[requests.Answer], "read", batch.number)
        }
        return [
            self._message(message, batch, answers[batch.number, site])
            for message, batch in zip(sent, batches, strict=True)
            for site in [self._sites[message.metadata.dst_node_id]]
        ]

    def _message(self, to: Message, batch: requests.Batch, answer: requests.Answer) -> Message:
        if answer.content is None:
            return self._reply_to(to, Error(answer.code, answer.failure))

        def update() -> ArrayRecord:
            def look() -> dict[str, Array]:
                path = self._call(str, "write_update", batch.number, answer.site)
                return arrays_of_file(path, self._order)

            return ArrayRecord.lying(ReplyUpdate(self, batch, answer.site, None), look)

        records = unpack_records(content.get(self._folder, answer.content), update)
        metrics: Mapping[str, Any] = next(iter(records.metric_records.values()), {})
        for record in records.array_records.values():
            if isinstance(record.origin, ReplyUpdate):
                record.origin = record.origin._replace(weight=metrics.get(batch.weighted_by))
        return self._reply_to(to, records)

    def _reply_to(self, to: Message, content: RecordDict | Error) -> Message:
        reply = Message(content, reply_to=to)
        reply.metadata.message_id = f"{to.metadata.message_id}-reply"
        return reply

    def fold(
        self,
        batch: requests.Batch,
        sites: list[str] | None = None,
        weights: list[float] | None = None,
        rule: tuple[str, dict[str, Any]] | None = None,
    ) -> ArrayRecord:
        """Fold updates into the next model of the run; see :class:`RunCalls`."""
        return self._new_model("fold", batch.number, sites, weights, rule)

    def remember(self, name: str, compute: Callable[[], bytes]) -> bytes:
        """Compute bytes once in the run: where it was resumed, return what they were."""
        with self._turn:
            self._channel.send(requests.AppCall("remember", [name]), timeout=None)
            if (value := self._channel.receive().value) is None:
                value = self._call(bytes, "computed", compute())
        assert isinstance(value, bytes)
        return value

    def report(self, record: ArrayRecord, metrics: Mapping[str, Any]) -> None:
        """Report the metrics of a model to the run, as its score."""
        numbers = {
            name: float(value) for name, value in metrics.items() if not isinstance(value, list)
        }
        if numbers and (model := self.store(record)) is not None:
            self._call(NoneType, "report", model.version, numbers)

    def end(self, error: str = "") -> None:
        """Tell that the ServerApp has ended."""
        self._channel.send(requests.AppCall("end", [self.last.version, error]), timeout=None)


class CaughtError(BaseException):
    """A ServerApp has sent its first messages, or begun a strategy: with these arrays."""

    def __init__(self, arrays: ArrayRecord | None) -> None:
        super().__init__("the app's first arrays")
        self.arrays = arrays


class FirstArrays(Grid):
    """Grid that ends a ServerApp once it is known which arrays it begins with."""

    def __init__(self, place: requests.AppPlace) -> None:
        self._enter(place)

    def begin(self, arrays: ArrayRecord) -> None:
        """Take the arrays that a strategy begins with."""
        raise CaughtError(arrays)

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Sequence[Message]:
        """Take the first arrays of the messages, if there are any."""
        records = [record for m in messages for record in m.content.array_records.values()]
        raise CaughtError(records[0] if records else None)
