"""Chart of how data is split: a dot for each site and label, as large as there are examples."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from flstream.report.charts.style import BLUE, MUTED, new_chart, styled

_ROW, _EDGES, _LETTER = 18.0, 56.0, 7.0
_SIZES = 64


@styled()
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
    made, axes = new_chart(width, _EDGES + _ROW * len(sites), "label")
    found = np.array(counts)
    rows, columns = np.nonzero(found)
    # The largest dots of neighbours hardly touch.
    largest = min(_ROW, 0.75 * width / len(labels))
    shares = np.ceil(_SIZES * found[rows, columns] / found.max()) / _SIZES
    for share in np.unique(shares):
        # Dots of one size share their outline in the file.
        where = shares == share
        area = 0.8 * largest**2 * share
        axes.scatter(columns[where], rows[where], s=area, color=BLUE, linewidths=0)
    axes.set_xlim(-0.7, len(labels) - 0.3)
    axes.set_ylim(len(sites) - 0.4, -0.6)
    axes.set_yticks(range(len(sites)), sites)
    # So many labels are named that they do not overlap.
    step = 1 + int(_LETTER * (max(map(len, labels)) + 2) * len(labels) / (0.75 * width))
    axes.set_xticks(range(0, len(labels), step), labels[::step])
    right = axes.secondary_yaxis("right")
    right.set_yticks(range(len(sites)), [f"{total:,}" for total in totals])
    right.spines["right"].set_visible(False)
    right.tick_params(labelcolor=MUTED)
    return made
