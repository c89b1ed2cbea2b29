"""The tables at the end of a run hold its numbers, and fit the width they are given."""

import io
import re
from pathlib import Path

import msgspec
import pytest
from run_directories import summary_of

from flstream.report.console import make_console
from flstream.report.metrics import last_scored
from flstream.report.running import print_result
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import BestSummary, SiteFailure, Summary


def printed(summary: Summary, width: int = 80) -> str:
    file = io.StringIO()
    print_result(make_console(file=file, width=width), summary, RunDirectory(Path.cwd() / "runs/x"))
    return file.getvalue()


@pytest.mark.parametrize("width", [80, 200])
def test_no_line_is_wider_than_the_console_whatever_went_wrong(width):
    many = tuple(f"a metric with a long name, number {number}" for number in range(30))
    summary = summary_of(100, clients=20, metrics=many)
    summary.failures = [
        SiteFailure(number, f"site-{site}", f"error {site % 9} went wrong " + "\x1b[31m" * 90)
        for number in range(1, 4)
        for site in range(1000 if number == 1 else 2)
    ]
    summary.benched = [f"site-{site}" for site in range(700)]
    text = printed(summary, width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    # The most frequent errors are printed once, with a few of their sites, and the rest counted.
    lines = text.split("Failures (1,000 sites, 1,004 times;")[1].splitlines()
    errors = [line for line in lines if line.startswith("site-")]
    assert len(errors) == 5
    assert errors[0].startswith(
        "site-0, site-9, site-18, site-27, site-36, site-45 and 106 more: 114"
    )
    assert "... and 4 more errors" in lines
    assert "and 692 more" in text
    assert "not shown at this width: " in text


def test_every_number_is_there_in_full():
    lines = [line.split() for line in printed(summary_of()).splitlines()]
    for line in (
        "3 * 0.8000 0.3333 2.00 5.00 2.50 0.50 1.00",
        "down 384 MiB 18 192 6 3.00 128 MiB/s",
        "server 100 MiB 116 MiB 16 MiB 30 MiB",
        "site-2 120 MiB 190 MiB 70 MiB 80 MiB",
        "best round 3, accuracy 0.8000",
        "final model accuracy 0.8000",
        "status finished after 3 rounds, 38 s",
        "model runs/x/global.safetensors",
    ):
        assert line.split() in lines


def test_processes_of_nodes_have_their_names():
    summary = summary_of(1, clients=2)
    assert "node" not in printed(summary)
    summary.memory.clients["site-1"].node = "machine-1"
    rows = {line.split()[0]: line.split()[-1] for line in printed(summary).splitlines() if line}
    assert (rows["site-1"], rows["site-2"], rows["server"]) == ("machine-1", "-", "-")


def test_of_many_rounds_the_first_the_last_and_the_best_are_shown_and_the_metric_that_decides():
    summary = summary_of(rounds=100, metrics=tuple(f"metric{number}" for number in range(8)))
    summary.best = BestSummary(50, "metric7", 0.05)
    head, *lines = printed(summary).split("\n\n")[0].splitlines()[2:]
    assert head.split()[1] == "metric7"
    first_words = [line.split()[0] for line in lines]
    assert {"1", "50", "100"} <= set(first_words)
    assert any(line.split()[:2] == ["50", "*"] for line in lines)
    assert "... 44 rows left out" in lines


def test_of_many_clients_the_largest_and_the_median_are_shown():
    lines = printed(summary_of(clients=40)).splitlines()
    names = [line.split()[0] for line in lines if line.startswith("site-")]
    assert names == ["site-40", "site-39", "site-38"]
    assert "... 37 rows left out" in lines
    (median,) = (line for line in lines if line.startswith("median of 40"))
    assert "208 MiB" in median


def test_a_run_that_stopped_points_to_its_last_model_and_one_that_never_began_to_none():
    summary = summary_of(rounds=2)
    summary.status = "stopped"
    assert "runs/x/checkpoints/round-0002.safetensors" in printed(summary)
    assert "flstream simulate runs/x --run-dir runs/x --resume" in printed(summary)
    text = printed(Summary(status="failed", error="no model", wall_seconds=1.0))
    assert " ".join(text.split()) == "status failed after 0 rounds, 1 s run directory runs/x"


def test_at_40_columns_nothing_is_cut():
    summary = summary_of()
    summary.failures = [SiteFailure(1, "site-1", "the script raised ValueError: no data there")]
    narrow, wide = printed(summary, 40), printed(summary, 200)
    assert max(map(len, narrow.splitlines())) <= 40
    # Columns that are left out are named.
    shown = narrow.replace(",", "").split()
    lost = {word for word in wide.split() if word.isalpha() and word not in shown}
    assert all(any("..." in cell and cell[:3] == word[:3] for cell in shown) for word in lost)
    assert "ValueError:" in narrow


def test_thousands_of_metrics_are_a_table_at_once_and_a_few_are_named():
    summary = summary_of(rounds=2)
    summary.metrics = [
        {**row, **{f"metric{number}": 0.5 for number in range(20_000)}} for row in summary.metrics
    ]
    lines = printed(summary).splitlines()
    assert max(map(len, lines)) <= 80
    assert re.search(r"not shown at this width: .* and [\d,]+ more", " ".join(lines))


def test_the_peak_of_a_limited_run_s_group_is_there_with_its_limit():
    summary = summary_of()
    summary.memory.group_peak = 300 << 20
    summary.memory.group_peak_anonymous = 200 << 20
    summary.settings = {"memory_limit": "1 GiB"}
    text = printed(summary)
    assert "all, with cached files" in text
    assert "all, without cached files" in text
    assert "Their group, without cached files: at most 200 MiB, of 1 GiB (memory_limit)." in text


def test_the_last_scored_model_is_found():
    rows = [
        {"round": 1, "loss": 0.1, "accuracy": 0.9},
        {"round": 2, "loss": 0.2, "accuracy": None},
        {"round": 3, "train": {"loss": 0.3}},
    ]
    scored = last_scored(Summary(metrics=rows, best=BestSummary(1, "accuracy", 0.9)))
    # That the last one had no score is told, rather than an earlier one's.
    assert scored is not None
    assert (scored[0], [*scored[1].items()]) == (2, [("accuracy", None), ("loss", 0.2)])
    assert last_scored(Summary(metrics=rows[2:])) is None


def test_late_sites_are_told_from_failures_and_simulated_time_stands_beside_the_other():
    summary = summary_of()
    reasons = ("the round went on without it (key)", "it dropped out (devices.phone.dropout)")
    summary.failures = [
        SiteFailure(1, "site-1", "no data"),
        *(SiteFailure(n, "site-2", reasons[0], late=True) for n in (1, 2, 3)),
        SiteFailure(3, "site-1", reasons[1], late=True),
    ]
    summary.simulated_seconds = 5400.0
    summary.rounds = [
        msgspec.structs.replace(row, simulated_seconds=1800.0 * row.round) for row in summary.rounds
    ]
    text = printed(summary, 200)
    for line in (
        "Failures (1 site, 1 time; summary.json has each reason)",
        "site-1: 1 time, last in round 1: no data",
        "Late or away, not failed (2 sites, 4 times; summary.json has each reason)",
        f"site-2: late 3 times, last in round 3: {reasons[0]}",
        f"site-1: away 1 time, last in round 3: {reasons[1]}",
    ):
        assert line in text.splitlines()
    assert "finished after 3 rounds, 38 s, 1h 30m 00s simulated" in text
    assert text.splitlines()[2].split()[:4] == ["round", "accuracy", "train", "loss"]
    assert text.splitlines()[4].split()[3:6] == ["1h", "00m", "00s"]
    assert "simulated" not in printed(summary_of(), 200)
