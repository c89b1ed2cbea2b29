"""Ratios of measured times to the machine's limits."""

from __future__ import annotations

from dataclasses import dataclass

from flstream.bench.limits import MachineLimits
from flstream.bench.link_times import link_seconds
from flstream.bench.measurement import Measurement
from flstream.bench.plan import Case, Plan


@dataclass(frozen=True)
class Ratios:
    """Measured times divided by those at the machine's limits; 1 is optimal.

    Attributes:
        download_pipe: ratio of sending the model to every client to the bare pipe.
        upload_pipe: ratio of fetching and folding the updates to the bare pipe.
        exchange_pipe: ratio of download, upload and fold together to the bare pipe.
        exchange_memcpy: ratio of download, upload and fold together to copying in memory.
        checkpoint_disk: ratio of making the next model durable to writing as many bytes.
        exchange_link: ratio of download, upload and fold together to the emulated link, or to the
            bare pipe in a direction in which that is slower; None without a link.
    """

    download_pipe: float
    upload_pipe: float
    exchange_pipe: float
    exchange_memcpy: float
    checkpoint_disk: float
    exchange_link: float | None


def ratios(plan: Plan, case: Case, seconds: Measurement, limits: MachineLimits) -> Ratios:
    """Compute the ratios of a case to the machine's limits.

    Args:
        plan: plan of the bench.
        case: case that was measured. The pipe's limit is the one with reads of the case's chunk
            size, and the highest one where the case has no chunks.
        seconds: measured figures of the case.
        limits: limits of the machine, measured in the same bench.
    """
    pipe = limits.pipe.get(case.chunk_size or 0, max(limits.pipe.values()))
    one_way = plan.moved_bytes / pipe
    exchange = seconds.download + seconds.upload_and_fold
    linked = None
    if plan.network is not None:
        linked = sum(max(one_way, each) for each in link_seconds(plan.network, plan.model_bytes))
    return Ratios(
        download_pipe=seconds.download / one_way,
        upload_pipe=seconds.upload_and_fold / one_way,
        exchange_pipe=exchange / (2 * one_way),
        exchange_memcpy=exchange / (2 * plan.moved_bytes / limits.memcpy),
        checkpoint_disk=seconds.checkpoint / (plan.model_bytes / limits.disk),
        exchange_link=None if linked is None else exchange / linked,
    )
