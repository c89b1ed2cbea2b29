"""The table of a sweep: mean and spread of each setting over its seeds, and the best one."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import msgspec

from flstream.errors import SimulationError
from flstream.job.keys import short_keys
from flstream.report.page import write_page
from flstream.report.table import Column, Table
from flstream.report.text import counted, format_metrics
from flstream.runs.small_files import write_whole
from flstream.sweep.grid import shown
from flstream.sweep.record import PointRecord, SweepRecord
from flstream.units import format_seconds

ValueOf = Callable[[Mapping[str, Any]], str | None]
"""Function that returns a key's value in a setting's row as text; None where it has none."""

_LEAST_VALUE = 16  # characters of a value that are shown at least
_NUMBERS = (
    "runs",
    "mean",
    "spread",
    "lowest",
    "highest",
    "rounds",
    "seconds",
    "simulated_seconds",
)


def setting_rows(record: SweepRecord) -> list[dict[str, Any]]:
    """Return a row for each setting: its values by key, and the scores of its runs.

    ``mean``, ``spread`` (the standard deviation over seeds; None for fewer than two), ``lowest``
    and ``highest`` are of the best key metric of each run that is over. ``seconds`` is the sum, and
    ``simulated_seconds`` their mean by the virtual clock; None without one. ``status`` is that of
    its runs where they have the same. ``is_best`` marks the setting with the best mean, once all
    runs are over.
    """
    rows = [_row(points) for points in record.settings]
    if any(point.status in ("waiting", "stopped") for point in record.points):
        return rows
    compared = [row for row in rows if row["mean"] is not None and row["status"] == "finished"]
    compared = compared or [row for row in rows if row["mean"] is not None]
    if compared:
        choose = max if record.mode == "max" else min
        choose(compared, key=lambda row: row["mean"])["is_best"] = True
    return rows


def best_line(record: SweepRecord) -> str:
    """Return how clearly the best setting is that, in a line or two; empty where none is marked."""
    rows = setting_rows(record)
    best = next((row for row in rows if row["is_best"]), None)
    if best is None or len(rows) == 1:
        return ""
    count = sum(row["status"] not in ("finished", "pruned") for row in rows)
    failed = f"\n(left out: {counted(count, 'setting')} with a failed run)" if count else ""
    ties = sum(row["mean"] == best["mean"] for row in rows) - 1
    if ties and best["spread"] is None:
        same = "one other has" if ties == 1 else f"{ties} others have"
        return f"* has the best mean, as {same}{failed}"
    if best["spread"] is None:
        more = record.seeds == 1 and not record.prune  # a pruned sweep takes no points in
        advice = "; --seeds 3 would show how much seeds change it" if more else ""
        return f"* has the best mean{advice}{failed}"
    near = sum(
        abs(row["mean"] - best["mean"]) <= max(best["spread"], row["spread"] or 0.0)
        for row in rows
        if row is not best and row["mean"] is not None
    )
    others = "no other is" if near == 0 else f"{near} {'other is' if near == 1 else 'others are'}"
    return f"* has the best mean; {others} within one spread of it{failed}"


def best_of_each(record: SweepRecord) -> list[str]:
    """Return a line for each variant, or each value of the first key, with the best other values.

    Returns:
        The lines; none where nothing else is varied, or a run is still to come.
    """
    rows = setting_rows(record)
    first = {key for variant in record.variants for key in variant} or {*record.keys[:1]}
    others = [key for key in record.keys if key not in first]
    if not others or not any(row["is_best"] for row in rows):
        return []
    labels, groups = short_keys(record.keys), dict[str, list[dict[str, Any]]]()

    def words(row: Mapping[str, Any], is_first: bool) -> str:
        own = {key: value for key, value in row["values"].items() if (key in first) == is_first}
        return ", ".join(f"{labels[key]}={shown(value)}" for key, value in own.items())

    for row in rows:
        if row["mean"] is not None and row["status"] == "finished":
            groups.setdefault(words(row, True), []).append(row)
    if len(groups) < 2:
        return []
    choose, lines = max if record.mode == "max" else min, []
    for name, members in groups.items():
        best = choose(members, key=lambda row: row["mean"])
        value = format_metrics({record.metric: best["mean"]})
        lines.append(f"best of {name}: {words(best, False)} ({value})")
    return lines


def _row(points: Sequence[PointRecord]) -> dict[str, Any]:
    over = [point for point in points if point.status in ("finished", "pruned")]
    scores = [point.score for point in over if point.score is not None]
    simulated = [seconds for it in points if (seconds := it.simulated_seconds) is not None]
    statuses = {point.status for point in points}
    return {
        "values": dict(points[0].values),
        "status": statuses.pop() if len(statuses) == 1 else "unfinished",
        "runs": len(scores),
        "mean": mean(scores) if scores else None,
        "spread": stdev(scores) if len(scores) > 1 else None,
        "lowest": min(scores, default=None),
        "highest": max(scores, default=None),
        "rounds": max(point.rounds for point in points),
        "seconds": sum(point.seconds for point in points),
        "simulated_seconds": mean(simulated) if simulated else None,
        "is_best": False,
    }


def point_line(record: SweepRecord, point: PointRecord) -> str:
    """Return the line that tells of a run that has ended."""
    if point.status in ("failed", "stopped"):
        return f"{point.name}: {point.status} after {counted(point.rounds, 'round')}"
    score = (
        "nothing scored" if point.score is None else format_metrics({record.metric: point.score})
    )
    rounds = f" in {counted(point.rounds, 'round')}" if record.prune else ""
    times = format_seconds(point.seconds)
    if point.simulated_seconds is not None:
        times += f", {format_seconds(point.simulated_seconds)} simulated"
    return f"{point.name}: best {score}{rounds}, {times}"


def write_results(folder: Path, record: SweepRecord) -> Path | None:
    """Write a sweep's tables and the page of its runs; return the page, if any run has begun.

    Raises:
        SimulationError: The disk does not take them.
        UsageError: A file of somebody else has the page's name.
    """
    for name, text in (("table.csv", table_csv(record)), ("table.json", table_json(record))):
        try:
            write_whole(folder / name, text)
        except OSError as error:
            raise SimulationError(f"{folder / name} cannot be written: {error.strerror}") from error
    begun = [it for it in record.points if (folder / it.name / "summary.json").exists()]
    if not begun:
        return None
    runs = [folder / point.name for point in begun]
    keys = [key for key in record.keys if any(key in point.values for point in begun)]
    return write_page(runs, folder / "report.html", group_by=keys)


def sweep_table(record: SweepRecord) -> Table:
    """Return the table of a sweep's settings, the best of which is marked."""
    rows, labels = setting_rows(record), short_keys(record.keys)

    def value_of(key: str) -> ValueOf:
        return lambda row: shown(row["values"][key]) if key in row["values"] else None

    name_of, *others = [value_of(key) for key in labels] or [lambda row: record.job]
    head, *heads = labels.values() or ["job"]
    columns = [
        *(_value_column(label, take, rows) for label, take in zip(heads, others, strict=True)),
        Column("status", "state", 1, itemgetter("status")),
        Column("runs", "count", 1, itemgetter("runs")),
        Column(record.metric, "metric", 0, itemgetter("mean")),
        Column("spread", "metric", 1, itemgetter("spread")),
        Column("rounds", "count", 2, itemgetter("rounds")),
        Column("time", "duration", 3, itemgetter("seconds")),
        Column("simulated", "duration", 1, itemgetter("simulated_seconds")),
    ]
    seeds = counted(record.seeds, "seed")
    title = f"{counted(len(rows), 'setting')}, {seeds} each; best {record.metric} of each run"
    items = ((name_of(row), row) for row in rows)
    first = _value_column(head, name_of, rows)
    first = first._replace(least=first.least + len(" *"))
    return Table.of(first, items, columns, title, lambda row: "best" if row["is_best"] else "")


