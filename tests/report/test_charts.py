"""Charts: round numbers at their axes, no peak lost, nothing cut, and equal ones alike."""

import math
import re

import matplotlib
import numpy as np
import pytest
from drawn import svgs, texts
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from flstream.report.charts.curves import Curve, curve_chart, spread_of
from flstream.report.charts.drawing import drawing
from flstream.report.charts.heat import heat_chart
from flstream.report.charts.memory import MemoryView, memory_chart
from flstream.report.charts.seconds import PHASE_COLORS, seconds_chart
from flstream.report.charts.split import split_chart
from flstream.report.charts.style import (
    BLUE,
    INK,
    VERMILION,
    byte_axis,
    new_chart,
    second_axis,
    styled,
)
from flstream.report.html.cross_site import (
    cross_site_drawing,
    cross_site_note,
    metric_of,
    owners_of,
)
from flstream.report.html.split import split_drawing, split_note
from flstream.report.record.json_files import read_cross_site, read_split

MIB = 1 << 20


def ticks(label_axis, greatest: float) -> list[tuple[float, str]]:
    """The ticks that an axis from 0 to some value shows, and their labels."""
    with styled():
        _, axes = new_chart(350, 240)
        axes.set_ylim(0, greatest)
        label_axis(axes.yaxis, greatest)
        places = [each for each in axes.yaxis.get_majorticklocs() if 0 <= each <= greatest]
        labels = axes.yaxis.get_major_formatter().format_ticks(places)
    return list(zip(places, labels, strict=True))


@given(st.floats(1e-3, 1e16))
def test_ticks_are_at_round_numbers_with_a_unit(greatest):
    for axis in (byte_axis, second_axis):
        found = ticks(axis, max(greatest, 1) if axis is byte_axis else min(greatest, 1e9))
        assert 2 <= len(found) <= 7
        assert len(dict(map(reversed, found))) == len(found)
    assert len({label.split()[1] for _, label in found}) == 1  # seconds have one unit


def view(name: str = "server") -> MemoryView:
    values = [1.0 * MIB] * 40 + [math.nan] * 5 + [9.0 * MIB] * 15
    return MemoryView(
        what="memory over idle (RSS)",
        seconds=30.0,
        curves=[Curve(name, np.arange(60) * 0.5, values, INK)],
        model=8 * MIB,
    )


def shown(made: Figure) -> list[str]:
    """Texts of a figure in a page."""
    return texts(drawing("text", lambda width: made, is_half=True).narrow)


@pytest.mark.parametrize("name", ["<script>alert(1)</script> & $x_1$", '#1d2 id="x"', "_\u6570"])
def test_memory_has_axes_with_units_and_a_legend_with_names_as_they_are(name):
    charts = [drawing("text", lambda width: memory_chart(view(name), width)) for _ in "12"]
    assert charts[0] == charts[1]
    found = set(texts(charts[0].narrow))
    assert {"memory over idle (RSS)", "time since the run began", name, "model 8 MiB"} <= found
    assert {"0 B", "4 MiB", "8 MiB", "0 s", "10 s", "20 s"} <= found
    for svg in svgs(f"{charts[0].narrow} {charts[0].wide}"):
        assert set(re.findall(r'href="([^"]{1,5})', svg)) <= {"#", "data:"}
        assert not re.search(r"@import|url\((?!#)|<script", svg)


def test_a_short_peak_among_many_values_is_in_the_drawing():
    noise = np.random.default_rng(7).uniform(3, 4, 1536)
    noise[700] = 40
    curve = Curve("server", np.arange(1536.0), noise * MIB, VERMILION)
    made = memory_chart(MemoryView("memory", 1536.0, [curve]), 350)
    [svg] = svgs(drawing("text", lambda width: made, is_half=True).narrow)
    lines = re.findall(rf'<path d="([^"]*)"[^>]*stroke: {VERMILION}', svg)
    highest = min(float(y) for y in re.findall(r"[ML] \S+ (\S+)", max(lines, key=len)))
    [axes] = made.axes
    expected = 72 * made.get_figheight() - axes.transData.transform((700, 40 * MIB))[1]
    assert highest == pytest.approx(expected, abs=0.5)


def test_metrics_have_a_line_a_run_and_a_gap_where_a_value_is_not_finite():
    curves = [
        Curve("first", [1, 2, 3], [0.5, math.inf, 0.7], BLUE, best=3),
        Curve("second", [1], [0.25], VERMILION),
    ]
    found = shown(curve_chart("accuracy", "round", curves, 350))
    assert {"accuracy", "round", "first 0.7000", "second 0.2500", "1", "2", "3"} <= set(found)
    found = shown(curve_chart("loss", "step", [Curve("", [10, 20], [0.5, 0.25], BLUE)], 350))
    assert {"loss", "step", "0.2500"} <= set(found)
    spread = spread_of([([1, 2], [1.0, 4.0]), ([1, 2], [3.0, math.nan]), ([2], [8.0])])
    assert [list(each) for each in spread] == [[1, 2], [1, 4], [2, 6], [3, 8]]
    spread = spread_of([(range(10_000), range(10_000))])
    assert len(spread.places) <= 401
    assert (spread.lows[0], spread.highs[-1]) == (0, 9_999)


