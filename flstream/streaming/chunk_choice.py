"""The choice of a chunk size by measure: which one costs this machine least CPU time.

Longer chunks are fewer, and each costs Python's overhead at both ends. Shorter ones are still in
the processor's cache when they are digested. Which matters more depends on the machine.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

import numpy as np

from flstream.model.copy import copy
from flstream.model.memory import MemoryBody
from flstream.streaming.limits import limits_for
from flstream.streaming.receiver import Receiver
from flstream.streaming.remote import RemoteSource
from flstream.streaming.service import DownloadService
from flstream.streaming.settings import StreamSettings
from flstream.transport.sockets import pipe

MIB = 1 << 20
CANDIDATES = (1 * MIB, 2 * MIB, 4 * MIB)
"""Chunk sizes in bytes that are compared; the memory of a fold grows with its frames."""

# Bytes of a measured download: some of the longest chunks, and more than a core's own cache.
_BODY_BYTES = 16 * MIB
_REPEAT = 2
# A longer chunk is chosen only if it saves as much, so that noise does not decide.
_LEAST_GAIN = 0.02


def measured_chunk_size() -> int:
    """Choose the chunk size of :data:`CANDIDATES` that this machine streams with least CPU time.

    A body of 16 MiB is downloaded twice in each size, from memory to memory within this
    process. CPU time counts, which other processes disturb less than the time that passes.

    Returns:
        The chunk size in bytes.
    """
    return cheapest(cpu_seconds(CANDIDATES))


def cheapest(seconds: Mapping[int, float]) -> int:
    """Return the shortest chunk size that none of the longer ones is clearly cheaper than.

    Args:
        seconds: CPU seconds by chunk size in bytes.
    """
    chosen, *longer = sorted(seconds)
    for size in longer:
        if seconds[size] < (1 - _LEAST_GAIN) * seconds[chosen]:
            chosen = size
    return chosen


def cpu_seconds(sizes: Sequence[int], nbytes: int = _BODY_BYTES) -> dict[int, float]:
    """Measure the CPU seconds of a download in chunks of each size, the lesser of two.

    Args:
        sizes: Chunk sizes in bytes.
        nbytes: Length of the body in bytes, a multiple of 4.
    """
    sent, received = (
        MemoryBody.of({"measured": np.ones(nbytes // 4, np.float32)}) for _ in range(2)
    )
    least = dict.fromkeys(sizes, float("inf"))
    ours, theirs = pipe("sender", "receiver", lends=True)
    limits = limits_for(StreamSettings(chunk_size=max(sizes)))
    with DownloadService("measured", limits) as service, Receiver(theirs, "sender") as receiver:
        service.attach(ours, "receiver")
        for _ in range(_REPEAT):
            for size in sizes:
                ref = service.offer(sent, ["receiver"])
                began = time.process_time()
                remote = RemoteSource(receiver, ref.token, StreamSettings(chunk_size=size))
                copy(remote, received)
                remote.close()
                least[size] = min(least[size], time.process_time() - began)
    return least
