"""Charts: round numbers at their axes, no peak lost, nothing cut, and equal ones alike."""

import math
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from drawn import svgs, texts
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.figure import Figure

from flstream.report.charts.curves import Curve, curve_chart
from flstream.report.charts.drawing import drawing
from flstream.report.charts.heat import heat_chart
from flstream.report.charts.memory import MemoryView, Shade, memory_chart, shares_of_parts
from flstream.report.charts.seconds import PHASE_COLORS, seconds_chart
from flstream.report.charts.split import split_chart
from flstream.report.charts.style import (
    BLUE,
    GREEN,
    INK,
    VERMILION,
    byte_axis,
    new_chart,
    save,
    second_axis,
    styled,
)

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


@given(st.floats(1, 1e16))
def test_bytes_are_labelled_at_multiples_of_a_power_of_two(greatest: float) -> None:
    found = ticks(byte_axis, greatest)
    assert found[0] == (0, "0 B")
    assert 2 <= len(found) <= 6
    assert math.log2(found[1][0]).is_integer()
    assert len(dict(map(reversed, found))) == len(found)


@given(st.floats(1e-3, 1e9))
def test_seconds_are_labelled_at_round_numbers_of_one_unit(greatest: float) -> None:
    found = ticks(second_axis, greatest)
    assert 2 <= len(found) <= 7
    assert len({label.split()[1] for _, label in found}) == 1
    assert len(dict(map(reversed, found))) == len(found)


@pytest.mark.parametrize(
    ("greatest", "second"),
    [
        (0.9, "0.2 s"), (37, "10 s"), (110, "50 s"), (300, "1 min"), (5400, "20 min"),
        (9000, "0.5 h"), (86400 * 9, "2 d"),
    ],
)  # fmt: skip
def test_ticks_of_time_name_their_unit(greatest: float, second: str) -> None:
    assert ticks(second_axis, greatest)[1][1] == second


@given(st.lists(st.tuples(st.floats(0, 3), st.floats(0, 3)), min_size=1), st.floats(0.1, 200))
def test_shades_fill_as_much_of_time_as_they_are_long(
    lengths: list[tuple[float, float]], seconds: float
) -> None:
    shades, now = [], 0.0
    for gap, length in lengths:
        shades.append(Shade(now + gap, now + gap + length, GREEN))
        now += gap + length
    shares = shares_of_parts(shades, seconds)
    assert shares.min() >= -1e-6
    assert shares.max() <= 1 + 1e-6
    inside = sum(max(min(each.end, seconds) - each.begin, 0) for each in shades)
    assert shares.mean() * seconds == pytest.approx(inside, abs=1e-6)


def view(name: str = "server") -> MemoryView:
    values = [1.0 * MIB] * 40 + [math.nan] * 5 + [9.0 * MIB] * 15
    return MemoryView(
        what="memory over idle (RSS)",
        seconds=30.0,
        curves=[Curve(name, np.arange(60) * 0.5, values, INK)],
        model=8 * MIB,
        shades=[Shade(2.0, 9.0, GREEN)],
    )


def shown(made: Figure) -> list[str]:
    """Texts of a figure in a page."""
    return texts(drawing("text", lambda width: made, is_half=True).narrow)


def test_memory_has_axes_with_units_and_a_legend() -> None:
    found = shown(memory_chart(view(), 740))
    for text in ("memory over idle (RSS)", "time since the run began", "server", "model 8 MiB"):
        assert text in found
    assert {"0 B", "4 MiB", "8 MiB"} <= set(found)
    assert {"0 s", "10 s", "20 s"} <= set(found)


def test_a_short_peak_among_many_values_is_in_the_drawing() -> None:
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


def test_nothing_in_a_page_comes_from_elsewhere_and_equal_charts_are_equal() -> None:
    one, again = (drawing("text", lambda width: memory_chart(view(), width)) for _ in "12")
    assert one == again
    for svg in svgs(f"{one.narrow} {one.wide}"):
        assert set(re.findall(r'href="([^"]{1,5})', svg)) <= {"#", "data:"}
        assert not re.search(r"@import|url\((?!#)|<script", svg)


@pytest.mark.parametrize(
    "name",
    ["<script>alert(1)</script>", "a&b", "$x_1$", "_site", '#1d232b id="x"', "\u6570\u636e"],
)
def test_names_are_drawn_as_they_are(name: str) -> None:
    made = memory_chart(view(name), 740)
    assert name in shown(made)
    [svg] = svgs(drawing("text", lambda width: made, is_half=True).narrow)
    assert "<script" not in svg


