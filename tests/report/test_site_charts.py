"""Scores by site in the page of a run: their spread, and the sites at its ends by name."""

import math
import re

import pytest
from msgspec.structs import replace
from run_directories import BEGAN, one_round, started, write_run

from flstream.report.page import run_page
from flstream.report.run_charts import site_charts
from flstream.report.run_record import read_run
from flstream.telemetry.events import Evaluated, Transfer


def scored(tmp_path, columns, metric="accuracy", sites=None, **facts):
    """A run whose rounds ended with these scores of its sites."""
    names = sites or [f"site-{n}" for n in range(1, len(columns[0]) + 1)]
    events = started(sites=names)
    events[1] = replace(events[1], names=names, **facts)
    for number, column in enumerate(columns, 1):
        begun, *between, last, record = one_round(number, BEGAN + 12 * number, names[:2])
        assert isinstance(last, Evaluated)
        known = [value for value in column if value is not None]
        score = {metric: sum(known) / len(known)} if known else {}
        evaluated = Evaluated(
            round=number, metrics=score, seconds=1.0, down=Transfer(), time=last.time,
            version=number, sites={metric: column},
        )  # fmt: skip
        events += [begun, *between, evaluated, record]
    return read_run(write_run(tmp_path / "run", events))


def areas(svg):
    """Lowest and highest value of each band at each round."""
    bands = {}
    for name, path in re.findall(r'class="area" data-name="([^"]*)" d="M([^"]*)z"', svg):
        points = [tuple(map(float, point.split())) for point in path.split("L")]
        half = len(points) // 2
        pairs = zip(points[:half], reversed(points[half:]), strict=True)
        bands[name] = {place: (low, high) for (place, high), (_, low) in pairs}
    return bands


def test_of_two_sites_both_lines_their_mean_and_the_better_one_are_shown(tmp_path):
    (chart,) = site_charts(scored(tmp_path, [[0.5, 0.75], [0.9, 0.8]]))
    assert chart.title == "accuracy by site"
    assert areas(chart.svg) == {"lowest to highest": {1: (0.5, 0.75), 2: (0.8, 0.9)}}
    for name, path in (("site-1", "M1 0.5L2 0.9"), ("mean of 2 sites", "M1 0.625L2 0.85")):
        assert f'data-name="{name}" d="{path}"' in chart.svg
    labels = [label for label, _ in chart.legend]
    assert labels[1:] == ["mean of 2 sites 0.8500", "best: site-1 0.9000", "worst: site-2 0.8000"]


def test_of_a_thousand_sites_the_spread_is_shown_and_the_page_hardly_grows(tmp_path):
    columns = [[(n + 1) / 1000 for n in range(1000)]] * 500
    chart = site_charts(scored(tmp_path, columns))[0]
    assert 'data-name="site-' not in chart.svg
    bands = areas(chart.svg)
    assert bands["lowest to highest"][500] == (0.001, 1)
    assert bands["middle half"][500] == (
        pytest.approx(0.25, abs=1e-3),
        pytest.approx(0.75, abs=1e-3),
    )
    assert [label for label, _ in chart.legend][-2:] == [
        "best: site-1000 1.0000",
        "worst: site-1 0.0010",
    ]
    assert len(chart.svg) < 15_000


def test_a_site_without_a_score_is_left_out_and_equal_ones_are_counted(tmp_path):
    run = scored(tmp_path, [[0.5, None, math.nan, 0.7], [None] * 4, [0.9, 0.9, None, 0.8]])
    (chart,) = site_charts(run)
    assert list(areas(chart.svg)["lowest to highest"]) == [1, 3]
    assert chart.legend[-2][0] == "best: site-1 and 1 more 0.9000"
    assert "site-3" not in chart.svg
    assert 'data-name="site-2" d="M3 0.9"' in chart.svg


def test_ends_of_a_metric_that_no_best_is_chosen_by_are_the_highest_and_the_lowest(tmp_path):
    (chart,) = site_charts(scored(tmp_path, [[0.5, 0.75]], "loss"))
    assert [label for label, _ in chart.legend][-2:] == [
        "highest: site-2 0.7500",
        "lowest: site-1 0.5000",
    ]


def test_the_best_site_of_a_metric_to_minimise_is_the_lowest(tmp_path):
    key = {"key_metric": "loss", "key_metric_mode": "min"}
    (chart,) = site_charts(scored(tmp_path, [[0.5, 0.75]], "loss", **key))
    labels = [label for label, _ in chart.legend]
    assert labels[-2:] == ["best: site-1 0.5000", "worst: site-2 0.7500"]


def test_scores_of_a_single_site_or_of_none_have_no_chart_of_their_spread(tmp_path):
    run = scored(tmp_path, [[0.5, None]])
    assert site_charts(run) == []
    assert "by site" not in run_page([run])


def test_a_site_is_named_as_text_alone(tmp_path):
    run = scored(tmp_path, [[0.5, 0.75]], sites=["site-1", '<b>&"x"'])
    page = run_page([run])
    assert "<b>&" not in page
    assert "best: &lt;b&gt;&amp;&#34;x&#34; 0.7500" in page
