"""The part of a run's page about values that were logged: charts of numbers, a table of text."""

from __future__ import annotations

import math
from collections.abc import Mapping

from markupsafe import Markup

from flstream.report.charts.logged import LoggedLine, logged_chart, spread_of
from flstream.report.charts.style import SERIES, ink, series_color
from flstream.report.charts.svg import to_svg
from flstream.report.html.drawings import NARROW, Drawing
from flstream.report.html.tables import NOTHING, Table, TableRow
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
    drawings = []
    for index, numbers in enumerate(_with_values(logged)[:_MOST_CHARTS]):
        unit = "step" if numbers.has_steps else "round"
        title = elide(printable(numbers.key), 40)
        made = logged_chart(title, unit, _lines(numbers), NARROW)
        drawings.append(Drawing(Markup(to_svg(made, f"logged-{index}", f"{title} over {unit}s"))))
    return drawings


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


def text_table(logged: LoggedRecord) -> Table:
    """Return the table of the last texts, the newest first."""
    rows = [
        TableRow(
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
    return Table(["site", "round", "step", "key", "text"], rows, (3, 4))


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


def _lines(numbers: LoggedNumbers) -> list[LoggedLine]:
    curves = _finite(numbers)
    if len(curves) <= len(SERIES):
        return [
            LoggedLine(
                elide(printable(site), _NAME_WIDTH) or (_WORKFLOW if len(curves) > 1 else ""),
                *each,
                series_color(index),
            )
            for index, (site, each) in enumerate(curves.items())
        ]
    spread = spread_of(list(curves.values()))
    places, lows, means, highs = (each.tolist() for each in spread)
    mean = LoggedLine("mean", places, means, ink("ink"))
    if len(curves) <= _MOST_LINES:
        thin = [LoggedLine(None, *each, ink("violet"), is_thin=True) for each in curves.values()]
        return [*thin, mean]
    return [LoggedLine(None, places, highs, ink("violet"), lows=lows), mean]
