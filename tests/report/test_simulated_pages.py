"""Pages of runs with simulated time: the timeline, and metrics over time and over bytes."""

import re
from itertools import pairwise
from pathlib import Path

import pytest
from journal_support import evaluated, record, round_finished, run_started
from run_directories import JOB, finished_run, write_run

from flstream.report.page import run_page, write_page
from flstream.report.run_record import read_run
from flstream.report.timeline import timeline
from flstream.runs.history import History
from flstream.runs.journal import Journal
from flstream.runs.results import FoldResult, TaskCost, TrainResult
from flstream.runs.summary import summarize
from flstream.telemetry.events import AnyEvent, ModelRecord, RunFinished, SiteFailed, Transfer

STRAGGLED = "the round went on without it (stragglers.policy = percentage)"
FAILED = "the script raised ValueError: no data"


def simulated_round(number: int, sites: list[str], seconds: float, metrics: dict[str, float]):
    """A round of which the last site is late, and all others take as long."""
    *others, late = sites
    begin, effect = int((number - 1) * seconds * 1e9), 2 * number - 1
    count, end = len(others), begin + int(seconds * 1e9)
    yield SiteFailed(round=number, site=late, reason=STRAGGLED, late=True, time=float(number))
    train = TrainResult(
        others, [1.0] * count, [{}] * count, [b""], [0] * count, TaskCost(),
        {}, {late: STRAGGLED}, [late], base=number - 1, began=begin, ended=end,
        times={site: int((seconds if site != late else 99) * 1e9) for site in sites},
    )  # fmt: skip
    yield record(effect, "train", number, train, time=float(number))
    fold = FoldResult({}, {}, {}, 0.0, 0.0, Transfer(), [(effect, others)])
    model = ModelRecord(number, number, 0, f"digest {number}")
    yield record(effect + 1, "fold", number, fold, model=model, time=float(number))
    moved = {"down": Transfer(1 << 20), "up": Transfer(1 << 20), "time": float(number)}
    yield round_finished(number, simulated_seconds=end / 1e9, weights={}, metrics={}, **moved)
    yield evaluated(number, None, metrics=metrics, down=Transfer(), time=float(number))


def simulated_run(
    folder: Path, count=3, rounds=3, seconds=1800.0, seed=7, score=0.5, metric="accuracy"
) -> Path:
    """The directory of a run on the virtual clock."""
    sites = [f"site-{n}" for n in range(1, count + 1)]
    events: list[AnyEvent] = [run_started(clients=count, clock="virtual", seed=seed, time=0.0)]
    for number in range(1, rounds + 1):
        events += simulated_round(number, sites, seconds, {metric: score + number / 10 / rounds})
    events += [RunFinished(status="finished", time=rounds + 1.0)]
    history = History()
    for event in events:
        history.apply(event)
    return write_run(folder, events, (), summarize(history), f"{JOB}seed = {seed}\n")


def charts(text: str) -> list[str]:
    return re.findall(r'aria-label="([^"]+)"', text)


def test_a_page_on_the_virtual_clock_has_a_timeline_and_metrics_over_time_and_bytes(tmp_path):
    run = read_run(simulated_run(tmp_path / "run"))
    text = run_page([run])
    assert charts(text)[:4] == [
        "accuracy", "accuracy over simulated time", "accuracy over bytes moved",
        "trainings of 3 sites in simulated time",
    ]  # fmt: skip
    values = [pytest.approx(0.5 + n / 30, abs=1e-4) for n in (1, 2, 3)]
    places = {0: (1, 2, 3), 1: (1800, 3600, 5400), 2: (2, 4, 6)}
    lines = re.findall(r'class="line" data-name="accuracy[^"]*" d="M([^"]*)"', text)
    for chart, expected in places.items():
        points = [tuple(map(float, point.split())) for point in lines[chart].split("L")]
        assert points == [*zip(expected, values, strict=True)]
    assert 'data-x-unit="MiB"' in text
    assert "1h 30m 00s simulated" in text
    assert "<title>site-3: 3 trainings, 3 late, away or failed</title>" in text
    assert "folded 6" in text
    assert "late 3" in text
    assert "Late or away, not failed (1 site, 3 times" in text
    assert f"site-3: late 3 times, last in round 3: {STRAGGLED}" in text
    assert "Failures (" not in text


def test_a_page_on_the_wall_clock_has_neither(tmp_path):
    text = run_page([read_run(finished_run(tmp_path / "run"))])
    assert "imulated" not in re.sub(
        r"<style>.*?</style>|<script>.*?</script>", "", text, flags=re.S
    )
    assert "<input" not in text


