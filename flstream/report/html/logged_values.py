"""The part of a run's page about values that were logged: charts of numbers, a table of text."""

from __future__ import annotations

import math
from collections.abc import Mapping

from flstream.report.charts.curves import Curve, curve_chart, spread_of
from flstream.report.charts.drawing import Drawing, drawing
from flstream.report.charts.style import INK, SERIES, VIOLET
from flstream.report.html.tables import NOTHING, PageRow, PageTable
from flstream.report.record.logged import LoggedCurve, LoggedNumbers, LoggedRecord
from flstream.report.text import counted, elide
from flstream.text import printable

# Of more sites, the mean and the range are drawn.
_MOST_LINES = 16
_MOST_CHARTS = 12
_NAME_WIDTH = 14
_WORKFLOW = "workflow"


def logged_drawings(logged: LoggedRecord) -> list[Drawing]:
    """Draw a chart for each of the first keys that have a finite number."""
    return [_drawing(numbers) for numbers in _with_values(logged)[:_MOST_CHARTS]]


def _drawing(numbers: LoggedNumbers) -> Drawing:
    unit = "step" if numbers.has_steps else "round"
    title = elide(printable(numbers.key), 40)
    curves = _curves(numbers)
    return drawing(
        f"{title} over {unit}s",
        lambda width: curve_chart(title, unit, curves, width),
        is_half=True,
    )


def logged_note(logged: LoggedRecord) -> str:
    """Return the remark below the charts; empty without charts."""
    found = _with_values(logged)
    if not found:
        return ""
    notes = ["What training code logged, over its own steps where it gave them, or else rounds."]
    most = max(len(_finite(each)) for each in found)
    if most > _MOST_LINES:
        notes.append(f"Of more than {_MOST_LINES} sites, the line is the mean, amid their range.")
    left = max(len(found) - _MOST_CHARTS, 0) + logged.more_keys
    if left:
        notes.append(f"{counted(left, 'more key')} without a chart: see events.jsonl.")
    return " ".join(notes)


def text_table(logged: LoggedRecord) -> PageTable:
    """Return the table of the last texts, the newest first."""
    rows = [
        PageRow(
            [
                printable(each.site) or _WORKFLOW,
                str(each.round),
                NOTHING if each.step is None else f"{each.step:,}",
                printable(each.key),
                printable(each.text),
            ]
        )
        for each in logged.texts
    ]
    return PageTable(["site", "round", "step", "key", "text"], rows, (3, 4))


def text_note(logged: LoggedRecord) -> str:
    """Return how much text there is beside the table's; empty if that is all."""
    if not logged.more_texts:
        return ""
    return f"The last {len(logged.texts)}; {logged.more_texts:,} more are in events.jsonl."


def _with_values(logged: LoggedRecord) -> list[LoggedNumbers]:
    return [each for each in logged.numbers if _finite(each)]


def _finite(numbers: LoggedNumbers) -> Mapping[str, LoggedCurve]:
    """Curves that have a finite value."""
    curves = numbers.curves.items()
    return {site: each for site, each in curves if any(map(math.isfinite, each.values))}


def _curves(numbers: LoggedNumbers) -> list[Curve]:
    curves = _finite(numbers)
    if len(curves) <= len(SERIES):
        return [
            Curve(
                elide(printable(site), _NAME_WIDTH) or (_WORKFLOW if len(curves) > 1 else ""),
                *each,
                color,
            )
            for (site, each), color in zip(curves.items(), SERIES, strict=False)
        ]
    places, lows, means, highs = spread_of(list(curves.values()))
    mean = Curve("mean", places, means, INK)
    if len(curves) <= _MOST_LINES:
        return [*(Curve("", *each, VIOLET, width=1.0) for each in curves.values()), mean]
    return [Curve("", places, highs, VIOLET, lows=lows), mean]
