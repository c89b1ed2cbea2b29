"""Values beside the bodies of a task or answer: meta and optimizer parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from flstream.errors import ClientError, PayloadError

OPTIMIZER_PARAMS = "optimizer_params"
"""Name of the values for an optimizer, among those that are sent."""

_MOST_BYTES = 1 << 20
_PLAIN = frozenset({bool, int, float, str, type(None)})


class SentMeta(NamedTuple):
    """Values beside the bodies.

    Attributes:
        meta: Values by name: None, bools, numbers, text, bytes; lists, tuples and dicts of them.
        optimizer_params: State of an optimizer, of such values; None where none was sent.
    """

    meta: dict[str, Any]
    optimizer_params: dict[str, Any] | None = None


def pack_values(
    meta: Mapping[str, Any], optimizer_params: Mapping[str, Any] | None = None
) -> bytes:
    """Return values as a payload message without tensors; empty where there are none.

    Raises:
        ClientError: A value cannot be sent, or there are more than 1 MiB of them; the message names
            its path.
    """
    if optimizer_params is not None:
        return _packed({"meta": dict(meta), "optimizer_params": dict(optimizer_params)})
    # Small sites send next to nothing, thousands of times a second, and mostly the same. Keys
    # have their types, since 1, 1.0 and True are alike; 0.0 and -0.0 are alike all the same.
    if all(type(value) in _PLAIN and value != 0 for value in meta.values()):
        return _packed_plain(tuple((name, type(value), value) for name, value in meta.items()))
    return _packed({"meta": dict(meta), "optimizer_params": None})


@lru_cache(maxsize=1024)
def _packed_plain(items: tuple[tuple[str, type, Any], ...]) -> bytes:
    meta = {name: value for name, _, value in items}
    return _packed({"meta": meta, "optimizer_params": None}) if meta else b""


def _packed(values: Mapping[str, Any]) -> bytes:
    from flstream.streaming.payload import pack

    try:
        message, tensors = pack(values)
    except PayloadError as error:
        raise ClientError(f"meta cannot be sent: {error}") from error
    if tensors:
        name = next(iter(tensors)).removeprefix("payload")
        raise ClientError(
            f"{name} is a tensor, and beside the params only plain values travel, and the bodies "
            "that a workflow has beside its model; send a number with .item(), and keep an "
            "optimizer's tensors in get_state_dir()"
        )
    if len(message) > _MOST_BYTES:
        raise ClientError(
            f"meta and optimizer_params take {len(message)} bytes, and {_MOST_BYTES} is "
            "most; send less, or put it into params"
        )
    return message


def unpack_meta(message: bytes) -> SentMeta:
    """Return the sent values.

    Raises:
        PayloadError: The message is malformed.
    """
    if not message:
        return SentMeta({})
    from flstream.streaming.payload import unpack

    value = unpack(message, {})
    if not (isinstance(value, dict) and isinstance(value.get("meta"), dict)):
        raise PayloadError("the values beside a body are no mapping with the key 'meta'")
    return SentMeta(value["meta"], value.get("optimizer_params"))


@lru_cache(maxsize=16)
def sent_names(message: bytes) -> Sequence[str]:
    """Return the names of a workflow's values for training code.

    Args:
        message: Payload message of the values, which each site of a round is sent.
    """
    sent = unpack_meta(message)
    return (*sent.meta, OPTIMIZER_PARAMS) if sent.optimizer_params else tuple(sent.meta)
