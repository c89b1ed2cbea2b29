"""Charts: round numbers at their axes, no peak lost, and the size of few points for many."""

import math
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_directories import started, summary_of, write_run

from flstream.report.drawing import (
    BLUE,
    Curve,
    band_of,
    curve_chart,
)
from flstream.report.run_charts import seconds_chart
from flstream.report.run_record import read_run
from flstream.runs.history import PHASES

NUMBERS = st.floats(-1e12, 1e12) | st.sampled_from([math.nan, math.inf])


def texts(svg: str, kind: str = "[a-z ]+") -> list[str]:
    return re.findall(rf'<text [^>]*class="{kind}"[^>]*>([^<]*)</text>', svg)


def heights(svg: str) -> list[float]:
    (path,) = re.findall(r'<path class="line" d="([^"]*)"', svg)
    return [float(point.split()[1]) for point in re.split("[ML]", path) if point]


@given(st.lists(NUMBERS, min_size=1, max_size=50), st.sampled_from(["metric", "bytes", "seconds"]))
def test_any_values_are_drawn_within_the_chart_with_labels_that_differ(values, unit):
    if unit != "metric":
        values = [abs(value) for value in values]
    places = list(range(len(values)))
    svg = curve_chart("x", [Curve("", places, values, BLUE)], "count", unit).svg
    labels = texts(svg, "end")
    assert 2 <= len(labels) <= 8
    assert len(set(labels)) == len(labels)
    numbers = [float(n) for n in re.findall(r'(?:cy|y)="(-?[\d.]+)"', svg)]
    assert all(0 <= number <= 210 for number in numbers)
    assert "nan" not in svg
    assert "inf" not in svg


def test_the_highest_and_the_lowest_of_very_many_values_are_drawn():
    values = np.sin(np.arange(100_000) / 50)
    values[54_321], values[65_432] = 40.0, -40.0
    curve = Curve("", np.arange(100_000), values, BLUE)
    chart = curve_chart("x", [curve], "count", "metric")
    drawn = heights(chart.svg)
    assert len(chart.svg) < 20_000
    assert (min(drawn), max(drawn)) == (12.0, 186.0)
    assert [text for text, _ in chart.legend] == ["-0.8413"] or len(chart.legend) == 1


def test_what_is_not_finite_leaves_a_gap_and_the_best_is_marked():
    curve = Curve("one", [1, 2, 3, 4], [0.1, math.nan, 0.3, 0.2], BLUE, best=3)
    chart = curve_chart("accuracy", [curve], "count", "metric")
    (path,) = re.findall(r'<path class="line" d="([^"]*)"', chart.svg)
    assert path.count("M") == 2
    assert 'r="5"' in chart.svg
    assert chart.legend == [("one 0.2000", BLUE)]


@given(st.lists(st.lists(st.floats(-1e6, 1e6), min_size=3, max_size=3), min_size=1, max_size=9))
def test_a_band_is_the_mean_and_the_spread_of_its_curves(curves):
    places, means, lows, highs, deviations = band_of([([1, 2, 3], curve) for curve in curves])
    values = np.array(curves)
    assert list(places) == [1, 2, 3]
    assert means == pytest.approx(values.mean(axis=0), abs=1e-6)
    assert list(lows) == list(values.min(axis=0))
    assert list(highs) == list(values.max(axis=0))
    spread = values.std(axis=0, ddof=1) if len(curves) > 1 else np.zeros(3)
    assert deviations == pytest.approx(spread, abs=1e-6)


def test_seconds_of_many_rounds_are_means_and_phases_are_stacked(tmp_path):
    run = read_run(write_run(tmp_path / "run", started(), (), summary_of(10_000)))
    chart = seconds_chart(run)
    assert chart is not None
    assert "round, means of 143" in "".join(texts(chart.svg))
    assert len(chart.svg) < 20_000
    areas = re.findall(r'd="M([^"]*)z" style="fill', chart.svg)
    assert [label for label, _ in chart.legend] == list(PHASES)
    lowest = [max(float(point.split()[1]) for point in area.split("L")) for area in areas]
    assert lowest == sorted(lowest, reverse=True)
