"""The plot of a bench: memory of each mode over time, with the model's size as a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flstream.bench.compare import Result
from flstream.bench.measurement import Trace
from flstream.bench.plan import MODES, Plan
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
from flstream.units import format_bytes

_WIDTH, _HEIGHT = 900.0, 460.0


@styled()
def draw_memory(plan: Plan, results: Sequence[Result], path: Path, kind: str) -> None:
    """Draw the memory over idle of the server and its largest client, in a colour for each mode.

    Of a mode that was measured at several chunk sizes, the first one is drawn.

    Args:
        plan: plan of the bench.
        results: results of all cases.
        path: path of the file to write.
        kind: format of the file, one of :data:`flstream.report.bench.files.PICTURES`.

    Raises:
        OSError: the file cannot be written.
    """
    shown = _shown(results)
    made, axes = new_chart(_WIDTH, _HEIGHT, "since the first round began", _caption(results, shown))
    sites = counted(plan.clients, "client")
    title = f"A model of {format_bytes(plan.model_bytes)} to and from {sites}"
    axes.annotate(
        title, (0, 1), (0, 46), "axes fraction", "offset points", fontsize=15, fontweight="bold"
    )
    model = axes.axhline(plan.model_bytes, color=INK, linewidth=1.2, linestyle=":")
    # Peak, line and text of each entry of the legend, which has the order of the peaks.
    entries = [(float(plan.model_bytes), model, f"the model {format_bytes(plan.model_bytes)}")]
    ends = [0.1]
    for result, trace in shown:
        color = series_color(MODES.index(result.case.mode))
        for who, points in (("client", trace.client), ("server", trace.server)):
            if points:
                seconds, sizes = zip(*points, strict=True)
                [line] = axes.plot(seconds, sizes, "-" if who == "server" else "--", color=color)
                line.set_linewidth(LINE_WIDTH * (1.5 if who == "server" else 0.7))
                peak = max(sizes)
                entries.append((peak, line, f"{result.case.mode} {who} {format_bytes(peak)}"))
                ends.append(max(seconds))
    entries.sort(key=lambda entry: -entry[0])
    peaks, lines, texts = zip(*entries, strict=True)
    axes.legend(lines, texts, loc="upper left", bbox_to_anchor=(1, 1))
    axes.set_xlim(0, max(ends))
    axes.set_ylim(0, peaks[0] * 1.08)
    byte_axis(axes.yaxis, peaks[0])
    second_axis(axes.xaxis, max(ends))
    save(made, path, kind=kind)


def _shown(results: Sequence[Result]) -> list[tuple[Result, Trace]]:
    """Return the first measured case of each mode, with its memory over time."""
    shown: dict[str, tuple[Result, Trace]] = {}
    for result in results:
        if result.trace is not None:
            shown.setdefault(result.case.mode, (result, result.trace))
    return list(shown.values())


def _caption(results: Sequence[Result], shown: Sequence[tuple[Result, Trace]]) -> str:
    sizes = {format_bytes(result.case.chunk_size) for result, _ in shown if result.case.chunk_size}
    caption = "RSS over idle in two rounds. Thick: the server; dashed: its largest client."
    if sizes:
        caption += f" Chunks of {', '.join(sorted(sizes))}."
    drawn = {result.case.mode for result, _ in shown}
    absent: dict[str, str] = {}
    for result in results:
        if result.case.mode not in drawn:
            need = f"needs about {format_bytes(result.need.memory)}"
            why = need if result.failure is None else "failed"
            absent.setdefault(result.case.mode, f"{result.case.mode} ({why})")
    return caption + (f"\nNot drawn: {', '.join(absent.values())}." if absent else "")
