"""Heat map of scores: a cell for each site and model, the darker the higher its value."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.ticker import FixedLocator, FuncFormatter

from flstream.report.charts.style import SMALL_SIZE, add_axes, figure, ink, styled

_ROW, _LETTER = 26.0, 6.6
_TOP, _BOTTOM = 12.0, 12.0
_GAP = 0.04
# The lowest and the highest value, as shares of the full colour.
_PALEST, _DARKEST = 0.06, 0.9
# From here on, text is lighter than its cell.
_LIGHT_TEXT = 0.68
# Below this a cell has no room for its value.
_LEAST_TEXT = 36.0


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
    left = min(16 + _LETTER * max(map(len, sites)), width * 0.3)
    room = (width - left - 8) / len(owners)
    slanted = _LETTER * max(map(len, owners)) > room - 6
    longest = _LETTER * max(map(len, owners))
    below = min(longest * 0.75 + 14, 130) if slanted else 22
    found = [value for row in values for value in row if value is not None]
    low, high = min(found, default=0.0), max(found, default=1.0)
    with styled():
        made = figure(width, _TOP + _ROW * len(sites) + below + _BOTTOM)
        axes = add_axes(made, left=left, right=8, top=_TOP, bottom=below + _BOTTOM)
        for row, each in enumerate(values):
            for column, value in enumerate(each):
                if value is None:
                    continue
                share = (value - low) / (high - low) if high > low else 1.0
                shade = _PALEST + share * (_DARKEST - _PALEST)
                place = (column - 0.5 + _GAP / 2, row - 0.5 + _GAP)
                cell = Rectangle(
                    place, 1 - _GAP, 1 - 2 * _GAP, color=ink("blue"), alpha=shade, linewidth=0
                )
                axes.add_patch(cell)
                if room >= _LEAST_TEXT:
                    color = ink("paper" if shade > _LIGHT_TEXT else "ink")
                    axes.text(
                        column, row, texts[row][column],
                        ha="center", va="center", fontsize=SMALL_SIZE, color=color,
                    )  # fmt: skip
        axes.set_xlim(-0.5, len(owners) - 0.5)
        axes.set_ylim(len(sites) - 0.5, -0.5)
        axes.grid(visible=False)
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.yaxis.set_major_locator(FixedLocator(range(len(sites))))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: _at(sites, value)))
        axes.xaxis.set_major_locator(FixedLocator(range(len(owners))))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _at(owners, value)))
        axes.tick_params(labelsize=SMALL_SIZE, length=0)
        if slanted:
            for label in axes.get_xticklabels():
                label.set(rotation=40, ha="right", rotation_mode="anchor")
    return made


def _at(names: Sequence[str], value: float) -> str:
    place = round(value)
    return names[place] if 0 <= place < len(names) else ""
