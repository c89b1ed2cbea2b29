"""What sites logged, in the page of a run: charts of numbers, a table of text."""

import math

import pytest
from drawn import texts
from run_directories import BEGAN, one_round, started, write_run

from flstream.report.html.logged_values import logged_drawings, text_note, text_table
from flstream.report.html.run_page import run_page
from flstream.report.record.logged import LoggedRecord, LoggedValues
from flstream.report.record.run import read_run
from flstream.telemetry.events import RunResumed, SiteLog


def read_logged(events) -> LoggedRecord:
    values = LoggedValues()
    for event in events:
        values.add(event)
    return values.record


def number(value, key="loss", site="site-1", round_number=1, step=None, text=None):
    return SiteLog(
        time=BEGAN + 5, round=round_number, site=site, key=key, value=value, text=text, step=step
    )


def text(words, round_number=1, step=None):
    return number(None, "note", round_number=round_number, step=step, text=words)


def only(*events):
    (found,) = read_logged(events).numbers
    return found


def test_a_number_is_at_its_step_or_a_part_of_its_round():
    found = only(number(1.0, step=10), number(0.5, step=20), number(0.25, round_number=3))
    assert (found.has_steps, list(found.curves["site-1"].places)) == (True, [10, 20, 3])
    found = only(*(number(float(n)) for n in range(4)), number(9.0, round_number=2))
    assert not found.has_steps
    assert list(found.curves["site-1"].places) == [0.25, 0.5, 0.75, 1.0, 2.0]


def test_any_number_of_values_takes_the_memory_of_a_few_thousand():
    found = only(*(number(float(n), step=n) for n in range(50_000)))
    curve = found.curves["site-1"]
    assert 2048 <= len(curve.places) <= 4096
    assert list(curve.places) == list(curve.values)
    steps = {b - a for a, b in zip(curve.places, curve.places[1:], strict=False)}
    assert steps == {16.0}


def test_what_is_not_finite_leaves_a_gap_and_no_chart_of_its_own():
    logged = read_logged([number(None), number(1.0), number(None, key="never")])
    values = logged.numbers[0].curves["site-1"].values
    assert math.isnan(values[0])
    assert len(logged_drawings(logged)) == 1


@pytest.mark.parametrize("sites", [2, 12])
def test_few_sites_have_a_line_each_and_many_a_mean(sites):
    events = [
        number(n / r, site=f"site-{n}", round_number=r) for r in (1, 2) for n in range(1, sites + 1)
    ]
    (drawing,) = logged_drawings(read_logged(events))
    found = " ".join(texts(drawing.narrow))
    assert ("mean" in found, "site-2" in found) == ((True, False) if sites > 7 else (False, True))


def test_the_last_texts_come_first_and_long_ones_are_cut():
    logged = read_logged([*(text(f"t{n}", n) for n in range(30)), text("x" * 900, 31, step=4)])
    table = text_table(logged)
    assert len(table.rows) == 20
    assert table.rows[0].cells == ["site-1", "31", "4", "note", "x" * 500 + " ..."]
    assert table.rows[1].cells[-1] == "t29"
    assert text_note(logged) == "The last 20; 11 more are in events.jsonl."


def test_the_page_leaves_out_what_a_resume_made_void(tmp_path):
    events = [*started(), number(0.5, key="other"), *one_round(1, BEGAN + 2)]
    void, back = number(7.0, round_number=2), RunResumed(time=BEGAN + 20, round=1, effect=1)
    run = read_run(write_run(tmp_path / "run", [*events, void, back, number(3.0, round_number=2)]))
    curves = {each.key: list(each.curves["site-1"].values) for each in run.logged.numbers}
    assert curves == {"other": [0.5], "loss": [3.0]}
    assert "Logged values" in run_page(run)
