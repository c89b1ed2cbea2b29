"""A site's side of a Flower app: its ClientApp, as a learner."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from flstream.client.fl_model import FLModel
from flstream.client.learner import Learner
from flstream.compat.flower import names
from flstream.compat.flower.messages import SERVER_NODE, Message, Metadata
from flstream.compat.flower.program import ERROR, SENT
from flstream.compat.flower.records import (
    Array,
    ArrayRecord,
    RecordDict,
    pack_records,
    unpack_records,
)
from flstream.compat.flower.requests import FOLDER, FlowerApp, get_content, put_content
from flstream.runs.summary import BESIDE_METRICS
from flstream.worker.messages import LEAST_WEIGHT

_STATE = "context.records"


class AppLearner(Learner):
    """Learner that hands each message to a ClientApp, and sends its reply.

    Args:
        app: The app, as JSON.
        sites: Number of the job's sites.
    """

    def __init__(self, app: str, sites: int) -> None:
        self._app, self._sites = msgspec.json.decode(app, type=FlowerApp), sites
        self._handle = names.load_app(self._app.folder, self._app.clientapp)

    def train(self, model: FLModel) -> FLModel:
        """Hand a message to the ClientApp, and return its reply as an update, or as metrics."""
        sent, site, tensors = model.meta[SENT], self.site, model.params or {}
        folder = Path(site.folder).parents[1] / FOLDER
        node, state = self._app.node_id(site.name), site.state_dir / _STATE
        context = self._app.context(
            node,
            site.total_rounds,
            node_config={"partition-id": site.index, "num-partitions": self._sites},
            state=unpack_records(state.read_bytes()) if state.is_file() else RecordDict(),
        )
        number, facts = f"{site.round}-{site.seed}", sent["metadata"]
        metadata = Metadata(context.run_id, number, SERVER_NODE, node, "", **facts)

        def body() -> ArrayRecord:
            return ArrayRecord({name: Array.over(value) for name, value in tensors.items()})

        records = unpack_records(get_content(folder, sent["content"]), body)
        reply = self._handle(Message(records, metadata=metadata), context)
        if not isinstance(reply, Message):
            raise TypeError(f"the ClientApp returned a {type(reply).__name__}; return a Message")
        if reply.has_error() and sent["needs_update"]:
            raise RuntimeError(f"the ClientApp replied with an error: {reply.error.reason}")
        if sent["needs_update"] and (misfit := _misfit(reply.content, tensors)):
            raise RuntimeError(misfit)
        if context.state or state.is_file():
            state.write_bytes(pack_records(context.state))
        if reply.has_error():
            return FLModel(meta={ERROR: [reply.error.code, str(reply.error.reason)]})
        return _answer(reply.content, tensors, sent["weight"], folder)


def _answer(
    reply: RecordDict, received: Mapping[str, Any], weighted_by: str, folder: Path
) -> FLModel:
    """Return a reply as an update where it has arrays like those received, with its metrics."""
    shapes = _shapes(received)
    records = reply.array_records.items()
    name = next((name for name, record in records if received and _shapes(record) == shapes), None)
    metrics = {
        key: value
        for record in reply.metric_records.values()
        for key, value in record.items()
        if not isinstance(value, list)
    }
    meta: dict[str, Any] = {SENT: put_content(folder, pack_records(reply, name))}
    if weighted_by in metrics:
        weight = float(metrics.pop(weighted_by))
        if not weight >= 0:
            raise ValueError(f"the reply's weight {weighted_by!r} is {weight:g}; send 0 or more")
        meta["num_examples"] = max(weight, LEAST_WEIGHT)
    params = None
    if name is not None:
        # In the dtypes that were received, which the run keeps.
        arrays = {key: array.torch(is_own=False) for key, array in reply[name].items()}
        params = {key: tensor.to(received[key].dtype) for key, tensor in arrays.items()}
    shown = {key: float(value) for key, value in metrics.items() if key not in BESIDE_METRICS}
    return FLModel(params=params, metrics=shown, meta=meta)


def _shapes(arrays: Mapping[str, Any]) -> dict[str, list[int]]:
    return {name: list(array.shape) for name, array in arrays.items()}


def _misfit(reply: RecordDict, received: Mapping[str, Any]) -> str:
    """Say why a reply is no update of the arrays that its node has received; empty if it is one."""
    flaw, shapes = "the reply has no ArrayRecord", _shapes(received)
    for record in reply.array_records.values():
        if (sent := _shapes(record)) == shapes:
            return ""
        name = min(name for name in {**sent, **shapes} if sent.get(name) != shapes.get(name))
        has = f"has the shape {sent[name]}" if name in sent else "is missing"
        had = f"its shape was {shapes[name]}" if name in shapes else "there was none"
        flaw = f"the reply's array {name!r} {has}, and in the message {had}"
    return f"{flaw}; reply with an ArrayRecord like the message's in all rounds, or in none"
