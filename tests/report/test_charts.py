"""Charts: round numbers at their axes, no peak lost, and the same drawing for light and dark."""

import math
import re
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flstream.report.charts.memory import (
    Mark,
    MemoryCurve,
    MemoryView,
    Shade,
    highest_per_column,
    memory_chart,
    merged,
)
from flstream.report.charts.metrics import MetricCurve, metric_chart
from flstream.report.charts.seconds import PHASE_COLORS, seconds_chart
from flstream.report.charts.style import (
    COLORS,
    byte_ticks,
    format_second_tick,
    ink,
    save,
    second_ticks,
    spread,
    styled,
)
from flstream.report.charts.svg import to_svg

MIB = 1 << 20


def texts(svg: str) -> list[str]:
    return re.findall(r"<text [^>]*>([^<]*)</text>", svg)


@given(st.floats(1, 1e16), st.integers(2, 8))
def test_bytes_are_labelled_at_powers_of_two(greatest: float, most: int) -> None:
    ticks = byte_ticks(greatest, most)
    assert ticks[0] == 0
    assert ticks[-1] <= greatest * (1 + 1e-9)
    assert len(ticks) <= most + 1
    if len(ticks) > 1:
        assert math.log2(ticks[1]).is_integer()


@given(st.floats(1e-3, 1e9), st.integers(2, 8))
def test_seconds_are_labelled_at_steps_that_clocks_have(greatest: float, most: int) -> None:
    ticks = second_ticks(greatest, most)
    assert ticks[0] == 0
    assert ticks[-1] <= greatest * (1 + 1e-9)
    assert len(ticks) <= most + 1
    labels = [format_second_tick(tick) for tick in ticks]
    assert len(set(labels)) == len(labels)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"), (0.25, "0.25 s"), (20, "20 s"), (90, "1 min 30 s"), (300, "5 min"),
        (5400, "1 h 30 min"), (86400 * 2, "2 d"),
    ],
)  # fmt: skip
def test_ticks_of_time_name_their_unit(seconds: float, text: str) -> None:
    assert format_second_tick(seconds) == text


@given(st.lists(st.floats(0, 1), max_size=12).map(sorted), st.floats(0.01, 0.07))
def test_labels_are_moved_apart_and_keep_their_order(heights: list[float], spacing: float) -> None:
    placed = spread(heights, spacing)
    assert len(placed) == len(heights)
    for below, above in pairwise(placed):
        assert above - below >= spacing * (1 - 1e-6)
    assert all(-1e-6 <= height <= 1 + 1e-6 for height in placed)


@given(st.lists(st.floats(0, 1e12) | st.just(math.nan), min_size=1), st.integers(1, 50))
def test_condensing_a_curve_keeps_its_peak(values: list[float], columns: int) -> None:
    condensed = highest_per_column(values, columns)
    assert len(condensed) <= columns
    known = [value for value in values if not math.isnan(value)]
    if known:
        assert np.nanmax(condensed) == max(known)
    else:
        assert np.isnan(condensed).all()


@given(st.lists(st.tuples(st.floats(0, 3), st.sampled_from("rgb")), max_size=40), st.floats(0.1, 9))
def test_shades_too_short_to_be_seen_are_merged(
    lengths: list[tuple[float, str]], shortest: float
) -> None:
    shades, now = [], 0.0
    for seconds, color in lengths:
        shades.append(Shade(now, now + seconds, color))
        now += seconds
    found = merged(shades, shortest)
    assert all(shade.end - shade.begin >= shortest * 0.999 for shade in found)
    for before, after in pairwise(found):
        assert before.end <= after.begin * (1 + 1e-9)
        assert before.color != after.color or before.end < after.begin


def view(name: str = "server") -> MemoryView:
    return MemoryView(
        what="memory over idle (RSS)",
        step=0.5,
        seconds=30.0,
        curves=[
            MemoryCurve(name, [1.0 * MIB] * 40 + [math.nan] * 5 + [9.0 * MIB] * 15, ink("ink"))
        ],
        level=Mark(8 * MIB, "model 8 MiB"),
        shades=[Shade(2.0, 9.0, ink("green"))],
    )


