"""What travels beside the bodies of a task or an answer: meta and optimizer parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from flstream.errors import ClientError, PayloadError
from flstream.streaming.payload import pack, unpack

OPTIMIZER_PARAMS = "optimizer_params"
"""Name of the values for an optimizer, among those that are sent."""

_MOST_BYTES = 1 << 20
_PLAIN = frozenset({bool, int, float, str, type(None)})
# What an answer's record has in fields of its own.
_OWN_FIELDS = frozenset({"partial"})


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
    """Values as a payload message without tensors; empty where there are none.

    Raises:
        ClientError: A value cannot be sent, or there are more than 1 MiB of them; the message names
            its path.
    """
    if not meta and optimizer_params is None:
        return b""
    if optimizer_params is None and all(
        type(each) in _PLAIN and each != 0  # 0.0 and -0.0 are alike as keys
        for each in meta.values()
    ):
        # Small sites send next to nothing, thousands of times a second, and mostly the same.
        return _packed_plain(tuple((name, type(each), each) for name, each in meta.items()))
    return _packed(meta, optimizer_params)


@lru_cache(maxsize=1024)
def _packed_plain(items: tuple[tuple[str, type, Any], ...]) -> bytes:
    # With its type, since 1, 1.0 and True are alike as keys.
    return _packed({name: value for name, _, value in items}, None)


def _packed(meta: Mapping[str, Any], optimizer_params: Mapping[str, Any] | None) -> bytes:
    optimizer = None if optimizer_params is None else dict(optimizer_params)
    value = {"meta": dict(meta), "optimizer_params": optimizer}
    try:
        message, tensors = pack(value)
        if tensors:
            name = next(iter(tensors)).removeprefix("payload")
            raise ClientError(
                f"{name} is a tensor, and beside the params only plain values travel, and the "
                "bodies that a workflow has beside its model; send a number with .item(), and keep "
                "an optimizer's tensors in get_state_dir()"
            )
    except PayloadError as error:
        raise ClientError(f"meta cannot be sent: {error}") from error
    if len(message) > _MOST_BYTES:
        raise ClientError(
            f"meta and optimizer_params take {len(message)} bytes, and {_MOST_BYTES} is "
            "most; send less, or put it into params"
        )
    return message


def pack_meta(meta: Mapping[str, Any], optimizer_params: Mapping[str, Any] | None) -> bytes:
    """What an answer sends beside its tensors; see :func:`pack_values`."""
    values = {key: value for key, value in meta.items() if key not in _OWN_FIELDS}
    return pack_values(values, optimizer_params)


def unpack_meta(message: bytes) -> SentMeta:
    """The values that were sent.

    Raises:
        PayloadError: The message is malformed.
    """
    if not message:
        return SentMeta({})
    value = unpack(message, {})
    if not (isinstance(value, dict) and isinstance(value.get("meta"), dict)):
        raise PayloadError("the values beside a body are no mapping with the key 'meta'")
    return SentMeta(value["meta"], value.get("optimizer_params"))


def sent_names(message: bytes, bodies: Sequence[str]) -> list[str]:
    """Names of what a workflow sends for training code to use.

    Args:
        message: Payload message of the values that it sends.
        bodies: Names of the bodies that it sends beside the model.
    """
    return [*_value_names(message), *bodies]


@lru_cache(maxsize=16)
def _value_names(message: bytes) -> Sequence[str]:
    # Each site of a round is sent the same message.
    sent = unpack_meta(message)
    return (*sent.meta, OPTIMIZER_PARAMS) if sent.optimizer_params else tuple(sent.meta)
