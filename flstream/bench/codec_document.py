"""The results of a bench of codecs as a JSON document: machine, plan, and figures of every run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from flstream.bench.codec_compare import CodecMeasurement, CodecResult
from flstream.bench.codec_plan import CodecBenchPlan
from flstream.bench.document import link_document
from flstream.bench.plan import ROUNDS
from flstream.telemetry.machine import this_machine


def codec_document(plan: CodecBenchPlan, results: Sequence[CodecResult]) -> dict[str, Any]:
    """Convert the results of a bench of codecs to JSON; bytes and seconds are numbers."""
    plain = results[0].median
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": asdict(this_machine()),
        "plan": {
            "model_bytes": plan.model_bytes,
            "measured_bytes": plan.measured_bytes,
            "times": plan.times,
            "clients": plan.clients,
            "network": link_document(plan.network),
            "link_seconds": plan.link_seconds(plan.cases[0])._asdict(),
            "codecs": [case.name for case in plan.cases],
            "chunk_size": plan.chunk_size,
            "tensors": plan.tensors,
            "rounds": ROUNDS,
            "repeat": plan.repeat,
        },
        "results": [_result(plan, plain, each) for each in results],
    }


def _result(
    plan: CodecBenchPlan, plain: CodecMeasurement | None, result: CodecResult
) -> dict[str, Any]:
    run, error = result.median, result.error
    share = run.moved_bytes / plain.moved_bytes if run and plain else None
    return {
        "codecs": result.case.name,
        "up": list(result.case.up),
        "down": list(result.case.down),
        "ran": run is not None,
        "failure": result.failure,
        "predicted": asdict(result.need),
        "available": {"memory": result.available.memory, "disk": result.available.disk},
        "exact": error.exact if error else None,
        "error": error.relative if error else None,
        "share": share,
        "median": _figures(run) if run else None,
        "whole": _whole(run, plan.times) if run else None,
        "runs": [_figures(each) for each in result.runs],
    }


def _figures(run: CodecMeasurement) -> dict[str, float]:
    return {**asdict(run), "round_seconds": run.round_seconds}


def _whole(run: CodecMeasurement, times: float) -> dict[str, float]:
    """Return the figures of a round with a model that is so many times as long."""
    found = {name: times * value for name, value in _figures(run).items()}
    del found["wall_seconds"]  # most of which are for processes, whatever the model
    return found
