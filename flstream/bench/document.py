"""The results of a bench as a JSON document: machine, plan, and the figures of every run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

import msgspec

from flstream.bench.codec_compare import CodecMeasurement, CodecResult
from flstream.bench.codec_plan import CodecBenchPlan
from flstream.bench.compare import Comparison, Result
from flstream.bench.exchange import ROUNDS
from flstream.bench.limits import MachineLimits
from flstream.bench.measurement import ratios
from flstream.bench.plan import Plan
from flstream.job.link import NetworkLink
from flstream.telemetry.machine import this_machine


def document(plan: Plan, comparison: Comparison) -> dict[str, Any]:
    """Convert the results of a bench to JSON; bytes, seconds and bytes a second are numbers."""
    limits = comparison.median_limits
    return {
        **_sitting(),
        "plan": {**asdict(plan), "network": _link(plan.network)},
        "limits": {
            "median": _limits(limits) if limits else None,
            "runs": [_limits(each) for each in comparison.limits],
        },
        "results": [_result(plan, limits, each) for each in comparison.results],
    }


def codec_document(plan: CodecBenchPlan, results: Sequence[CodecResult]) -> dict[str, Any]:
    """Convert the results of a bench of codecs to JSON; bytes and seconds are numbers."""
    plain = results[0].median
    return {
        **_sitting(),
        "plan": {
            "model_bytes": plan.model_bytes,
            "measured_bytes": plan.measured_bytes,
            "times": plan.times,
            "clients": plan.clients,
            "network": _link(plan.network),
            "link_seconds": plan.link_seconds(plan.cases[0])._asdict(),
            "codecs": [case.name for case in plan.cases],
            "chunk_size": plan.chunk_size,
            "tensors": plan.tensors,
            "rounds": ROUNDS,
            "repeat": plan.repeat,
        },
        "results": [_codec_result(plan, plain, each) for each in results],
    }


def _sitting() -> dict[str, Any]:
    """Return when and on which machine the bench was run."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": asdict(this_machine()),
    }


def _link(link: NetworkLink | None) -> dict[str, Any] | None:
    """Convert a link to JSON: bits a second, seconds, and the fraction of packets it loses."""
    return None if link is None else msgspec.structs.asdict(link.facts)


def _outcome(result: Result | CodecResult) -> dict[str, Any]:
    """Return whether a case was run, what it was to need, and what there was."""
    return {
        "ran": bool(result.runs),
        "failure": result.failure,
        "predicted": asdict(result.need),
        "available": {"memory": result.available.memory, "disk": result.available.disk},
    }


def _limits(limits: MachineLimits) -> dict[str, Any]:
    pipe = [{"read_size": size, "rate": rate} for size, rate in limits.pipe.items()]
    return {"memcpy": limits.memcpy, "pipe": pipe, "disk": limits.disk}


def _result(plan: Plan, limits: MachineLimits | None, result: Result) -> dict[str, Any]:
    median = result.median
    row: dict[str, Any] = {
        "mode": result.case.mode,
        "chunk_size": result.case.chunk_size,
        "predicted_bytes": result.need.memory,
        **_outcome(result),
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


def _codec_result(
    plan: CodecBenchPlan, plain: CodecMeasurement | None, result: CodecResult
) -> dict[str, Any]:
    run, error = result.median, result.error
    share = run.moved_bytes / plain.moved_bytes if run and plain else None
    return {
        "codecs": result.case.name,
        "up": list(result.case.up),
        "down": list(result.case.down),
        **_outcome(result),
        "exact": error.exact if error else None,
        "error": error.relative if error else None,
        "share": share,
        "median": _codec_figures(run) if run else None,
        "whole": _whole(run, plan.times) if run else None,
        "runs": [_codec_figures(each) for each in result.runs],
    }


def _codec_figures(run: CodecMeasurement) -> dict[str, float]:
    return {**asdict(run), "round_seconds": run.round_seconds}


def _whole(run: CodecMeasurement, times: float) -> dict[str, float]:
    """Return the figures of a round with a model that is so many times as long."""
    found = {name: times * value for name, value in _codec_figures(run).items()}
    del found["wall_seconds"]  # most of which are for processes, whatever the model
    return found
