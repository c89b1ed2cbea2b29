"""What sites logged, in the page of a run: charts of numbers, a table of text."""

import math
from pathlib import Path

import pytest
from drawn import texts
from run_directories import BEGAN, finished_run, one_round, started, write_run

from flstream.report.charts.curves import spread_of
from flstream.report.html.logged_values import logged_drawings, logged_note, text_note, text_table
from flstream.report.html.run_page import run_page
from flstream.report.record.logged import read_logged
from flstream.report.record.run import read_run
from flstream.telemetry.events import RunResumed, SiteLog


def number(value, key="loss", site="site-1", round_number=1, step=None):
    return SiteLog(
        time=BEGAN + 5, round=round_number, site=site, key=key, value=value, step=step
    )  # fmt: skip


def text(words, round_number=1, key="note", site="site-1", step=None):
    return SiteLog(
        time=BEGAN + 5, round=round_number, site=site, key=key, value=None, text=words, step=step
    )  # fmt: skip


def only(*events):
    (found,) = read_logged(events).numbers
    return found


def test_a_number_is_at_its_step_where_it_has_one():
    found = only(number(1.0, step=10), number(0.5, step=20), number(0.25, round_number=3))
    assert found.has_steps
    assert list(found.curves["site-1"].places) == [10, 20, 3]


def test_several_numbers_of_a_round_are_parts_of_it_and_the_last_is_at_its_end():
    events = [number(float(n), round_number=1) for n in range(4)]
    found = only(*events, number(9.0, round_number=2))
    assert not found.has_steps
    assert list(found.curves["site-1"].places) == [0.25, 0.5, 0.75, 1.0, 2.0]


def test_any_number_of_values_takes_the_memory_of_a_few_thousand():
    found = only(*(number(float(n), step=n) for n in range(50_000)))
    curve = found.curves["site-1"]
    assert 2048 <= len(curve.places) <= 4096
    assert list(curve.places) == list(curve.values)
    steps = {b - a for a, b in zip(curve.places, curve.places[1:], strict=False)}
    assert steps == {16.0}


def test_keys_made_of_numbers_do_not_fill_the_page():
    logged = read_logged(number(1.0, key=f"batch-{n}") for n in range(100))
    assert (len(logged.numbers), logged.more_keys) == (64, 36)
    assert len(logged_drawings(logged)) == 12
    assert "88 more keys without a chart" in logged_note(logged)


def test_what_is_not_finite_leaves_a_gap_and_no_chart_of_its_own():
    logged = read_logged([number(None), number(1.0), number(None, key="never")])
    values = logged.numbers[0].curves["site-1"].values
    assert math.isnan(values[0])
    assert len(logged_drawings(logged)) == 1


@pytest.mark.parametrize(("sites", "shown"), [(2, "site-2"), (12, "mean"), (40, "mean")])
def test_few_sites_have_a_line_each_and_many_a_mean(sites, shown):
    events = [
        number(n / r, site=f"site-{n}", round_number=r)
        for r in (1, 2, 3)
        for n in range(1, sites + 1)
    ]
    (drawing,) = logged_drawings(read_logged(events))
    found = " ".join(texts(drawing.narrow))
    assert shown in found
    assert ("mean" in found) == (sites > 7)


def test_the_range_of_many_is_their_lowest_mean_and_highest():
    spread = spread_of([([1, 2], [1.0, 4.0]), ([1, 2], [3.0, math.nan]), ([2], [8.0])])
    assert [list(each) for each in spread] == [[1, 2], [1, 4], [2, 6], [3, 8]]


def test_a_range_over_many_steps_has_as_many_places_as_can_be_told_apart():
    spread = spread_of([(range(10_000), range(10_000))])
    assert len(spread.places) <= 401
    assert (spread.lows[0], spread.highs[-1]) == (0, 9_999)


def test_the_last_texts_come_first_and_long_ones_are_cut():
    logged = read_logged([*(text(f"t{n}", n) for n in range(30)), text("x" * 900, 31, step=4)])
    table = text_table(logged)
    assert len(table.rows) == 20
    assert table.rows[0].cells == ["site-1", "31", "4", "note", "x" * 500 + " ..."]
    assert table.rows[1].cells[-1] == "t29"
    assert text_note(logged) == "The last 20; 11 more are in events.jsonl."


def page(tmp_path: Path, *events) -> str:
    return run_page(read_run(write_run(tmp_path / "run", events)))


def test_the_page_shows_what_was_logged_and_escapes_it(tmp_path):
    found = page(
        tmp_path, *started(), number(0.5, key="<b>loss"), text("<script>\n"),
        *one_round(1, BEGAN + 2),
    )  # fmt: skip
    assert "Logged values" in found
    assert "&lt;script&gt;\\n" in found
    assert "<script>" not in found
    assert "<b>loss" not in found


def test_a_run_without_such_values_has_no_section_of_them(tmp_path):
    assert "Logged values" not in run_page(read_run(finished_run(tmp_path / "run")))


def test_what_a_resume_made_void_is_not_shown(tmp_path):
    events = [*started(), *one_round(1, BEGAN + 2), number(7.0, round_number=2)]
    back = RunResumed(time=BEGAN + 20, round=1)
    run = write_run(tmp_path / "run", [*events, back, number(3.0, round_number=2)])
    ((curve,),) = [each.curves.values() for each in read_run(run).logged.numbers]
    assert list(curve.values) == [3.0]
