"""The plot of a bench: memory of each case over time, with the model's size as a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flstream.bench.cases import BenchPlan
from flstream.bench.measuring import Result
from flstream.report.charts.style import (
    INK,
    LINE_WIDTH,
    byte_axis,
    new_chart,
    save,
    second_axis,
    series_color,
    styled,
)
from flstream.report.text import counted
from flstream.telemetry.events import SERVER
from flstream.units import format_bytes


@styled()
def draw_memory(plan: BenchPlan, results: Sequence[Result], path: Path) -> None:
    """Draw the memory over idle of the server and its largest client, in a colour for each case.

    Args:
        plan: plan of the bench.
        results: results of all cases.
        path: path of the file to write, which ends in `.png`, `.svg` or `.pdf`.

    Raises:
        OSError: the file cannot be written.
    """
    caption = "RSS over idle in both rounds. Thick: the server; dashed: its largest client."
    figure, axes = new_chart(900, 460, "since the first round began", caption)
    model, clients = format_bytes(plan.model_bytes), counted(plan.clients, "client")
    title = f"A model of {model} to and from {clients}"
    axes.annotate(
        title, (0, 1), (0, 30), "axes fraction", "offset points", fontsize=15, fontweight="bold"
    )
    line = axes.axhline(plan.model_bytes, color=INK, linewidth=1.2, linestyle=":")
    # Peak, line and text of each entry of the legend, which has the order of the peaks.
    entries = [(plan.model_bytes, line, f"the model {model}")]
    end = 0.1
    for index, result in enumerate(results):
        for process, points in result.traces.items():
            seconds, sizes = zip(*points, strict=True)
            style, width = ("-", 1.5) if process == SERVER else ("--", 0.7)
            [line] = axes.plot(
                seconds, sizes, style, color=series_color(index), linewidth=LINE_WIDTH * width
            )
            text = f"{result.case.name} {process} {format_bytes(max(sizes))}"
            entries.append((max(sizes), line, text))
            end = max(end, *seconds)
    entries.sort(key=lambda entry: -entry[0])
    peaks, lines, texts = zip(*entries, strict=True)
    axes.legend(lines, texts, loc="upper left", bbox_to_anchor=(1, 1))
    axes.set_xlim(0, end)
    axes.set_ylim(0, peaks[0] * 1.08)
    byte_axis(axes.yaxis, peaks[0])
    second_axis(axes.xaxis, end)
    save(figure, path, kind=path.suffix.lower())
