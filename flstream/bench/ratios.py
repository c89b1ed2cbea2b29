"""How close a case runs to what the machine can do."""

from __future__ import annotations

from dataclasses import dataclass

from flstream.bench.limits import Limits
from flstream.bench.measurement import Measurement
from flstream.bench.plan import Case, Plan


@dataclass(frozen=True)
class Ratios:
    """How many times as long something took as the limit would: 1 is as fast as can be.

    Attributes:
        download_pipe: the model to every client, against the bare pipe.
        upload_pipe: the updates, and folding them, against the bare pipe.
        exchange_pipe: both.
        exchange_memcpy: both, against copying as many bytes in memory.
        checkpoint_disk: making the next model durable, against writing as many bytes.
    """

    download_pipe: float
    upload_pipe: float
    exchange_pipe: float
    exchange_memcpy: float
    checkpoint_disk: float


def ratios(plan: Plan, case: Case, seconds: Measurement, limits: Limits) -> Ratios:
    """Hold a case against the limits.

    Args:
        plan: what was measured.
        case: the case. The pipe's limit is that with reads of its chunk size, and the highest one
            where it has no chunks.
        seconds: of a round.
        limits: of the same run.
    """
    pipe = limits.pipe.get(case.chunk_size or 0, max(limits.pipe.values()))
    one_way = plan.moved_bytes / pipe
    exchange = seconds.download + seconds.upload_and_fold
    return Ratios(
        download_pipe=seconds.download / one_way,
        upload_pipe=seconds.upload_and_fold / one_way,
        exchange_pipe=exchange / (2 * one_way),
        exchange_memcpy=exchange / (2 * plan.moved_bytes / limits.memcpy),
        checkpoint_disk=seconds.checkpoint / (plan.model_bytes / limits.disk),
    )
