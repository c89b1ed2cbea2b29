"""A site's side of a Flower app: its ClientApp, as a learner."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from flstream.client.fl_model import FLModel
from flstream.client.learner import Learner
from flstream.compat.flower import content, names
from flstream.compat.flower.messages import SERVER_NODE, Context, Message, Metadata
from flstream.compat.flower.program import ERROR, SENT
from flstream.compat.flower.records import (
    Array,
    ArrayRecord,
    RecordDict,
    pack_records,
    unpack_records,
)
from flstream.compat.flower.requests import LEAST_WEIGHT, node_id, run_id
from flstream.runs.summary import BESIDE_METRICS

_STATE = "context.records"


class AppLearner(Learner):
    """Learner that hands each message to a ClientApp, and sends its reply.

    Args:
        folder: The app's folder.
        component: Its ClientApp, ``package.module:name``.
        config: Its settings, as JSON.
        seed: Seed of the job.
        sites: Number of the job's sites.
    """

    def __init__(self, folder: str, component: str, config: str, seed: int, sites: int) -> None:
        self._seed, self._sites, self._config = seed, sites, json.loads(config)
        self._run_id = run_id(seed)
        self._app = names.load_app(folder, component)

    def train(self, model: FLModel) -> FLModel:
        """Hand a message to the ClientApp, and return its reply as an update, or as metrics."""
        sent = model.meta[SENT]
        site, folder = self.site, Path(self.site.folder).parents[1] / content.FOLDER
        tensors = model.params or {}

        def body() -> ArrayRecord:
            return ArrayRecord({name: Array.over(value) for name, value in tensors.items()})

        node = node_id(self._seed, site.name)
        metadata = Metadata(
            self._run_id,
            f"{site.round}-{site.seed}",
            SERVER_NODE,
            node,
            "",
            sent["group"],
            sent["time"],
            sent["ttl"],
            sent["type"],
        )
        records = unpack_records(content.get(folder, sent["content"]), body)
        context = Context(
            self._run_id,
            node,
            {"partition-id": site.index, "num-partitions": self._sites},
            self._state(),
            dict(self._config),
        )
        reply = self._app(Message(records, metadata=metadata), context)
        if not isinstance(reply, Message):
            raise TypeError(f"the ClientApp returned a {type(reply).__name__}; return a Message")
        if reply.has_error() and sent["needs_update"]:
            raise RuntimeError(f"the ClientApp replied with an error: {reply.error.reason}")
        if sent["needs_update"] and (misfit := _misfit(reply.content, tensors)):
            raise RuntimeError(misfit)
        self._keep(context.state)
        if reply.has_error():
            return FLModel(meta={ERROR: [reply.error.code, str(reply.error.reason)]})
        return self._answer(reply.content, tensors, sent["weight"], folder)

    def _answer(
        self, reply: RecordDict, received: Mapping[str, Any], weighted_by: str, folder: Path
    ) -> FLModel:
        shapes = {name: list(tensor.shape) for name, tensor in received.items()}

        def fits(record: ArrayRecord) -> bool:
            return {name: array.shape for name, array in record.items()} == shapes

        records = reply.array_records.items()
        name = next((name for name, record in records if received and fits(record)), None)
        metrics = {
            key: value
            for record in reply.metric_records.values()
            for key, value in record.items()
            if not isinstance(value, list)
        }
        meta: dict[str, Any] = {SENT: content.put(folder, pack_records(reply, name))}
        if weighted_by in metrics:
            weight = float(metrics.pop(weighted_by))
            if not weight >= 0:
                raise ValueError(
                    f"the reply's weight {weighted_by!r} is {weight:g}; send 0 or more"
                )
            meta["num_examples"] = max(weight, LEAST_WEIGHT)
        params = None
        if name is not None:
            params = {
                # In the dtypes that were received, which the run keeps.
                key: array.torch(is_own=False).to(received[key].dtype)
                for key, array in reply[name].items()
            }
        shown = {key: float(value) for key, value in metrics.items() if key not in BESIDE_METRICS}
        return FLModel(params=params, metrics=shown, meta=meta)

    def _state(self) -> RecordDict:
        path = self.site.state_dir / _STATE
        return unpack_records(path.read_bytes()) if path.is_file() else RecordDict()

    def _keep(self, state: RecordDict) -> None:
        path = self.site.state_dir / _STATE
        if state or path.is_file():
            path.write_bytes(pack_records(state))


def _misfit(reply: RecordDict, received: Mapping[str, Any]) -> str:
    """Say why a reply is no update of the arrays that its node has received; empty if it is one."""
    shapes = {name: list(tensor.shape) for name, tensor in received.items()}
    flaws = ["the reply has no ArrayRecord"]
    for record in reply.array_records.values():
        sent = {name: array.shape for name, array in record.items()}
        if sent == shapes:
            return ""
        other = sorted(sent.keys() ^ shapes.keys())
        name = other[0] if other else next(name for name in sent if sent[name] != shapes[name])
        has = f"has the shape {sent[name]}" if name in sent else "is missing"
        had = f"its shape was {shapes[name]}" if name in shapes else "there was none"
        flaws = [f"the reply's array {name!r} {has}, and in the message {had}"]
    return f"{flaws[0]}; reply with an ArrayRecord like the message's in all rounds, or in none"
