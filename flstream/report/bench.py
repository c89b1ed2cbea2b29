"""What a bench found, as a table and a sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console
from rich.table import Table

from flstream.bench.compare import Measurement, Plan, Result
from flstream.report.console import new_table
from flstream.units import format_bytes


def print_comparison(console: Console, plan: Plan, results: Sequence[Result]) -> None:
    """Print what each mode took, and what streaming saves."""
    console.print(
        f"A model of {format_bytes(plan.model_bytes)} to and from {plan.clients} clients, "
        f"{format_bytes(plan.chunk_size)} chunks, medians of {plan.repeat}:"
    )
    console.print(_table(results))
    for line in _verdict(results):
        console.print(line)


def _table(results: Sequence[Result]) -> Table:
    table = new_table("", *(result.mode for result in results))
    rows: dict[str, Callable[[Measurement], str]] = {
        "model down to every client": lambda run: f"{run.download:.2f} s",
        "updates up, folded": lambda run: f"{run.upload_and_fold:.2f} s",
        "next model made durable": lambda run: f"{run.checkpoint:.2f} s",
        "requests a round": lambda run: f"{run.requests:,.0f}",
        "server, peak RSS over idle": lambda run: format_bytes(int(run.server_peak_rss)),
        "client, peak RSS over idle": lambda run: format_bytes(int(run.client_peak_rss)),
        "all processes, peak PSS": lambda run: format_bytes(int(run.total_peak_pss)),
    }
    medians = [result.median for result in results]
    for name, figure in rows.items():
        table.add_row(name, *(figure(run) if run else "not run" for run in medians))
    table.add_row("memory foretold", *(format_bytes(each.predicted_bytes) for each in results))
    return table


def _verdict(results: Sequence[Result]) -> list[str]:
    """What streaming saves here, in a sentence, where both modes were asked for."""
    by_mode = {result.mode: result for result in results}
    if "pull" not in by_mode or "native" not in by_mode:
        return []
    pull, native = by_mode["pull"].median, by_mode["native"].median
    have = format_bytes(by_mode["pull"].available_bytes)
    if pull is None:
        need = format_bytes(by_mode["pull"].predicted_bytes)
        return [f"The clients' models alone need about {need}, and {have} are available."]
    total = format_bytes(int(pull.total_peak_pss))
    if native is None:
        need = format_bytes(by_mode["native"].predicted_bytes)
        return [f"Streaming ran in {total}; native needs about {need}, {have} are available."]
    saved = 1 - pull.total_peak_pss / native.total_peak_pss
    server = native.server_peak_rss / max(pull.server_peak_rss, 1)
    return [
        f"Streaming took {saved:.0%} less memory in all, "
        f"and {server:.0f} times less of the server's."
    ]
