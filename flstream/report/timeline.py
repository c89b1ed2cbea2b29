"""Timeline of a run in simulated time: who trained when, and what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from itertools import islice
from typing import NamedTuple

import numpy as np

from flstream.job.device import NANOSECONDS
from flstream.report.drawing import BLUE, ORANGE, PINK, SKY, VERMILION, Chart, ticks
from flstream.report.run_record import RunRecord
from flstream.report.text import counted, elide
from flstream.runs.simulated_times import OUTCOMES, SiteTimes, TrainingBars
from flstream.text import natural_key, printable

OUTCOME_COLORS = dict(
    zip(OUTCOMES, (BLUE, ORANGE, SKY, PINK, "var(--muted)", VERMILION), strict=True)
)
"""Colours of what became of trainings, as CSS names them."""

# The bars of these are thick; nothing came of the others.
_OF_USE = 2

_WIDTH, _TOP, _BOTTOM, _RIGHT, _LETTER, _NAME = 900.0, 24.0, 26.0, 14.0, 7.4, 16
_MOST_ROWS, _MOST_BARS, _FEW_ROWS, _FEW_BARS = 30, 400, 12, 150
_MOST_MARKS, _MARK_ROOM, _BETWEEN = 120, 44.0, 1.2
# Least lengths of thick and of thin bars: many sites leave before they have begun to train.
_LEAST_THICK, _LEAST_THIN = 1.0, 3.5


class Timeline(NamedTuple):
    """Chart of a timeline, with sentences on what it shows."""

    chart: Chart
    notes: Sequence[str]


class _Bars(NamedTuple):
    """Bars of a row; times are seconds."""

    begins: np.ndarray
    lengths: np.ndarray
    outcomes: np.ndarray
    trainings: int  # of each bar, at most


def timeline(run: RunRecord, *, is_one_of_many: bool = False) -> Timeline | None:
    """Draw the timeline of a run; None on the wall clock, and before a training is over.

    Its size has a bound: of many sites, some have a row, and of many trainings in a row, a bar
    stands for several.
    """
    times = run.history.times
    if times is None or not times.sites or not times.now:
        return None
    rows, bars = (_FEW_ROWS, _FEW_BARS) if is_one_of_many else (_MOST_ROWS, _MOST_BARS)
    sites, notes = _rows(times.sites, rows)
    grouped = {name: _grouped(site.bars, bars) for name, site in sites.items() if site.bars}
    end = times.now / NANOSECONDS
    frame = _TimeFrame([printable(name) for name in grouped], end)
    folds = [time / NANOSECONDS for time in times.folds]
    apart = -(-len(folds) // _MOST_MARKS) or 1
    folds, apart = folds[apart - 1 :: apart], apart * times.folds_apart
    parts = [frame.axis(), *map(frame.mark, folds), _round_labels(run, frame)]
    parts += [
        frame.row(place, _words(name, times.sites[name]), row)
        for place, (name, row) in enumerate(grouped.items())
    ]
    legend = [
        (f"{outcome} {count:,}", OUTCOME_COLORS[outcome])
        for outcome, count in zip(OUTCOMES, times.counts, strict=True)
        if count > 0
    ]
    if apart > 1:
        notes.append(f"Of the folds, one in {apart} has a line.")
    if (most := max(row.trainings for row in grouped.values())) > 1:
        notes.append(
            f"Where a site trained often, a bar stands for up to {most} trainings in a row: it is "
            "as long as all of them together, and has the colour of the first."
        )
    title = f"trainings of {counted(len(grouped), 'site')} in simulated time"
    return Timeline(Chart(title, frame.svg(title, parts), legend), notes)


def _rows(sites: Mapping[str, SiteTimes], most: int) -> tuple[dict[str, SiteTimes], list[str]]:
    """Return the sites that have a row by name, and sentences on those that have none."""
    drawn = {name: site for name, site in sites.items() if site.bars is not None}
    notes = []
    if len(drawn) > most:
        often = sorted(drawn, key=lambda name: (-drawn[name].trainings, natural_key(name)))
        worst = sorted(often, key=lambda name: (-drawn[name].absences, -drawn[name].stale))
        worst = [name for name in worst if drawn[name].absences or drawn[name].stale]
        chosen = dict.fromkeys(worst[: most // 2])
        chosen |= dict.fromkeys(islice((n for n in often if n not in chosen), most - len(chosen)))
        kinds = "those that trained most often"
        if worst:
            kinds += ", and those that were late, away, failed or stale most often"
        notes.append(f"Of {len(sites):,} sites, {most} are drawn: {kinds}.")
        if len(drawn) < len(sites):
            notes.append(f"They are among the first {len(drawn):,} that trained.")
        drawn = {name: drawn[name] for name in chosen}
    return {name: drawn[name] for name in sorted(drawn, key=natural_key)}, notes


def _grouped(bars: TrainingBars, most: int) -> _Bars:
    """Return the bars of a site as arrays; of more than so many, several in a row as one."""
    group = -(-len(bars.begins) // most)
    firsts = np.arange(0, len(bars.begins), group)
    return _Bars(
        np.array(bars.begins[::group]) / NANOSECONDS,
        np.add.reduceat(np.array(bars.lengths), firsts) / NANOSECONDS,
        np.array(bars.outcomes[::group]),
        bars.trainings * group,
    )


def _words(name: str, site: SiteTimes) -> str:
    counts = {"stale": site.stale, "late, away or failed": site.absences}
    parts = [f"{count:,} {words}" for words, count in counts.items() if count]
    return ", ".join([f"{printable(name)}: {counted(site.trainings, 'training')}", *parts])


def _round_labels(run: RunRecord, frame: _TimeFrame) -> str:
    """Return the numbers of rounds above their ends, as many as have room."""
    ends = [(row.number, row.simulated_seconds) for row in run.history.rounds]
    known = [(number, end) for number, end in ends if end is not None]
    room = max(int((_WIDTH - frame.left) / _MARK_ROOM), 1)
    sizes = (size * 10**power for power in range(9) for size in (1, 2, 5))
    step = next(size for size in sizes if len(known) <= size * room)
    parts, last = [f'<text x="{frame.left - 8:.0f}" y="14" class="end">round</text>'], 0.0
    for number, end in known:
        x = frame.x(end)
        half = len(str(number)) * _LETTER / 2
        if number % step == 0 and x - half > last and x + half < _WIDTH:
            parts.append(f'<text x="{x:.1f}" y="14" class="mid">{number}</text>')
            last = x + half + _LETTER
    return "".join(parts)


class _TimeFrame:
    """Places of times and rows in a timeline."""

    def __init__(self, names: Sequence[str], end: float) -> None:
        self._names = [elide(name, _NAME) for name in names]
        self._row = 15.0 if len(names) > 12 else 20.0
        self._end = end
        self._base = _TOP + self._row * len(names)
        self.left = max(len(name) for name in [*self._names, "round"]) * _LETTER + 12

    def x(self, seconds: float) -> float:
        return self.left + seconds / self._end * (_WIDTH - _RIGHT - self.left)

    def axis(self) -> str:
        right = _WIDTH - _RIGHT
        parts = [f'<path class="grid" d="M{self.left:.0f} {self._base:.0f}H{right:.0f}"/>']
        for seconds, text in ticks(0.0, self._end, "seconds", 8):
            x = self.x(seconds)
            if x <= right + 1:
                room = min(x, _WIDTH - len(text) * _LETTER / 2)
                parts.append(
                    f'<text x="{room:.1f}" y="{self._base + 18:.0f}" class="mid">{text}</text>'
                )
        return "".join(parts)

    def mark(self, seconds: float) -> str:
        return f'<path class="fold" d="M{self.x(seconds):.1f} {_TOP - 4:.0f}V{self._base:.0f}"/>'

    def row(self, place: int, words: str, bars: _Bars) -> str:
        """Return a site's name and bars; of each outcome, all bars are one path."""
        middle = _TOP + self._row * (place + 0.5)
        scale = (_WIDTH - _RIGHT - self.left) / self._end
        begins = self.left + bars.begins * scale
        is_thick = bars.outcomes < _OF_USE
        least = np.where(is_thick, _LEAST_THICK, _LEAST_THIN)
        lengths = np.maximum(bars.lengths * scale - _BETWEEN, least)
        parts = [
            f'<text x="{self.left - 8:.0f}" y="{middle + 4:.1f}" class="end">'
            f"{escape(self._names[place])}</text>"
        ]
        for outcome, color in enumerate(OUTCOME_COLORS.values()):
            own = np.flatnonzero(bars.outcomes == outcome)
            if len(own):
                width = self._row * (0.66 if outcome < _OF_USE else 0.33)
                path = "".join(f"M{begins[at]:.1f} {middle:.1f}h{lengths[at]:.1f}" for at in own)
                parts.append(f'<path d="{path}" style="stroke:{color};stroke-width:{width:.1f}"/>')
        return f"<g><title>{escape(words)}</title>{''.join(parts)}</g>"

    def svg(self, title: str, parts: Sequence[str]) -> str:
        height = self._base + _BOTTOM
        return (
            f'<svg class="timeline" role="img" aria-label="{escape(title)}" '
            f'viewBox="0 0 {_WIDTH:.0f} {height:.0f}">{"".join(parts)}</svg>'
        )
