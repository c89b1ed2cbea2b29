"""What a peer may cause: memory, work and messages, each bounded."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from flstream.model.layout import MAX_HEADER_BYTES, Layout
from flstream.streaming.settings import StreamSettings

MIB = 1 << 20


# Half the bytes of the longest chunk that is digested at once, and not in turns: these take more of
# the processor's time, 1.1 to 1.2 times as much for a download in chunks of 4 MiB.
_MOST_HASHED_BYTES = 2 * MIB


@dataclass(frozen=True)
class Limits:
    """Limits on what the peer of a channel may cause, on the side of a sender or a receiver.

    They are of one connection, so that many receivers may have as much each.

    Attributes:
        queued_messages: Answers to a receiver that may wait; its requests are read no further then.
        queued_bytes: Bytes of such answers, likewise; one answer more may exceed them.
        hashed_bytes: Bytes that are digested for a receiver before the others have their turn; a
            chunk of up to twice as many is digested at once.
        answered_packets: Requests of a receiver, or what looks like one, that are looked at before
            the others have their turn.
        scratch_bytes: Bytes of a model in one message, which a sender has to serialise at once.
        layout_bytes: Bytes of the layout that a sender states.
        layout_tensors: Tensors of that layout.
        body_bytes: Bytes of the body that it describes.
    """

    queued_messages: int = 256
    queued_bytes: int = 1 * MIB
    hashed_bytes: int = 1 * MIB
    answered_packets: int = 32
    scratch_bytes: int = 64 * MIB
    layout_bytes: int = 8 * MIB
    layout_tensors: int = 100_000
    body_bytes: int = 1 << 48

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if type(value) is not int or value < 1:
                raise ValueError(f"{name} is {value!r}; give a whole number from 1")


DEFAULT_LIMITS = Limits()


def limits_for(settings: StreamSettings) -> Limits:
    """Limits among the processes of a job, whose models may have any number of tensors.

    Args:
        settings: Settings of all its downloads. A model that is to come in one message may have any
            size.
    """
    at_once = min(settings.chunk_size // 2, _MOST_HASHED_BYTES)
    return replace(
        DEFAULT_LIMITS,
        hashed_bytes=max(DEFAULT_LIMITS.hashed_bytes, at_once),
        scratch_bytes=DEFAULT_LIMITS.scratch_bytes if settings.chunk_size else sys.maxsize,
        layout_bytes=MAX_HEADER_BYTES,
        layout_tensors=sys.maxsize,
    )


def limits_for_updates(model: Layout, sites: int) -> Limits:
    """Limits of what a worker may answer with: little more than a model for each of its sites.

    An update that does not fit the model is to be refused by the name of a tensor, so it may be
    larger.
    """
    return replace(
        DEFAULT_LIMITS,
        layout_bytes=max(DEFAULT_LIMITS.layout_bytes, 2 * sites * len(model.plain_header)),
        layout_tensors=max(DEFAULT_LIMITS.layout_tensors, 2 * sites * len(model.tensors)),
    )