@pytest.mark.parametrize(("count", "bars"), [(1, 1), (1000, 72)])
def test_many_rounds_share_bars(count, bars):
    made = seconds_chart(range(1, count + 1), dict.fromkeys(PHASE_COLORS, [0.5] * count), 740)
    [axes] = made.axes
    assert [len(drawn) for drawn in axes.containers] == [bars] * len(PHASE_COLORS)
    # A mean of neighbours is as long as each of them, so nothing is lost or added.
    for bar in axes.containers[-1]:
        assert bar.get_y() + bar.get_height() == pytest.approx(0.5 * len(PHASE_COLORS))
    assert any(text.startswith("seconds a round") for text in shown(made))


MANY = [f"hospital-no-{number}" for number in range(40)]
LONG = [Curve("W" * 14, [1, 10**7], [1e-9, n], BLUE) for n in range(7)]
WIDEST = [
    lambda width: curve_chart("W" * 24, "step", LONG, width),
    lambda width: memory_chart(MemoryView("memory", 86400 * 30, LONG, model=1023 * MIB), width),
    lambda width: seconds_chart(
        range(10**4), {phase: [5e3] * 10**4 for phase in PHASE_COLORS}, width
    ),
    lambda width: split_chart(MANY, MANY, [[1] * 40] * 40, [10**7] * 40, width),
    lambda width: heat_chart(MANY, MANY, [[0.5] * 40] * 40, [["0.5000"] * 40] * 40, width),
]


@pytest.mark.parametrize("draw", WIDEST)
def test_nothing_is_cut_off(draw):
    made = draw(350)
    with styled():
        made.draw_without_rendering()
        box = made.get_tightbbox()
    high = made.get_figheight() * 72
    edges = (box.x0 * 72, box.y0 * 72, 350 - box.x1 * 72, high - box.y1 * 72)
    assert min(edges) >= -1, edges


def test_settings_of_the_user_and_those_of_charts_do_not_change_each_other():
    before = shown(memory_chart(view(), 350))
    with matplotlib.rc_context({"axes.edgecolor": "red", "font.size": 40, "lines.linewidth": 9}):
        settings = dict(matplotlib.rcParams)
        assert shown(memory_chart(view(), 350)) == before
        assert dict(matplotlib.rcParams) == settings


FINAL = "SRV_FL_global_model.pt"
MATRIX = {
    "site-1": {FINAL: {"accuracy": 0.9, "loss": 0.3}, "site-1": {"accuracy": 0.5, "loss": 1.0}},
    "site-2": {FINAL: {"accuracy": 0.8, "loss": 0.4}},
}


def test_each_score_across_sites_has_a_cell_with_its_value(tmp_path):
    drawn = cross_site_drawing(MATRIX, "accuracy")
    assert drawn is not None
    found = set(texts(drawn.narrow))
    assert {"0.9000", "0.8000", "0.5000", "final model", "site-1", "site-2"} <= found
    assert "0.3000" not in found
    note = cross_site_note(MATRIX, "loss")
    assert note.startswith("loss of each model")
    assert "1 score missing" in note
    assert (owners_of(MATRIX), metric_of(MATRIX, "f1")) == ([FINAL, "site-1"], "accuracy")
    (tmp_path / "other.json").write_text("[1, 2]")
    assert read_cross_site(tmp_path / "none.json") == read_cross_site(tmp_path / "other.json") == {}
    assert cross_site_drawing({}, "accuracy") is None
    assert cross_site_note({"site-1": {}}, "accuracy") == ""


def test_the_split_of_labels_is_drawn_for_the_first_sites_and_damaged_files_passed_over(tmp_path):
    split = {f"s{site}": {"l0": site, "l1": site + 1} for site in range(42)}
    drawn = split_drawing(split)
    assert drawn is not None
    found = set(texts(drawn.narrow))
    assert {"s39", "l0", "l1"} <= found
    assert "s40" not in found
    assert "40 of 42 sites" in split_note(split)
    assert split_drawing({}) is split_drawing({"s": {"a": 0}}) is None
    damaged = ("{", "[1]", '{"a": -1}', '{"a": 1.5}', '{"a": "many"}')
    files = {f"damaged-{number}": text for number, text in enumerate(damaged)}
    for site, text in {**files, "site-10": '{"a": 1}', "site-9": '{"a": 1}'}.items():
        (tmp_path / site).mkdir()
        (tmp_path / site / "split.json").write_text(text)
    assert list(read_split(tmp_path).items()) == [("site-9", {"a": 1}), ("site-10", {"a": 1})]
