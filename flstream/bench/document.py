"""The results of a bench as a JSON document: machine, plan, and the figures of every run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any

from flstream.bench.cases import BenchPlan
from flstream.bench.measuring import Result
from flstream.telemetry.machine import this_machine


def document(plan: BenchPlan, results: Sequence[Result]) -> dict[str, Any]:
    """Convert the results of a bench to JSON; bytes, seconds and bytes a second are numbers."""
    keys = ("model_bytes", "clients", "tensors", "rounds", "repeat")
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": asdict(this_machine()),
        "plan": {key: getattr(plan, key) for key in keys},
        "results": [_result(result, results) for result in results],
    }


def _result(result: Result, results: Sequence[Result]) -> dict[str, Any]:
    return {
        "case": result.case.name,
        "overrides": list(result.case.overrides),
        "ran": bool(result.runs),
        "reason": result.reason,
        "failed": result.has_failed,
        "digest": result.digest,
        "predicted": result.need._asdict(),
        "median": asdict(result.median) if result.median else None,
        "ratio": result.ratio(results),
        "error": result.loss,
        "runs": [asdict(run) for run in result.runs],
    }
