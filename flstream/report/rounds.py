"""The table of a run's rounds, with metrics and seconds of each phase."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from flstream.report.console import new_table
from flstream.report.metrics import Metric, metrics_of, values_by_round
from flstream.report.text import elide, format_epsilon, format_metric
from flstream.runs.summary import RoundSummary, Summary
from flstream.text import printable

_PHASES = ("download", "train", "up+fold", "checkpoint", "evaluate")
_FOLDED_AT = "folded at"
# If there are more rounds, only the first and the last ones and the best one are shown.
_MOST_ROUNDS, _FIRST, _LAST = 20, 5, 12
# Maximum width of a metric's name in columns, so that more metrics fit.
_METRIC_WIDTH = 12


def rounds_table(console: Console, summary: Summary) -> tuple[Table, int]:
    """Create the table of rounds, with a star beside the best one.

    Args:
        console: console that the table must fit.
        summary: summary of the run.

    Returns:
        The table, with as many metrics as fit the console's width, and the number of metrics that
        were left out.
    """
    metrics = metrics_of([summary])
    # Measured without a limit of the width: rich would otherwise shrink the table and cut numbers.
    endless = console.options.update_width(1 << 16)
    # No metric takes less than five columns.
    for count in range(min(len(metrics), console.width // 5), 0, -1):
        table = _table(summary, metrics[:count])
        if Measurement.get(console, endless, table).maximum <= console.width:
            return table, len(metrics) - count
    return _table(summary, []), len(metrics)


def _table(summary: Summary, metrics: Sequence[Metric]) -> Table:
    privacy = ("epsilon",) if summary.privacy else ()
    folders = [_FOLDED_AT] if any(each.aggregator for each in summary.rounds) else []
    table = new_table("round", *map(_heading, metrics), *privacy, *_PHASES, *folders)
    best = summary.best.round if summary.best else None
    scores = values_by_round(summary)
    if 0 in scores:
        first = (format_metric(scores[0].get(metric)) for metric in metrics)
        table.add_row(_marked(0, best), *first, *("-" for _ in (*privacy, *_PHASES)))
    for each in _chosen(summary.rounds, best):
        if each is None:
            table.add_row("...")
            continue
        row = scores.get(each.round, {})
        values = (format_metric(row.get(metric)) for metric in metrics)
        spent = [format_epsilon(each.privacy)] if privacy else []
        table.add_row(
            _marked(each.round, best), *values, *spent, *_seconds(each), *_folder(each, folders)
        )
    return table


def _marked(number: int, best: int | None) -> str:
    return f"{number} *" if number == best else str(number)


def _heading(metric: Metric) -> str:
    return elide(metric.title, _METRIC_WIDTH)


def _chosen(rounds: Sequence[RoundSummary], best: int | None) -> list[RoundSummary | None]:
    """Return the rounds to show, with None in place of rounds that are left out."""
    if len(rounds) <= _MOST_ROUNDS:
        return list(rounds)
    chosen: list[RoundSummary | None] = []
    for index, each in enumerate(rounds):
        if index < _FIRST or index >= len(rounds) - _LAST or each.round == best:
            chosen.append(each)
        elif chosen[-1] is not None:
            chosen.append(None)
    return chosen


def _folder(each: RoundSummary, folders: Sequence[str]) -> list[str]:
    return [printable(each.aggregator) or "server" for _ in folders]


def _seconds(each: RoundSummary) -> list[str]:
    *phases, evaluate = each.phases
    # Zero stands for a round without an evaluation.
    return [*(f"{seconds:.2f}" for seconds in phases), f"{evaluate:.2f}" if evaluate else "-"]
