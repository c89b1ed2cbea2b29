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
        "results": [_result(result, first_measured(results)) for result in results],
    }


def first_measured(results: Sequence[Result]) -> Result | None:
    """Return the result of the first case that was run, which others are compared with."""
    return next((result for result in results if result.runs), None)


def _result(result: Result, first: Result | None) -> dict[str, Any]:
    figures, compared = result.median, first and first.median
    return {
        "case": result.case.name,
        "overrides": list(result.case.overrides),
        "ran": bool(result.runs),
        "reason": result.reason,
        "failed": result.has_failed,
        "digest": result.digest,
        "predicted": result.need._asdict(),
        "median": asdict(figures) if figures else None,
        "ratio": figures.seconds / compared.seconds if figures and compared else None,
        "error": result.error,
        "runs": [asdict(run) for run in result.runs],
    }
