"""Flower's messages between a ServerApp and ClientApps, and the context of either."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

from flstream.compat.flower.records import RecordDict

DEFAULT_TTL = 43200
"""Seconds for which a message counts; 12 hours."""

CATEGORIES = ("train", "evaluate", "query")

SERVER_NODE = 1
"""Id of the node that the ServerApp runs on."""


class MessageType:
    """Types of messages."""

    TRAIN = "train"
    EVALUATE = "evaluate"
    QUERY = "query"


@dataclass
class Error:
    """Reason why a message has no content."""

    code: int
    reason: str | None = None


@dataclass
class Metadata:
    """Facts about a message; times are in seconds."""

    run_id: int
    message_id: str
    src_node_id: int
    dst_node_id: int
    reply_to_message_id: str
    group_id: str
    created_at: float
    ttl: float
    message_type: str
    delivered_at: str = ""

    def __post_init__(self) -> None:
        """Refuse a type that is none."""
        category, _, action = self.message_type.partition(".")
        is_named = action.isidentifier() or "." not in self.message_type
        if category not in CATEGORIES or not is_named:
            raise ValueError(
                f"{self.message_type!r} is no type of message; use {', '.join(CATEGORIES)}, or one "
                "of them with an action, such as train.warm_up"
            )


class Message:
    """Message, or the reply to one.

    Args:
        content: Its records, or an :class:`Error`.
        dst_node_id: Node that it is for.
        message_type: Type, such as ``train`` or ``query.ages``.
        error: Reason why there is no content.
        ttl: Seconds for which it counts.
        group_id: Group of messages that it belongs to.
        reply_to: Message that it replies to.
        metadata: Its metadata, in place of the four above.
    """

    def __init__(
        self,
        content: RecordDict | Error | None = None,
        dst_node_id: int | None = None,
        message_type: str | None = None,
        *,
        error: Error | None = None,
        ttl: float | None = None,
        group_id: str | None = None,
        reply_to: Message | None = None,
        metadata: Metadata | None = None,
    ) -> None:
        if isinstance(content, Error):
            content, error = None, content
        if metadata is None and reply_to is not None:
            to: Metadata = reply_to.metadata
            metadata = replace(
                to,
                message_id="",
                src_node_id=to.dst_node_id,
                dst_node_id=to.src_node_id,
                reply_to_message_id=to.message_id,
                ttl=ttl or to.ttl,
            )
        elif metadata is None:
            if content is None or dst_node_id is None or message_type is None:
                raise TypeError(
                    "a Message is made of content, dst_node_id and message_type, or of content or "
                    "error and reply_to"
                )
            group, seconds = group_id or "", ttl or DEFAULT_TTL
            metadata = Metadata(
                0, "", SERVER_NODE, dst_node_id, "", group, 0.0, seconds, message_type
            )
        if (content is None) == (error is None):
            raise TypeError("a Message has either content or an error")
        self.metadata: Metadata = metadata
        # Set by strategies: see :class:`flstream.compat.flower.grid.Sending`.
        self.weighted_by, self.is_folded_unseen = "num-examples", False
        self._content, self._error = content, error

    @property
    def content(self) -> RecordDict:
        """Records of the message."""
        if self._content is None:
            raise ValueError("the message has an error, and no content; ask has_content() first")
        return self._content

    @content.setter
    def content(self, content: RecordDict) -> None:
        self._content, self._error = content, None

    @property
    def error(self) -> Error:
        """Reason why there is no content."""
        if self._error is None:
            raise ValueError("the message has content, and no error; ask has_error() first")
        return self._error

    def has_content(self) -> bool:
        """Return whether it has records."""
        return self._content is not None

    def has_error(self) -> bool:
        """Return whether it has an error instead."""
        return self._error is not None

    def create_reply(self, content: RecordDict, ttl: float | None = None) -> Message:
        """Return a reply with content."""
        return Message(content, reply_to=self, ttl=ttl)

    def create_error_reply(self, error: Error, ttl: float | None = None) -> Message:
        """Return a reply with an error."""
        return Message(error=error, reply_to=self, ttl=ttl)

    def __repr__(self) -> str:
        what = "error" if self.has_error() else "content"
        return f"Message({self.metadata.message_type}, {what}: {self._error or self._content!r})"


@dataclass
class Context:
    """Facts about an app's run and node.

    Attributes:
        run_id: Id of the run.
        node_id: Id of the node.
        node_config: Settings of the node: ``partition-id`` and ``num-partitions``.
        state: Records that stay with the node from message to message.
        run_config: Settings of the app.
    """

    run_id: int
    node_id: int
    node_config: dict[str, Any]
    state: RecordDict = field(default_factory=RecordDict)
    run_config: dict[str, Any] = field(default_factory=dict)
