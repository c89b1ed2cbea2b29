"""Flower's older clients, with parameters as lists of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from flstream.compat.flower.messages import Context, Message
from flstream.compat.flower.records import (
    ArrayRecord,
    ConfigRecord,
    MetricRecord,
    RecordDict,
)

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
"""Names of the records in messages of strategies, unless a strategy has others."""


class NumPyClient:
    """Client with parameters as a list of NumPy arrays; methods that are missing answer nothing."""

    context: Context

    def get_context(self) -> Context:
        """Return the context of the node."""
        return self.context

    def to_client(self) -> NumPyClient:
        """Return the client itself."""
        return self


def by_client(client_fn: Callable[..., Any]) -> Callable[[Message, Context], Message]:
    """Return the handler of a function that makes a client for each message."""

    def handle(message: Message, context: Context) -> Message:
        client = client_fn(context).to_client()
        client.context = context
        records = message.content
        arrays = next(iter(records.array_records.values()), ArrayRecord())
        config = dict(next(iter(records.config_records.values()), {}))
        parameters = arrays.to_numpy_ndarrays()
        if message.metadata.message_type == "train":
            parameters, count, metrics = client.fit(parameters, config)
            metrics = MetricRecord({**metrics, "num-examples": count})
            # By the names that the arrays have come with.
            sent = ArrayRecord(dict(zip(arrays, map(np.asarray, parameters), strict=True)))
            return Message(RecordDict({ARRAYS: sent, METRICS: metrics}), reply_to=message)
        if message.metadata.message_type == "evaluate":
            loss, count, metrics = client.evaluate(parameters, config)
            metrics = MetricRecord({"loss": float(loss), **metrics, "num-examples": count})
            return Message(RecordDict({METRICS: metrics}), reply_to=message)
        if not hasattr(client, "get_properties"):
            raise ValueError("the client has no method get_properties for query messages")
        properties = ConfigRecord(client.get_properties(config))
        return Message(RecordDict({CONFIG: properties}), reply_to=message)

    return handle
