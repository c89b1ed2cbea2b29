"""The conclusion of a bench in a sentence: savings by streaming, and distance from the limit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from flstream.bench.compare import Result
from flstream.bench.exchange import Need, fits
from flstream.bench.limits import MachineLimits
from flstream.bench.measurement import Measurement, ratios
from flstream.bench.plan import Plan
from flstream.report.text import counted
from flstream.simulation.forecasting.fitting import Available
from flstream.text import printable
from flstream.units import format_bytes


class RunsOfCase(Protocol):
    """Result of a case that may have fewer runs than planned."""

    need: Need
    available: Available
    failure: str | None

    @property
    def label(self) -> str:
        """Name of the case in tables."""

    @property
    def runs(self) -> Sequence[object]:
        """Figures of each run."""


def shortfalls(repeat: int, results: Sequence[RunsOfCase]) -> list[str]:
    """Return a sentence, with the reason, for each case with fewer runs than planned.

    Args:
        repeat: planned number of runs of each case.
        results: results of all cases.
    """
    lines = []
    for result in results:
        if result.failure is not None:
            lines.append(f"{result.label}: failed: {printable(result.failure)}")
        elif not result.runs:
            lines.append(f"{result.label}: not run, {_lack(result)}")
        elif len(result.runs) < repeat:
            times = counted(len(result.runs), "run")
            lines.append(f"{result.label}: only {times}, {_lack(result)}")
    return lines


def verdict(plan: Plan, results: Sequence[Result], limits: MachineLimits | None) -> str:
    """Return a sentence on what streaming saves, and how close it comes to the machine's limit.

    Of several cases that stream, the one with the shortest round is taken.

    Args:
        plan: plan of the bench.
        results: results of all cases.
        limits: limits of the machine; None if they were not measured.
    """
    native = next((each for each in results if each.case.mode == "native"), None)
    streamed = [
        (run.download + run.upload_and_fold, index, result, run)
        for index, result in enumerate(results)
        if result.case.mode != "native" and (run := result.median) is not None
    ]
    if not streamed or limits is None:
        return _without_streaming(native)
    _, _, best, run = min(streamed)
    against = ratios(plan, best.case, run, limits)
    pace = f"its transfers took {against.exchange_pipe:.1f} times what a bare pipe would"
    if against.exchange_link is not None:
        pace = f"its transfers took {against.exchange_link:.2f} times what the link takes at least"
    total, server = (format_bytes(round(size)) for size in (run.total_peak_pss, _server(run)))
    took = f"{best.label} took {total} in all and {server} in the server"
    if native is None:
        return f"Streaming with {took}; {pace}."
    whole = native.median
    if whole is not None:
        saved = 1 - run.total_peak_pss / whole.total_peak_pss
        fewer = whole.server_peak_rss / max(run.server_peak_rss, 1)
        saving = f"{saved:.0%} less memory in all" if saved > 0 else "no less memory in all"
        return (
            f"Streaming with {best.label} took {saving} and {fewer:,.0f} times less in the server "
            f"({server}) than native; {pace}."
        )
    if native.failure is not None:
        return f"Streaming with {took}, where native failed; {pace}."
    return f"Streaming with {took}, where native {_lack(native)}; {pace}."


def _without_streaming(native: Result | None) -> str:
    if native is not None and native.runs:
        return "Nothing that streams was run, so there is nothing to compare native with."
    return "Nothing was run; see above for what each case needs."


def _server(run: Measurement) -> float:
    return run.server_peak_rss


def _lack(result: RunsOfCase) -> str:
    """Return the memory or disk that a case lacks: ``needs about 41 GiB, 21 GiB available``."""
    need, room = result.need, result.available
    if need.memory > room.memory or fits(need, room):
        return f"needs about {format_bytes(need.memory)}, {format_bytes(room.memory)} available"
    free = format_bytes(room.disk or 0)
    return f"needs about {format_bytes(need.disk)} of disk, {free} free"
