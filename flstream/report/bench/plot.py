"""The plot of a bench: memory of each mode over time, with the model's size as a line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from flstream.bench.compare import Result
from flstream.bench.measurement import Trace
from flstream.bench.plan import MODES, Plan
from flstream.report.charts.style import (
    LINE_WIDTH,
    SMALL_SIZE,
    Label,
    add_axes,
    byte_axis,
    figure,
    ink,
    label_ends,
    name_axes,
    save,
    second_axis,
    series_color,
    styled,
)
from flstream.report.text import counted
from flstream.units import format_bytes

_WIDTH, _HEIGHT = 900.0, 460.0
_LEFT, _RIGHT, _MARGIN = 78.0, 190.0, 14.0


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
    with styled():
        made = figure(_WIDTH, _HEIGHT)
        axes = add_axes(made, left=_LEFT, right=_RIGHT, top=112, bottom=46)
        ends = [end for _, traced in shown for points in traced for end, _ in points[-1:]]
        peaks = [size for _, traced in shown for points in traced for _, size in points]
        seconds = max(ends, default=1.0)
        top = max([*peaks, plan.model_bytes]) * 1.08
        axes.set_xlim(0, max(seconds, 0.1))
        axes.set_ylim(0, top)
        byte_axis(axes.yaxis, top)
        second_axis(axes.xaxis, seconds)
        name_axes(axes, "since the first round began", "RSS over idle")
        axes.yaxis.set_label_coords((_MARGIN - _LEFT) / (_WIDTH - _LEFT - _RIGHT), 1.04)
        labels = []
        for result, traced in shown:
            color = series_color(MODES.index(result.case.mode))
            for points, is_server in ((traced.client, False), (traced.server, True)):
                if not points:
                    continue
                axes.plot(
                    *zip(*points, strict=True),
                    color=color,
                    linewidth=LINE_WIDTH * (1.5 if is_server else 0.7),
                    linestyle="-" if is_server else (0, (4, 1.5)),
                )
                who = "server" if is_server else "client"
                peak = max(size for _, size in points)
                text = f"{result.case.mode} {who} {format_bytes(peak)}"
                labels.append(Label(peak, text, color))
        axes.axhline(plan.model_bytes, color=ink("ink"), linewidth=1.2, linestyle=(0, (1, 2)))
        labels.append(
            Label(plan.model_bytes, f"the model {format_bytes(plan.model_bytes)}", ink("ink"))
        )
        label_ends(axes, labels)
        sites = counted(plan.clients, "client")
        title = f"A model of {format_bytes(plan.model_bytes)} to and from {sites}"
        made.text(_MARGIN / _WIDTH, 0.94, title, color=ink("ink"), fontsize=15, fontweight="bold")
        made.text(
            _MARGIN / _WIDTH,
            0.91,
            _caption(results, shown),
            color=ink("muted"),
            fontsize=SMALL_SIZE,
            linespacing=1.5,
            verticalalignment="top",
        )
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
    caption = "Two rounds. Thick: the server; dashed: its largest client. Peaks at the right."
    if sizes:
        caption += f" Chunks of {', '.join(sorted(sizes))}."
    drawn = {result.case.mode for result, _ in shown}
    absent: dict[str, str] = {}
    for result in results:
        if result.case.mode not in drawn:
            need = f"needs about {format_bytes(result.need.memory)}"
            why = need if result.failure is None else "failed"
            absent.setdefault(result.case.mode, f"{result.case.mode} ({why})")
    return f"{caption}\n{'Not drawn: ' + ', '.join(absent.values()) + '.' if absent else ''}"