def test_metrics_have_a_line_a_run_and_a_gap_where_a_value_is_not_finite() -> None:
    curves = [
        Curve("first", [1, 2, 3], [0.5, math.inf, 0.7], BLUE, best=3),
        Curve("second", [1], [0.25], VERMILION),
    ]
    found = shown(curve_chart("accuracy", "round", curves, 350))
    assert {"accuracy", "round", "first 0.7000", "second 0.2500", "1", "2", "3"} <= set(found)


def test_the_last_value_of_a_curve_without_a_name_is_beside_its_end() -> None:
    found = shown(curve_chart("loss", "step", [Curve("", [10, 20], [0.5, 0.25], BLUE)], 350))
    assert {"loss", "step", "0.2500"} <= set(found)


@pytest.mark.parametrize(("count", "bars"), [(1, 1), (40, 40), (1000, 72)])
def test_many_rounds_share_bars(count: int, bars: int) -> None:
    rounds = range(1, count + 1)
    seconds = {phase: [0.5] * count for phase in PHASE_COLORS}
    made = seconds_chart(rounds, seconds, 740)
    [axes] = made.axes
    assert len(axes.containers) == len(PHASE_COLORS)
    for index, drawn in enumerate(axes.containers):
        assert len(drawn) == bars
        # A mean of neighbours is as long as each of them, so nothing is lost or added.
        for bar in drawn:
            assert bar.get_y() + bar.get_height() == pytest.approx(0.5 * (index + 1))
    found = shown(made)
    assert "round" in found
    assert any(text.startswith("seconds a round") for text in found)


LONG = "W" * 14
MANY = [f"hospital-no-{number}" for number in range(40)]
WIDEST = {
    "curves": lambda width: curve_chart(
        "W" * 24, "step", [Curve(LONG, [1, 10**7], [1e-9, n], BLUE) for n in range(7)], width
    ),
    "one curve": lambda width: curve_chart("x", "round", [Curve("", [1], [-1e9], BLUE)], width),
    "memory": lambda width: memory_chart(
        MemoryView("memory over idle (RSS)", 86400 * 30, [
            Curve(name, [0, 1], [0, 1023 * MIB], BLUE)
            for name in ("launcher", "fork-server", "model-builder", f"{LONG}, the largest")
        ], model=1023 * MIB), width
    ),
    "seconds": lambda width: seconds_chart(
        range(10**4), {phase: [5e3] * 10**4 for phase in PHASE_COLORS}, width
    ),
    "split": lambda width: split_chart(MANY, MANY, [[1] * 40] * 40, [10**7] * 40, width),
    "heat": lambda width: heat_chart(MANY, MANY, [[0.5] * 40] * 40, [["0.5000"] * 40] * 40, width),
}  # fmt: skip


@pytest.mark.parametrize("width", [350, 740])
@pytest.mark.parametrize("kind", WIDEST)
def test_nothing_is_cut_off(kind: str, width: int) -> None:
    made = WIDEST[kind](width)
    with styled():
        made.draw_without_rendering()
        box = made.get_tightbbox()
    high = made.get_figheight() * 72
    edges = (box.x0 * 72, box.y0 * 72, width - box.x1 * 72, high - box.y1 * 72)
    assert min(edges) >= -1, edges


def test_a_chart_is_a_png_file_too(tmp_path: Path) -> None:
    path = tmp_path / "memory.png"
    save(memory_chart(view(), 400), path)
    data = path.read_bytes()
    assert data.startswith(b"\x89PNG")
    # Twice as wide, with a margin.
    assert int.from_bytes(data[16:20], "big") == pytest.approx(800, abs=60)


def test_settings_of_the_user_do_not_change_a_chart() -> None:
    import matplotlib

    def draw():
        return drawing("text", lambda width: memory_chart(view(), width))

    before = draw()
    with matplotlib.rc_context({"axes.edgecolor": "red", "font.size": 40, "lines.linewidth": 9}):
        assert draw() == before


def test_drawing_needs_no_display() -> None:
    program = (
        "import sys; from flstream.report.charts.style import *; new_chart(10, 10); "
        "print('matplotlib.pyplot' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_styles_end_with_their_block() -> None:
    import matplotlib

    before = dict(matplotlib.rcParams)
    with styled():
        assert matplotlib.rcParams["axes.titlelocation"] == "left"
    assert dict(matplotlib.rcParams) == before
