"""The table of a sweep: mean and spread of each setting over its seeds, and the best one."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from flstream.errors import SimulationError
from flstream.job.keys import short_keys
from flstream.report.page import write_page
from flstream.report.table import Column, Row, Table
from flstream.report.text import counted, format_metrics
from flstream.runs.small_files import write_whole
from flstream.sweep.grid import shown
from flstream.sweep.record import PointRecord, SweepRecord
from flstream.units import format_seconds

_NUMBERS = ("runs", "mean", "spread", "lowest", "highest", "rounds", "seconds")


def setting_rows(record: SweepRecord) -> list[dict[str, Any]]:
    """Return a row for each setting: its values by key, and the scores of its runs.

    ``mean``, ``spread`` (the standard deviation over seeds; None for fewer than two), ``lowest``
    and ``highest`` are of the best key metric of each run. ``status`` is that of its runs where
    they have the same, and ``best`` marks the setting with the best mean.
    """
    rows = [_row(points) for points in record.settings]
    compared = [row for row in rows if row["mean"] is not None and row["status"] == "finished"]
    compared = compared or [row for row in rows if row["mean"] is not None]
    if compared:
        choose = max if record.mode == "max" else min
        choose(compared, key=lambda row: row["mean"])["best"] = True
    return rows


def _row(points: Sequence[PointRecord]) -> dict[str, Any]:
    scores = [point.score for point in points if point.score is not None]
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
        "best": False,
    }


def point_line(record: SweepRecord, point: PointRecord) -> str:
    """Return the line that tells of a run that has ended."""
    if point.status in ("failed", "stopped"):
        return f"{point.name}: {point.status} after {counted(point.rounds, 'round')}"
    score = (
        "nothing scored" if point.score is None else format_metrics({record.metric: point.score})
    )
    return f"{point.name}: best {score}, {format_seconds(point.seconds)}"


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
    runs = [folder / point.name for point in record.points]
    begun = [run for run in runs if (run / "summary.json").exists()]
    return write_page(begun, folder / "report.html") if begun else None


def sweep_table(record: SweepRecord) -> Table:
    """Return the table of a sweep's settings, the best of which is marked."""
    labels = short_keys(record.vary)
    rows = setting_rows(record)
    has_spread = any(row["spread"] is not None for row in rows)
    columns = [Column(label, "name") for label in labels.values()] or [Column("job", "name")]
    columns += [
        Column("status", "state", 1),
        Column("runs", "count", 3),
        Column(f"best {record.metric}", "metric"),
        *([Column("spread", "metric", 1), Column("lowest", "metric", 4)] if has_spread else ()),
        *([Column("highest", "metric", 4)] if has_spread else ()),
        Column("rounds", "count", 2),
        Column("time", "duration", 2),
    ]
    cells = []
    for row in rows:
        values = [shown(value) for value in row["values"].values()] or [record.job]
        spread = [row["spread"], row["lowest"], row["highest"]] if has_spread else []
        numbers = [row["mean"], *spread, row["rounds"], row["seconds"]]
        cells.append(
            Row([*values, row["status"], row["runs"], *numbers], "best" if row["best"] else "")
        )
    title = f"{counted(len(rows), 'setting')}, {counted(record.seeds, 'seed')} each"
    return Table(columns, cells, title)


def table_json(record: SweepRecord) -> str:
    """Return ``table.json``: the metric, the best setting, a row a setting, and a row a run."""
    rows = setting_rows(record)
    best = next((row["values"] for row in rows if row["best"]), None)
    runs = [
        {
            name: getattr(point, name)
            for name in ("name", "values", "seed", "status", "rounds", "score", "seconds", "error")
        }
        for point in record.points
    ]
    content = {
        "job": record.job,
        "metric": record.metric,
        "mode": record.mode,
        "best": best,
        "settings": rows,
        "runs": runs,
    }
    return json.dumps(content, indent=2) + "\n"


def table_csv(record: SweepRecord) -> str:
    """Return ``table.csv``: a line a setting, its values under the dotted names of their keys."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*record.vary, "status", *_NUMBERS, "best"])
    for row in setting_rows(record):
        values = [shown(value) for value in row["values"].values()]
        numbers = ["" if row[name] is None else row[name] for name in _NUMBERS]
        writer.writerow([*values, row["status"], *numbers, int(row["best"])])
    return text.getvalue()
