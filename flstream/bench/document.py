"""The results of a bench as a JSON document: machine, plan, limits and the figures of every run."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import msgspec

from flstream.bench.compare import Comparison, Result
from flstream.bench.limits import MachineLimits
from flstream.bench.plan import Plan
from flstream.bench.ratios import ratios
from flstream.job.link import NetworkLink
from flstream.telemetry.machine import this_machine


def document(plan: Plan, comparison: Comparison) -> dict[str, Any]:
    """Convert the results of a bench to JSON; bytes, seconds and bytes a second are numbers."""
    limits = comparison.median_limits
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": asdict(this_machine()),
        "plan": {**asdict(plan), "network": link_document(plan.network)},
        "limits": {
            "median": _limits(limits) if limits else None,
            "runs": [_limits(each) for each in comparison.limits],
        },
        "results": [_result(plan, limits, each) for each in comparison.results],
    }


def link_document(link: NetworkLink | None) -> dict[str, Any] | None:
    """Convert a link to JSON: bits a second, seconds, and the fraction of packets it loses."""
    return None if link is None else msgspec.structs.asdict(link.facts)


def _limits(limits: MachineLimits) -> dict[str, Any]:
    pipe = [{"read_size": size, "rate": rate} for size, rate in limits.pipe.items()]
    return {"memcpy": limits.memcpy, "pipe": pipe, "disk": limits.disk}


def _result(plan: Plan, limits: MachineLimits | None, result: Result) -> dict[str, Any]:
    median = result.median
    row: dict[str, Any] = {
        "mode": result.case.mode,
        "chunk_size": result.case.chunk_size,
        "ran": median is not None,
        "failure": result.failure,
        "predicted_bytes": result.need.memory,
        "predicted": asdict(result.need),
        "available": {"memory": result.available.memory, "disk": result.available.disk},
        "median": None,
        "rates": None,
        "ratios": None,
        "runs": [asdict(run) for run in result.runs],
    }
    if median is not None and limits is not None:
        moved = plan.moved_bytes
        row["median"] = asdict(median)
        row["rates"] = {
            "download": moved / median.download,
            "upload_and_fold": moved / median.upload_and_fold,
        }
        row["ratios"] = asdict(ratios(plan, result.case, median, limits))
    return row
