"""What sites logged, in the page of a run: charts of numbers, a table of text."""

import math

import pytest
from run_directories import BEGAN, one_round, started, write_run

from flstream.report.page import run_page
from flstream.report.run_charts import logged_charts, spread
from flstream.report.run_record import LoggedValues, read_run
from flstream.report.table import Gap
from flstream.report.views import texts_table
from flstream.telemetry.events import SiteLog


def number(value, key="loss", site="site-1", round_number=1, step=None, text=None):
    return SiteLog(
        time=BEGAN + 5, round=round_number, site=site, key=key, value=value, text=text, step=step
    )


def text(words, round_number=1, step=None):
    return number(None, "note", round_number=round_number, step=step, text=words)


def logged_values(events):
    logged = LoggedValues()
    for event in events:
        logged.add(event)
    return logged


def only(*events):
    logged = logged_values(events)
    ((key, curves),) = logged.curves.items()
    return key in logged.with_steps, curves["site-1"]


def charts(tmp_path, *events):
    return logged_charts(read_run(write_run(tmp_path / "run", [*started(), *events])))


def test_a_number_is_at_its_step_or_a_part_of_its_round():
    has_steps, curve = only(number(1.0, step=10), number(0.5, step=20), number(0.2, round_number=3))
    assert (has_steps, list(curve.places)) == (True, [10, 20, 3])
    has_steps, curve = only(*(number(float(n)) for n in range(4)), number(9.0, round_number=2))
    assert not has_steps
    assert spread(curve.places) == [0.25, 0.5, 0.75, 1.0, 2.0]


def test_any_number_of_values_takes_the_memory_of_a_few_thousand():
    _, curve = only(*(number(float(n), step=n) for n in range(50_000)))
    assert 2048 <= len(curve.places) <= 4096
    assert list(curve.places) == list(curve.values)
    steps = {b - a for a, b in zip(curve.places, curve.places[1:], strict=False)}
    assert steps == {16.0}


def test_what_is_not_finite_leaves_a_gap_and_no_chart_of_its_own(tmp_path):
    events = [number(None), number(1.0), number(None, key="never")]
    assert math.isnan(only(*events[:2])[1].values[0])
    assert [chart.title for chart in charts(tmp_path, *events)] == ["loss"]


@pytest.mark.parametrize("sites", [2, 12, 30])
def test_few_sites_have_a_line_each_and_many_a_mean(tmp_path, sites):
    events = [
        number(n / r, site=f"site-{n}", round_number=r) for r in (1, 2) for n in range(1, sites + 1)
    ]
    (chart,) = charts(tmp_path, *events)
    labels = [label.split()[0] for label, _ in chart.legend]
    assert labels == {2: ["site-1", "site-2"], 12: ["range", "mean"], 30: ["range", "mean"]}[sites]


def test_the_last_texts_come_first_and_long_ones_are_cut():
    logged = logged_values([*(text(f"t{n}", n) for n in range(30)), text("x" * 900, 31, step=4)])
    *rows, gap = texts_table(logged).rows
    assert len(rows) == 20
    assert rows[0].cells == ["site-1", 31, 4, "note", "x" * 497 + "..."]
    assert rows[1].cells[-1] == "t29"
    assert gap == Gap(11)


def test_the_page_has_the_values_that_a_run_logged(tmp_path):
    events = [*started(), number(0.5, key="other"), *one_round(1, BEGAN + 2)]
    run = read_run(write_run(tmp_path / "run", [*events, number(3.0, round_number=2)]))
    curves = {key: list(sites["site-1"].values) for key, sites in run.logged.curves.items()}
    assert curves == {"other": [0.5], "loss": [3.0]}
    assert "Logged values" in run_page([run])
