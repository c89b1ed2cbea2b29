"""The result of a run in a notebook: figures, rounds, and charts of metrics and memory."""

from __future__ import annotations

from pathlib import Path

from flstream.report.html.drawings import metric_drawings, over_idle_drawing
from flstream.report.html.page import render
from flstream.report.html.run_page import facts, headline, remarks
from flstream.report.html.tables import rounds_table
from flstream.report.record.run import read_run
from flstream.text import printable


def run_cell(path: Path) -> str:
    """Render the result of a run for a notebook, as HTML.

    Args:
        path: path of the run directory.

    Raises:
        UsageError: the folder is not a run directory, or cannot be read.
    """
    run = read_run(path)
    return render(
        "cell.html",
        {
            "name": printable(run.summary.job) or run.path.name,
            "status": run.status,
            "headline": headline(run),
            "error": printable(run.summary.error or ""),
            "remarks": remarks(run),
            "facts": facts(run),
            "rounds": rounds_table(run),
            "metrics": metric_drawings([run], [""]),
            "memory": over_idle_drawing(run),
            "where": printable(str(run.path)),
        },
    )