def test_memory_has_axes_with_units_and_labels_beside_the_lines() -> None:
    found = texts(to_svg(memory_chart(view(), 740), "memory", "text"))
    for text in ("memory over idle (RSS)", "time since the run began", "server", "model 8 MiB"):
        assert text in found
    assert {"0 B", "4 MiB", "8 MiB"} <= set(found)
    assert {"0 s", "10 s", "20 s"} <= set(found)


def test_a_page_gets_colours_by_name_and_nothing_from_elsewhere() -> None:
    svg = to_svg(memory_chart(view(), 740), "memory", 'a "text"')
    assert not {color.light for color in COLORS.values()} & set(re.findall(r"#[0-9a-f]{6}", svg))
    assert "var(--green)" in svg
    assert "http" not in svg
    assert 'role="img" aria-label="a &quot;text&quot;"' in svg


def test_the_same_chart_is_the_same_text_and_two_charts_share_no_id() -> None:
    one, again, other = (
        to_svg(memory_chart(view(), 740), name, "text") for name in ("one", "one", "other")
    )
    assert one == again
    ids = [set(re.findall(r' id="([^"]*)"', svg)) for svg in (one, other)]
    assert ids[0]
    assert not ids[0] & ids[1]
    used = set(re.findall(r"(?:url\(|href=\")#([^)\"]*)", one))
    assert used == ids[0]


@pytest.mark.parametrize(
    "name",
    ["<script>alert(1)</script>", "a&b", "$x_1$", '#1d232b id="x" d="M 1.23"', "\u6570\u636e"],
)
def test_names_are_drawn_as_they_are(name: str) -> None:
    svg = to_svg(memory_chart(view(name), 740), "memory", "text")
    escaped = name.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    assert escaped in texts(svg)


def test_metrics_have_a_line_a_run_and_a_gap_where_a_value_is_not_finite() -> None:
    curves = [
        MetricCurve("first", [1, 2, 3], [0.5, math.inf, 0.7], ink("blue"), best=3),
        MetricCurve("second", [1], [0.25], ink("vermilion")),
    ]
    found = texts(to_svg(metric_chart("accuracy", curves, 350), "metric", "text"))
    assert {"accuracy", "round", "first 0.7000", "second 0.2500", "1", "2", "3"} <= set(found)


@pytest.mark.parametrize(("count", "bars"), [(1, 1), (40, 40), (1000, 72)])
def test_many_rounds_share_bars(count: int, bars: int) -> None:
    rounds = range(1, count + 1)
    seconds = {phase: [0.5] * count for phase in PHASE_COLORS}
    made = seconds_chart(rounds, seconds, 740)
    [axes] = made.axes
    assert len(axes.patches) == len(PHASE_COLORS)
    for index, patch in enumerate(axes.patches):
        path = patch.get_path()
        assert (path.codes == path.MOVETO).sum() == bars
        # A mean of neighbours is as long as each of them, so nothing is lost or added.
        assert path.vertices[:, 1].max() == pytest.approx(0.5 * (index + 1))
    svg = to_svg(made, "seconds", "text")
    assert "round" in texts(svg)
    assert any(text.startswith("seconds a round") for text in texts(svg))


def test_a_chart_is_a_png_file_too(tmp_path: Path) -> None:
    path = tmp_path / "memory.png"
    save(memory_chart(view(), 400), path, scale=1)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    assert int.from_bytes(data[16:20], "big") == 400


def test_settings_of_the_user_do_not_change_a_chart() -> None:
    import matplotlib

    before = to_svg(memory_chart(view(), 740), "memory", "text")
    with matplotlib.rc_context({"axes.edgecolor": "red", "font.size": 40, "lines.linewidth": 9}):
        assert to_svg(memory_chart(view(), 740), "memory", "text") == before


def test_drawing_needs_no_display() -> None:
    program = (
        "import sys; from flstream.report.charts.style import *; figure(10, 10); "
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_styles_end_with_their_block() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    with styled({"font.size": 99}):
        assert matplotlib.rcParams["font.size"] == 99
    assert dict(matplotlib.rcParams) == before
