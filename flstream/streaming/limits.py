"""What a peer may cause: memory, work and messages, each bounded."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace

from flstream.streaming.receiver import StreamSettings

MIB = 1 << 20


@dataclass(frozen=True)
class Limits:
    """Limits on what the peer of a channel may cause, on the side of a sender or a receiver.

    They are of one connection, so that many receivers may have as much each.

    Attributes:
        queued_messages: Answers to a receiver that may wait; its requests are read no further then.
        queued_bytes: Bytes of such answers, likewise; one answer more may exceed them.
        hashed_bytes: Bytes that are digested for a receiver before the others have their turn.
        scratch_bytes: Bytes of one frame of what is not in a file, which a sender may have to
            gather, or to serialise.
    """

    queued_messages: int = 256
    queued_bytes: int = 1 * MIB
    hashed_bytes: int = 1 * MIB
    scratch_bytes: int = 64 * MIB


DEFAULT_LIMITS = Limits()


def limits_for(settings: StreamSettings) -> Limits:
    """Limits of a sender whose receivers were given these settings, and do not choose their own.

    A model that is to come in one message may then have any size.
    """
    most = max(DEFAULT_LIMITS.scratch_bytes, settings.frame_size)
    return replace(DEFAULT_LIMITS, scratch_bytes=most if settings.chunk_size else sys.maxsize)
