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


def paths(svg: str, kind: str = "line") -> dict[str, str]:
    """Numbers of a chart's paths by the name that is shown on hover."""
    named = re.findall(rf'<path class="{kind}"(?: data-name="([^"]*)")? d="([^"]*)"', svg)
    return {name or str(number): path for number, (name, path) in enumerate(named)}


def points(path: str) -> list[tuple[float, float]]:
    numbers = [point.split() for point in re.split("[MLz]", path) if point]
    return [(float(place), float(value)) for place, value in numbers]


def drawn(values, unit="metric", name="x"):
    """A chart with a line of some values at 1, 2, ..."""
    curve = Curve("", range(1, len(values) + 1), values, BLUE)
    return curve_chart(name, [curve], "count", unit)


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
    heights = [value for _, value in points(paths(chart.svg)["x"])]
    assert len(chart.svg) < 20_000
    assert (min(heights), max(heights)) == (-40.0, 40.0)
    assert [text for text, _ in chart.legend] == ["-0.8413"] or len(chart.legend) == 1


def test_what_is_not_finite_leaves_a_gap_and_the_best_is_marked():
    curve = Curve("one", [1, 2, 3, 4], [0.1, math.nan, 0.3, 0.2], BLUE, best=3)
    chart = curve_chart("accuracy", [curve], "count", "metric")
    assert paths(chart.svg) == {"one": "M1 0.1M3 0.3L4 0.2"}
    assert 'r="5"' in chart.svg
    assert chart.legend == [("one 0.2000", BLUE)]


@pytest.mark.parametrize("values", [(0.931, 0.968), (0.93, 0.93), (1e6, 1e6 + 3), (0.0, 0.0)])
def test_an_axis_of_a_metric_zooms_to_its_values(values):
    svg = drawn(values).svg
    ticks = [float(text) for text in texts(svg, "end")]
    assert 2 <= len(ticks) <= 7
    span = max(values) - min(values) or abs(values[0]) / 10 or 2.0
    assert all(min(values) - span <= tick <= max(values) + span for tick in ticks)
    middles = [float(n) for n in re.findall(r'cy="([\d.]+)"', svg)]
    if values[0] != values[1]:
        assert middles[0] > 150
        assert middles[1] < 40


@pytest.mark.parametrize("unit", ["bytes", "seconds"])
def test_an_axis_of_bytes_or_seconds_begins_at_nothing(unit):
    assert texts(drawn((9e8, 1e9), unit).svg, "end")[0] in ("0 B", "0 d")


@pytest.mark.parametrize(("unit", "size"), [("metric", 1), ("bytes", 1 << 20), ("seconds", 1)])
def test_the_numbers_of_a_path_are_values_that_its_transform_puts_at_the_dots(unit, size):
    values = [0.9306 * size, 1.9444 * size, 1.25 * size]
    svg = drawn(values, unit).svg
    known = points(paths(svg)["x"])
    assert known == [(n, pytest.approx(value / size, 1e-3)) for n, value in enumerate(values, 1)]
    (matrix,) = re.findall(r'transform="matrix\(([^)]*)\)"', svg)
    right, _, _, down, left, top = map(float, matrix.split())
    dots = re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', svg)
    places = [(left + right * place, top + down * value) for place, value in known]
    assert places == [
        (pytest.approx(float(x), abs=0.1), pytest.approx(float(y), abs=0.1)) for x, y in dots
    ]


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
    areas = [points(path) for path in paths(chart.svg, "area").values()]
    assert [label for label, _ in chart.legend] == list(PHASES)
    tops = [max(value for _, value in area) for area in areas]
    assert tops == [2.0, 7.0, 9.5, 10.0, 11.0]
    # On hover, each phase has its own seconds, in the middle of its rounds.
    lines = {name: points(path) for name, path in paths(chart.svg).items()}
    assert {name: line[0] for name, line in lines.items()} == dict(
        zip(PHASES, [(72, 2), (72, 5), (72, 2.5), (72, 0.5), (72, 1)], strict=True)
    )
