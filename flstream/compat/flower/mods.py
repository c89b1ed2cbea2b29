"""Flower's mods of updates: clipping for central privacy, local privacy, and sizes in the log."""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from flstream.compat.flower.apps import ClientAppCallable
from flstream.compat.flower.messages import Context, Error, Message
from flstream.compat.flower.records import Array, ArrayRecord

log = logging.getLogger("flwr")

CLIPPING_NORM, NORM_BIT = "clipping_norm", "norm_bit"

_MOD_FAILED = 5


class _UnfitError(Exception):
    """A message or a reply has not what a mod needs."""


def clipped(arrays: ArrayRecord, base: ArrayRecord, norm: float) -> tuple[ArrayRecord, bool]:
    """Return arrays whose difference from others has a Euclidean norm of at most ``norm``.

    Returns:
        The arrays, and whether they were scaled down.
    """
    if list(arrays) != list(base):
        raise _UnfitError("the reply's arrays have not the names of those that were received")
    differences = {name: arrays[name].numpy() - base[name].numpy() for name in arrays}
    total = math.sqrt(sum(float(np.linalg.norm(value)) ** 2 for value in differences.values()))
    scale = min(1.0, norm / total) if total else 1.0
    changed = {
        name: Array(np.asarray(base[name].numpy() + difference * scale))
        for name, difference in differences.items()
    }
    return ArrayRecord(changed), scale < 1


def noised(arrays: ArrayRecord, deviation: float) -> ArrayRecord:
    """Return arrays with Gaussian noise of NumPy's global generator."""

    def changed(value: Any) -> Array:
        noise = np.random.normal(0, deviation, value.shape).astype(value.dtype)
        return Array(np.asarray(value + noise))

    return ArrayRecord({name: changed(array.numpy()) for name, array in arrays.items()})


def _only(records: Any, kind: str) -> tuple[str, Any]:
    """Return the name and the one record of a kind."""
    items: Sequence[tuple[str, Any]] = list(records.items())
    if len(items) != 1:
        raise _UnfitError(f"there are {len(items)} records of {kind} where one is needed")
    return items[0]


def _clip(
    message: Message, context: Context, call_next: ClientAppCallable, *, tells: bool
) -> Message:
    try:
        _, base = _only(message.content.array_records, "arrays")
        _, config = _only(message.content.config_records, "settings")
        if CLIPPING_NORM not in config:
            raise _UnfitError(
                f"the settings have no {CLIPPING_NORM!r}; wrap the strategy in one of client-side "
                "clipping"
            )
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        name, arrays = _only(reply.content.array_records, "arrays")
        reply.content[name], is_clipped = clipped(arrays, base, config[CLIPPING_NORM])
        if tells:
            _, metrics = _only(reply.content.metric_records, "metrics")
            metrics[NORM_BIT] = int(is_clipped)
    except _UnfitError as error:
        return Message(Error(_MOD_FAILED, str(error)), reply_to=message)
    return reply


def fixedclipping_mod(msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
    """Clip a node's update to the norm that the strategy has sent."""
    return _clip(msg, ctxt, call_next, tells=False)


def adaptiveclipping_mod(msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
    """Clip a node's update, and tell the strategy whether it was longer."""
    return _clip(msg, ctxt, call_next, tells=True)


class LocalDpMod:
    """Mod that clips an update and adds noise to it (local differential privacy).

    Args:
        clipping_norm: Largest Euclidean norm of an update.
        sensitivity: Sensitivity of the update.
        epsilon: Privacy budget.
        delta: Probability of failure.
    """

    def __init__(
        self, clipping_norm: float, sensitivity: float, epsilon: float, delta: float
    ) -> None:
        if not (clipping_norm > 0 and sensitivity >= 0 and epsilon > 0 and delta > 0):
            raise ValueError("LocalDpMod takes numbers above 0, and a sensitivity from 0")
        self._norm = clipping_norm
        self._deviation = sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon

    def __call__(self, msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
        """Handle a message."""
        try:
            _, base = _only(msg.content.array_records, "arrays")
            reply = call_next(msg, ctxt)
            if reply.has_error():
                return reply
            name, arrays = _only(reply.content.array_records, "arrays")
            reply.content[name] = noised(clipped(arrays, base, self._norm)[0], self._deviation)
        except _UnfitError as error:
            return Message(Error(_MOD_FAILED, str(error)), reply_to=msg)
        return reply


def arrays_size_mod(msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
    """Log the numbers and bytes of a reply's arrays."""
    reply = call_next(msg, ctxt)
    for name, record in reply.content.array_records.items() if reply.has_content() else ():
        numbers = sum(math.prod(array.shape) for array in record.values())
        log.info("%s: %s numbers, %s bytes", name, numbers, record.count_bytes())
    return reply


def message_size_mod(msg: Message, ctxt: Context, call_next: ClientAppCallable) -> Message:
    """Log the bytes of a message's arrays."""
    total = sum(record.count_bytes() for record in msg.content.array_records.values())
    log.info("message of %s bytes of arrays", total)
    return call_next(msg, ctxt)
