"""The table and the chart of a job for all contestants."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from contestants import PEERS, Result

from flstream.units import format_bytes

FIGURES = {
    "startup": ("start-up", "{:.1f} s"),
    "round": ("round", "{:.3g} s"),
    "tasks_a_second": ("tasks/s", "{:,.0f}"),
    "accuracy": ("accuracy", "{:.3f}"),
    "server_over_idle": ("server", ""),
    "peak_pss": ("all", ""),
}
"""Heading and format of each figure; bytes have an empty one."""

EXCHANGE_FIGURES = ("startup", "round", "server_over_idle", "peak_pss")
RACE_FIGURES = ("startup", "round", "tasks_a_second", "peak_pss", "accuracy")
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
    """Write a PNG file with bars of each part's three figures after its start-up."""
    from matplotlib.figure import Figure
    from plot_style import save, series_color, styled

    with styled():
        heights = [1.3 + 0.36 * len(results) for _, results, _ in parts]
        figure = Figure(figsize=(14.0, sum(heights)))
        rows = figure.subfigures(len(parts), height_ratios=heights, squeeze=False)[:, 0]
        for row, (title, results, figures) in zip(rows, parts, strict=True):
            row.suptitle(f"{title}, medians\n", x=0, ha="left", fontweight="bold")
            labels = [result.contestant.label for result in results]
            peers = [[*PEERS].index(result.contestant.peer) for result in results]
            for axes, name in zip(row.subplots(1, 3, sharey=True), figures[1:4], strict=True):
                values = [result.medians.get(name, 0.0) for result in results]
                bars = axes.barh(labels, values, 0.62, color=[*map(series_color, peers)])
                texts = [formatted(name, value) if value else "failed" for value in values]
                axes.bar_label(bars, texts, padding=6)
                axes.set(title=FIGURES[name][0], xlim=(0, max(values) or 1.0), xticks=[])
                axes.grid(visible=False)
                axes.set_ylim(len(results) - 0.5, -0.5)
        save(figure, path)
