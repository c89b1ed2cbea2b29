"""Chart of how data is split: a dot for each site and label, as large as there are examples."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter

from flstream.report.charts.style import SMALL_SIZE, add_axes, figure, ink, styled

_ROW = 18.0
_EDGES = 56.0
# Of a row's height; neighbours do not touch.
_LARGEST_DOT = 0.92


def split_chart(
    sites: Sequence[str],
    labels: Sequence[str],
    counts: Sequence[Sequence[int]],
    totals: Sequence[int],
    width: float,
) -> Figure:
    """Draw the number of examples of each site and label.

    Args:
        sites: Names of the sites, from the top down.
        labels: Names of the labels, from left to right.
        counts: For each site, its examples of each label; at least one is above 0.
        totals: For each site, all its examples, also of labels that are not drawn.
        width: Width in pixels.
    """
    sums = [f"{total:,}" for total in totals]
    left = 16 + 6.6 * max(map(len, sites))
    right = 14 + 6.6 * max(map(len, sums))
    with styled():
        made = figure(width, _EDGES + _ROW * len(sites))
        axes = add_axes(made, left=min(left, width * 0.4), right=right, top=12)
        largest = max(map(max, counts))
        step = min(_ROW, (width - left - right) / len(labels)) * _LARGEST_DOT
        dots = [
            (column, row, (step**2) * count / largest)
            for row, each in enumerate(counts)
            for column, count in enumerate(each)
            if count
        ]
        places, rows, areas = zip(*dots, strict=True)
        axes.scatter(places, rows, s=areas, color=ink("blue"), linewidths=0, clip_on=False)
        axes.set_xlim(-0.7, len(labels) - 0.3)
        axes.set_ylim(len(sites) - 0.4, -0.6)
        axes.yaxis.set_major_locator(FixedLocator(range(len(sites))))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _at(sites, value)))
        every = _every(labels, width - left - right)
        axes.xaxis.set_major_locator(FixedLocator(range(0, len(labels), every)))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _at(labels, value)))
        axes.tick_params(labelsize=SMALL_SIZE)
        axes.set_xlabel("label", fontsize=SMALL_SIZE, color=ink("muted"))
        for row, text in enumerate(sums):
            axes.annotate(
                text,
                (1, row),
                xycoords=("axes fraction", "data"),
                xytext=(8, 0),
                textcoords="offset pixels",
                va="center",
                fontsize=SMALL_SIZE,
                color=ink("muted"),
            )
    return made


def _at(names: Sequence[str], value: float) -> str:
    place = round(value)
    return names[place] if 0 <= place < len(names) else ""


def _every(labels: Sequence[str], width: float) -> int:
    """Return of how many labels one is named, so that they do not overlap."""
    room = width / len(labels)
    return max(1, -(-int(8 + 6.6 * max(map(len, labels))) // int(max(room, 1))))