def test_sites_that_failed_and_sites_that_were_late_are_two_lists(tmp_path):
    path = simulated_run(tmp_path / "run")
    events = [
        *Journal(path / "events.jsonl"),
        SiteFailed(round=3, site="site-1", reason=FAILED, time=9.0),
    ]
    history = History()
    for event in events:
        history.apply(event)
    other = write_run(tmp_path / "other", events, (), summarize(history))
    text = run_page([read_run(other)])
    assert text.index("Failures (1 site, 1 time;") < text.index("Late or away, not failed (1 site")
    assert f"site-1: 1 time, last in round 3: {FAILED}" in text
    assert "2 sites, of which 1 failed at least once" in text


@pytest.mark.parametrize(("count", "rounds"), [(200, 3), (2, 3000)])
def test_a_timeline_has_a_bound_for_its_rows_and_bars_and_says_what_it_leaves_out(
    tmp_path, count, rounds
):
    run = read_run(simulated_run(tmp_path / "run", count, rounds, 60.0))
    shown = timeline(run)
    svg, notes = shown.chart.svg, " ".join(shown.notes)
    assert svg.count("<title>") == min(count, 30)
    assert max(path.count("M") for path in re.findall(r'd="([^"]*)"', svg)) <= 400
    assert svg.count('class="fold"') <= 120
    assert "site-1:" in svg
    assert f"site-{count}:" in svg  # the worst
    assert ("Of 200 sites, 30 are drawn" in notes) == (count == 200)
    assert ("a bar stands for up to 8 trainings" in notes) == (rounds == 3000)
    assert ("Of the folds, one in" in notes) == (rounds == 3000)
    assert len(timeline(run, is_one_of_many=True).chart.svg) < len(svg)
    assert len(svg) < 60_000
    labels = [float(x) for x in re.findall(r'<text x="([\d.]+)" y="14" class="mid">', svg)]
    assert labels
    assert all(after - before > 20 for before, after in pairwise(labels))


def test_seeds_of_different_pace_have_a_mean_over_time_as_far_as_all_of_them_came(tmp_path):
    runs = [
        simulated_run(tmp_path / f"seed-{seed}", seconds=seconds, seed=seed, score=score)
        for seed, seconds, score in ((1, 100.0, 0.5), (2, 200.0, 0.7))
    ]
    path = write_page(runs, tmp_path / "study.html")
    text = path.read_text()
    assert charts(text)[:3] == [
        "accuracy", "accuracy over simulated time", "accuracy over bytes moved",
    ]  # fmt: skip
    over_time = text[text.index("accuracy over simulated time</fig") :]
    line = re.search(r'data-name="mean of 2 runs" d="M([^"]*)"', over_time)[1].split("L")
    assert line == ["200 0.65", "300 0.675"]
    head, row = text[text.index("<table>") :].split("<tr>")[1:3]
    assert "simulated time" in head
    assert "7m 30s" in row
    assert "simulated to best" in head
    lines = [line.split(",") for line in path.with_suffix(".csv").read_text().splitlines()]
    places = lines[0].index("simulated_seconds"), lines[0].index("simulated_seconds_to_best")
    assert [[line[at] for at in places] for line in lines[1:]] == [["300.0"] * 2, ["600.0"] * 2]


def test_runs_of_other_metrics_and_of_the_wall_clock_are_compared_where_they_can_be(tmp_path):
    runs = [
        simulated_run(tmp_path / "one"),
        simulated_run(tmp_path / "other", metric="f1"),
        finished_run(tmp_path / "wall"),
    ]
    text = run_page([read_run(run) for run in runs])
    over_time = text[text.index("accuracy over simulated time</fig") :]
    assert over_time[: over_time.index("</figure>")].count('class="line"') == 1
    assert "f1 over simulated time" in charts(text)
    assert "train loss over simulated time" not in charts(text)


def test_runs_that_share_no_time_are_lines_without_a_mean(tmp_path):
    runs = [
        simulated_run(tmp_path / f"seed-{seed}", rounds=1, seconds=seconds, seed=seed)
        for seed, seconds in ((1, 10.0), (2, 500.0))
    ]
    text = run_page([read_run(run) for run in runs])
    over_time = text[text.index("accuracy over simulated time</fig") :]
    over_time = over_time[: over_time.index("</figure>")]
    assert "mean of" not in over_time
    assert over_time.count('class="line"') == 2
    assert over_time.count("<li>") == 1
