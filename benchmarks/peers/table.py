"""The table of a job for all contestants, and its chart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from contestants import PEERS, Result

from flstream.units import format_bytes

FIGURES = {
    "startup": ("start-up", "{:.1f} s"),
    "round": ("round", "{:.3g} s"),
    "tasks_a_second": ("tasks/s", "{:,.0f}"),
    "server_over_idle": ("server", ""),
    "peak_pss": ("all", ""),
}
"""Heading and format of each figure; bytes have an empty one."""

EXCHANGE_FIGURES = ("startup", "round", "server_over_idle", "peak_pss")
RACE_FIGURES = ("startup", "round", "tasks_a_second", "peak_pss")
COMPARED = ("round", "server_over_idle", "tasks_a_second")
"""Figures beside which the ratio to the first row's stands."""


class Grid(NamedTuple):
    """A table of formatted cells, with notes under it."""

    title: str
    heads: list[str]
    rows: list[list[str]]
    notes: list[str]


def grid(title: str, results: Sequence[Result], figures: Sequence[str]) -> Grid:
    """Format the medians of all contestants; ratios are to the first one's."""
    heads = [""]
    for figure in figures:
        heads += [FIGURES[figure][0], *(["times"] if figure in COMPARED else [])]
    ours = results[0].medians
    rows = []
    for result in results:
        cells = [result.contestant.label]
        for figure in figures if result.good else ():
            value = result.medians[figure]
            cells.append(formatted(figure, value))
            if figure in COMPARED:
                is_first = result is results[0] or not ours
                cells.append("" if is_first else _times(value / ours[figure]))
        if not result.good:
            cells += ["failed", *[""] * (len(heads) - 2)]
        rows.append(cells)
    notes = [
        f"{result.contestant.label}: {len(result.failures)} of {len(result.runs)} runs failed: "
        + result.failures[-1]
        for result in results
        if result.failures
    ]
    return Grid(title, heads, rows, notes)


def formatted(figure: str, value: float) -> str:
    """Format a figure."""
    template = FIGURES[figure][1]
    return template.format(value) if template else format_bytes(round(value))


def _times(ratio: float) -> str:
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.1f}" if ratio >= 1 else f"{ratio:.2f}"


def draw(path: Path, parts: Sequence[tuple[str, Sequence[Result], Sequence[str]]]) -> None:
    """Write a PNG file with bars of figures: for each part its title, results and figures."""
    from matplotlib.figure import Figure

    from flstream.report.matplotlib_style import save, styled

    @styled()
    def chart() -> None:
        heights = [1.3 + 0.36 * len(results) for _, results, _ in parts]
        figure = Figure(figsize=(14.0, sum(heights)))
        figure.suptitle("flstream and its peers, medians", x=0, ha="left", fontsize=14)
        rows = figure.subfigures(len(parts), height_ratios=heights, squeeze=False)[:, 0]
        for row, (title, results, figures) in zip(rows, parts, strict=True):
            row.suptitle(f"\n{title}", x=0, ha="left", fontsize=12, fontweight="bold")
            # Start-up is in the table alone; all parts have as many columns.
            for axes, name in zip(row.subplots(1, 3, sharey=True), figures[1:], strict=True):
                _bars(axes, name, results)
        save(figure, path)

    chart()


def _bars(axes: Any, figure: str, results: Sequence[Result]) -> None:
    from flstream.report.matplotlib_style import INK, series_color

    axes.set_title(FIGURES[figure][0])
    axes.grid(visible=False)
    axes.tick_params(labelbottom=False, labelcolor=INK)
    values = [result.medians.get(figure, 0.0) for result in results]
    peers = list(PEERS)
    colors = [series_color(peers.index(result.contestant.peer)) for result in results]
    bars = axes.barh([result.contestant.label for result in results], values, 0.62, color=colors)
    labels = [formatted(figure, value) if value else "failed" for value in values]
    axes.bar_label(bars, labels, padding=6)
    axes.set_xlim(0, max(values, default=0.0) or 1.0)
    axes.set_ylim(len(results) - 0.5, -0.5)
