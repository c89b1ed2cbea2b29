"""The page that compares several runs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from flstream.report.charts.seconds import PHASE_COLORS
from flstream.report.charts.style import FAINT, series_color
from flstream.report.html.drawings import (
    metric_drawings,
    over_idle_drawing,
    over_idle_view,
    seconds_drawing,
)
from flstream.report.html.page import check_replaceable, render, write_page
from flstream.report.html.run_page import remarks
from flstream.report.html.tables import (
    NOTHING,
    PageRow,
    PageTable,
    duration,
    phase_seconds,
)
from flstream.report.record.run import RunRecord, read_run
from flstream.report.text import format_metric
from flstream.text import printable
from flstream.units import format_bytes


def write_comparison(runs: Sequence[Path], output: Path) -> Path:
    """Write the page that compares several runs.

    Args:
        runs: paths of two or more run directories.
        output: path of the page.

    Returns:
        The path of the page.

    Raises:
        UsageError: a folder is not a run directory, or an existing file is not a page of flstream.
        SimulationError: the page cannot be written.
    """
    check_replaceable(output)
    write_page(output, comparison_page([read_run(run) for run in runs]))
    return output


def comparison_page(runs: Sequence[RunRecord]) -> str:
    """Render the page that compares several runs, as HTML."""
    labels = run_labels([run.path for run in runs])
    most_memory = max(over_idle_view(run).highest for run in runs)
    most_seconds = _most_seconds(runs)
    heads = ["", *labels]
    same, different = _by_setting(runs)
    return render(
        "comparison.html",
        {
            "title": "flstream: " + ", ".join(labels),
            "remarks": [
                f"{label}: {each}"
                for run, label in zip(runs, labels, strict=True)
                for each in [
                    *([printable(run.summary.error)] if run.summary.error else []),
                    *remarks(run),
                ]
            ],
            "runs": [
                {
                    "label": label,
                    "color": series_color(index),
                    "status": run.status,
                    "memory": over_idle_drawing(run, is_half=True, greatest=most_memory),
                    "seconds": seconds_drawing(run, is_half=True, greatest=most_seconds),
                }
                for index, (run, label) in enumerate(zip(runs, labels, strict=True))
            ],
            "phases": list(PHASE_COLORS.items()),
            "glance": PageTable(heads, _glance(runs)),
            "metrics": metric_drawings(runs, labels),
            "totals": PageTable(heads, _totals(runs)),
            "settings": PageTable(heads, different),
            "more_settings": PageTable(["key", "value"], same, (1,)),
            "versions": PageTable(heads, _differing([run.versions for run in runs])),
        },
    )


def run_labels(paths: Sequence[Path]) -> list[str]:
    """Return a unique label for each run: its folder's name, with parent folders where needed."""
    for depth in range(1, max(len(path.parts) for path in paths) + 1):
        labels = [str(Path(*path.parts[-depth:])) for path in paths]
        if len(set(labels)) == len(set(paths)):
            break
    return [printable(label) for label in labels]


def _glance(runs: Sequence[RunRecord]) -> list[PageRow]:
    def size(count: int) -> str:
        return format_bytes(count) if count else NOTHING

    def best(run: RunRecord) -> str:
        found = run.summary.best
        if found is None:
            return NOTHING
        return f"{format_metric(found.value)} {printable(found.metric)} (round {found.round:,})"

    def largest(run: RunRecord) -> int:
        return max((each.over_idle for each in run.summary.memory.clients.values()), default=0)

    lines: Mapping[str, Callable[[RunRecord], str]] = {
        "status": lambda run: run.status,
        "rounds": lambda run: f"{run.summary.rounds_completed:,}",
        "sites": lambda run: f"{run.summary.clients:,}",
        "best": best,
        "time": lambda run: duration(run.seconds),
        "server over idle": lambda run: size(run.summary.memory.server.over_idle),
        "largest client over idle": lambda run: size(largest(run)),
        "all processes (PSS)": lambda run: size(run.summary.memory.peak_total_pss),
        "model": lambda run: size(run.summary.model.bytes),
        "mode": lambda run: run.summary.transfer.mode or NOTHING,
        "down": lambda run: size(run.summary.transfer.down.bytes),
        "down, requests": lambda run: f"{run.summary.transfer.down.requests:,}",
        "up": lambda run: size(run.summary.transfer.up.bytes),
        "up, requests": lambda run: f"{run.summary.transfer.up.requests:,}",
        "model digest": lambda run: run.summary.model.digest[:12] or NOTHING,
    }
    return [PageRow([name, *map(text, runs)]) for name, text in lines.items()]


def _totals(runs: Sequence[RunRecord]) -> list[PageRow]:
    spent = [phase_seconds(run) for run in runs]
    rows = [
        PageRow(
            [phase, *(f"{each[phase]:,.2f} s" for each in spent)],
            color=PHASE_COLORS.get(phase, FAINT),
        )
        for phase in spent[0]
    ]
    return [
        *rows,
        PageRow(["in all", *(f"{sum(each.values()):,.2f} s" for each in spent)], "best"),
    ]


def _by_setting(runs: Sequence[RunRecord]) -> tuple[list[PageRow], list[PageRow]]:
    """Return the settings that are the same in all runs, and those that differ."""
    values = [{setting.key: setting.value for setting in run.settings} for run in runs]
    same: list[PageRow] = []
    different: list[PageRow] = []
    for row in _differing(values):
        (different if row.mark else same).append(row)
    return [PageRow(row.cells[:2]) for row in same], different


def _differing(values: Sequence[Mapping[str, str]]) -> list[PageRow]:
    """Return a row for each key, marked where the values differ."""
    rows = []
    for key in dict.fromkeys(key for each in values for key in each):
        cells = [each.get(key, NOTHING) for each in values]
        rows.append(PageRow([key, *cells], "different" if len(set(cells)) > 1 else ""))
    return rows


def _most_seconds(runs: Sequence[RunRecord]) -> float | None:
    return max((sum(each.phases) for run in runs for each in run.summary.rounds), default=None)
