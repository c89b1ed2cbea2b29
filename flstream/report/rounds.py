"""The table of a run's rounds: metrics, and where the seconds went."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

from flstream.report.console import new_table
from flstream.report.text import elide, format_metric, printable
from flstream.simulator.summary import RoundSummary, Summary

_PHASES = ("download", "train", "up+fold", "checkpoint", "evaluate")
# Of a longer run, the first and the last rounds are shown, and the best one.
_MOST_ROUNDS, _FIRST, _LAST = 20, 5, 12
# Names of metrics are cut to this many columns: more would cost another metric its place.
_METRIC_WIDTH = 12


def rounds_table(console: Console, summary: Summary) -> tuple[Table, int]:
    """A row a round, the best one marked with a star.

    Returns:
        The table, with as many metrics as a line of the console takes, and how many were left out.
    """
    names = _metric_names(summary)
    # Measured in a width without end, for rich would otherwise squeeze the table and cut numbers.
    endless = console.options.update_width(1 << 16)
    # No metric takes less than five columns.
    for count in range(min(len(names), console.width // 5), 0, -1):
        table = _table(summary, names[:count])
        if Measurement.get(console, endless, table).maximum <= console.width:
            return table, len(names) - count
    return _table(summary, []), len(names)


def _table(summary: Summary, names: Sequence[tuple[str, str]]) -> Table:
    table = new_table("round", *map(_heading, names), *_PHASES)
    best = summary.best.round if summary.best else 0
    scores = {row["round"]: _flat(row) for row in summary.metrics}
    for each in _chosen(summary.rounds, best):
        if each is None:
            table.add_row("...")
            continue
        marked = f"{each.round} *" if each.round == best else str(each.round)
        row = scores.get(each.round, {})
        table.add_row(marked, *(format_metric(row.get(name)) for name in names), *_seconds(each))
    return table


def _metric_names(summary: Summary) -> list[tuple[str, str]]:
    """Every metric as (kind, name): the one that decides, other scores, what training reported."""
    names = dict.fromkeys(name for row in summary.metrics for name in _flat(row))
    key = ("", summary.best.metric) if summary.best else None
    return sorted(names, key=lambda name: (name != key, name[0]))


def _flat(row: dict[str, object]) -> dict[tuple[str, str], float]:
    """A round's metrics under (kind, name), where kind is "train" for those of the training."""
    flat: dict[tuple[str, str], float] = {}
    for name, value in row.items():
        if isinstance(value, dict):
            flat |= {(name, inner): number for inner, number in value.items()}
        elif isinstance(value, int | float) and name != "round":
            flat["", name] = value
    return flat


def _heading(name: tuple[str, str]) -> str:
    return elide(" ".join(printable(part) for part in name if part), _METRIC_WIDTH)


def _chosen(rounds: Sequence[RoundSummary], best: int) -> list[RoundSummary | None]:
    """The rounds to show; None stands for rounds that were left out."""
    if len(rounds) <= _MOST_ROUNDS:
        return list(rounds)
    chosen: list[RoundSummary | None] = []
    for index, each in enumerate(rounds):
        if index < _FIRST or index >= len(rounds) - _LAST or each.round == best:
            chosen.append(each)
        elif chosen[-1] is not None:
            chosen.append(None)
    return chosen


def _seconds(each: RoundSummary) -> list[str]:
    phases = (each.download, each.train, each.upload_and_fold, each.checkpoint)
    # No evaluation is done in no time at all: zero says that there was none.
    evaluate = f"{each.evaluate:.2f}" if each.evaluate else "-"
    return [*(f"{seconds:.2f}" for seconds in phases), evaluate]
