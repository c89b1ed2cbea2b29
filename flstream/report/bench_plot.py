"""Plot of a bench: memory of each case over time, beside the model's size."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from flstream.bench.cases import BenchPlan
from flstream.bench.measuring import Result
from flstream.report.matplotlib_style import INK, save, series_color, styled
from flstream.report.text import counted
from flstream.telemetry.events import SERVER
from flstream.units import format_bytes


@styled()
def draw_memory(plan: BenchPlan, results: Sequence[Result], path: Path) -> None:
    """Draw the memory over idle of server and largest client, in a colour a case.

    Args:
        plan: Plan of the bench.
        results: Results of all cases.
        path: Path of the file to write, which ends in `.png`, `.svg` or `.pdf`.

    Raises:
        OSError: The file cannot be written.
    """
    figure = Figure(figsize=(12.5, 6.4))
    axes = figure.subplots()
    model, clients = format_bytes(plan.model_bytes), counted(plan.clients, "client")
    figure.suptitle(f"A model of {model} to and from {clients}", x=0, ha="left", weight="bold")
    axes.set_title("RSS over idle in both rounds. Thick: the server; dashed: its largest client.")
    axes.set_xlabel("seconds since the first round began")
    line = axes.axhline(plan.model_bytes, color=INK, linewidth=1.2, linestyle=":")
    # Peak, line and text of each entry of the legend, which has the order of the peaks.
    entries = [(plan.model_bytes, line, f"the model {model}")]
    for index, result in enumerate(results):
        for process, points in result.traces.items():
            seconds, sizes = zip(*points, strict=True)
            style, width = ("-", 2.7) if process == SERVER else ("--", 1.3)
            [line] = axes.plot(seconds, sizes, style, color=series_color(index), linewidth=width)
            text = f"{result.case.name} {process} {format_bytes(max(sizes))}"
            entries.append((max(sizes), line, text))
    entries.sort(key=lambda entry: -entry[0])
    peaks, lines, texts = zip(*entries, strict=True)
    axes.legend(lines, texts, loc="upper left", bbox_to_anchor=(1, 1))
    axes.set_xlim(0)
    axes.set_ylim(0)
    step = 2.0 ** math.ceil(math.log2(max(peaks[0], 5) / 5))
    axes.yaxis.set_major_locator(MultipleLocator(step))
    axes.yaxis.set_major_formatter(lambda value, _: format_bytes(round(value)))
    save(figure, path)