def _value_column(label: str, take: ValueOf, rows: Sequence[Mapping[str, Any]]) -> Column:
    """Return the column of a key's values, which other columns give way to."""
    longest = max(len(take(row) or "") for row in rows)
    return Column(label, "name", 0, take, least=min(longest, _LEAST_VALUE))


def table_json(record: SweepRecord) -> str:
    """Return ``table.json``: the metric, the best setting, a row a setting, and a row a run."""
    rows = setting_rows(record)
    best = next((row["values"] for row in rows if row["is_best"]), None)
    content = {
        "job": record.job,
        "metric": record.metric,
        "mode": record.mode,
        "best": best,
        "settings": rows,
        "runs": msgspec.to_builtins(record.points),
    }
    return json.dumps(content, indent=2) + "\n"


def table_csv(record: SweepRecord) -> str:
    """Return ``table.csv``: a line a setting, its values under the dotted names of their keys.

    A key that the job of a setting does not have is empty.
    """
    text, keys = io.StringIO(), record.keys
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*keys, "status", *_NUMBERS, "is_best"])
    for row in setting_rows(record):
        values = [shown(row["values"].get(key, "")) for key in keys]
        numbers = ["" if row[name] is None else row[name] for name in _NUMBERS]
        writer.writerow([*values, row["status"], *numbers, int(row["is_best"])])
    return text.getvalue()
