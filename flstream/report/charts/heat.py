"""Heat map of scores: a cell for each site and model, the darker the higher its value."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure

from flstream.report.charts.style import PAPER, new_chart, styled

_ROW, _EDGES, _LETTER = 26.0, 44.0, 7.0
# Text can be read on all of them, also where they are inverted.
_COLORS = LinearSegmentedColormap.from_list("scores", ["#f2f7fb", "#8cc1e2"])
# Below this a cell has no room for its value, in pixels.
_LEAST_TEXT = 48.0


@styled()
def heat_chart(
    sites: Sequence[str],
    owners: Sequence[str],
    values: Sequence[Sequence[float | None]],
    texts: Sequence[Sequence[str]],
    width: float,
) -> Figure:
    """Draw what each site has found of each model.

    Args:
        sites: Names of the sites that have scored, from the top down.
        owners: Names of the models' owners, from left to right.
        values: For each site, its value of each model; None where there is none.
        texts: The same as text, for cells that have room for it.
        width: Width in pixels.
    """
    room = 0.8 * width / len(owners)
    longest = _LETTER * max(map(len, owners))
    is_slanted = longest > room
    below = longest * 0.65 if is_slanted else 0.0
    made, axes = new_chart(width, _EDGES + _ROW * len(sites) + below)
    scores = np.array(values, float)
    axes.imshow(scores, cmap=_COLORS, aspect="auto", interpolation="none")
    if room >= _LEAST_TEXT:
        for row, column in np.argwhere(np.isfinite(scores)):
            axes.text(column, row, texts[row][column], ha="center", va="center")
    axes.set_xticks(range(len(owners)), owners)
    if is_slanted:
        for label in axes.get_xticklabels():
            label.set(rotation=40, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(sites)), sites)
    # Gaps between the cells.
    axes.set_xticks(np.arange(len(owners)) - 0.5, minor=True)
    axes.set_yticks(np.arange(len(sites)) - 0.5, minor=True)
    axes.tick_params(which="minor", length=0)
    axes.grid(visible=False)
    axes.grid(which="minor", axis="both", color=PAPER, linewidth=2)
    axes.spines["bottom"].set_visible(False)
    return made
