"""The table of a run's rounds, with metrics and seconds of each phase."""

from __future__ import annotations

from collections.abc import Sequence

from flstream.report.columns import fits
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


def rounds_table(summary: Summary, width: int) -> tuple[list[list[str]], int]:
    """Return the table of rounds, with a star beside the best one.

    Args:
        summary: summary of the run.
        width: columns of the terminal.

    Returns:
        The headings and rows, with as many metrics as fit the width beside the seconds, or below
        them if there is not even room for these; and the number of metrics that were left out.
    """
    metrics = metrics_of([summary])
    bare = _table(summary, [])
    is_wide = fits(bare, width)
    # No metric takes less than five columns.
    for count in range(min(len(metrics), width // 5), 0, -1):
        table = _table(summary, metrics[:count])
        beside = table if is_wide else [row[: 1 + count] for row in table]
        if fits(beside, width):
            return table, len(metrics) - count
    return bare, len(metrics)


def _table(summary: Summary, metrics: Sequence[Metric]) -> list[list[str]]:
    privacy = ("epsilon",) if summary.privacy else ()
    folders = [_FOLDED_AT] if any(each.aggregator for each in summary.rounds) else []
    table = [["round", *map(_heading, metrics), *privacy, *_PHASES, *folders]]
    best = summary.best.round if summary.best else None
    scores = values_by_round(summary)
    if 0 in scores:
        first = (format_metric(scores[0].get(metric)) for metric in metrics)
        blank = ["" for _ in folders]
        dashes = ["-" for _ in (*privacy, *_PHASES)]
        table.append([_marked(0, best), *first, *dashes, *blank])
    for each in _chosen(summary.rounds, best):
        if each is None:
            table.append(["...", *("" for _ in table[0][1:])])
            continue
        row = scores.get(each.round, {})
        values = (format_metric(row.get(metric)) for metric in metrics)
        spent = [format_epsilon(each.privacy)] if privacy else []
        table.append(
            [_marked(each.round, best), *values, *spent, *_seconds(each), *_folder(each, folders)]
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
