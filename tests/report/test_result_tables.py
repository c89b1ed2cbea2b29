"""The tables at the end of a run hold its numbers, and fit the width they are given."""

import io
from pathlib import Path

import pytest
from nightly_cases import first_and_nightly

from flstream.report.console import make_console
from flstream.report.result import print_result
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import (
    BestSummary,
    MemorySummary,
    ModelSummary,
    RoundSummary,
    SiteFailure,
    Summary,
    TransferSummary,
)
from flstream.telemetry.events import Transfer
from flstream.telemetry.memory import ProcessMemory

MIB = 1 << 20


def summary_of(
    rounds: int = 3, clients: int = 4, metrics: tuple[str, ...] = ("accuracy",)
) -> Summary:
    """Return the summary of a run that went well."""
    return Summary(
        status="finished",
        job="digits",
        rounds_completed=rounds,
        clients=clients,
        model=ModelSummary(5000 * MIB, 34, "0" * 32),
        metrics=[
            {"round": n, **dict.fromkeys(metrics, n / 1000), "train": {"loss": 1.5}}
            for n in range(1, rounds + 1)
        ],
        best=BestSummary(rounds, metrics[0], rounds / 1000),
        transfer=TransferSummary(
            "pull",
            2 * MIB,
            Transfer(123_456_789_012, 1234, 56789, 3, 12.5),
            Transfer(123_456_789_012, 4321, 98765, 0, 25.0),
        ),
        rounds=[
            RoundSummary(n, 1234.56, 2345.67, 3456.78, 12.34, 0.25) for n in range(1, rounds + 1)
        ],
        memory=MemorySummary(
            ProcessMemory(160 * MIB, 179 * MIB, 25 * MIB),
            {
                f"site-{n}": ProcessMemory(160 * MIB, (500 + n) * MIB, (400 + n) * MIB)
                for n in range(1, clients + 1)
            },
            3 << 30,
        ),
        wall_seconds=83.0,
    )


def printed(summary: Summary, width: int = 80) -> str:
    file = io.StringIO()
    print_result(make_console(file=file, width=width), summary, RunDirectory(Path.cwd() / "runs/x"))
    return file.getvalue()


def test_processes_of_nodes_have_their_names() -> None:
    summary = summary_of(1, 3)
    assert "node" not in printed(summary)
    for number in (1, 2):
        summary.memory.clients[f"site-{number}"].node = f"machine-{number}"
    lines = printed(summary).splitlines()
    (head,) = (line for line in lines if line.startswith("process "))
    assert head.split()[-1] == "node"
    rows = {line.split()[0]: line.split()[-1] for line in lines if line.startswith(("ser", "site"))}
    assert (rows["site-1"], rows["site-2"]) == ("machine-1", "machine-2")
    assert rows["site-3"] == rows["server"] == "MiB"


@first_and_nightly("width", [80, 200])
@first_and_nightly("clients", [1, 64])
@first_and_nightly("rounds", [1, 300], brief=4)
def test_no_line_is_wider_than_the_console(width: int, clients: int, rounds: int) -> None:
    many = tuple(f"a metric with a long name, number {number}" for number in range(30))
    for metrics in (("accuracy", "loss"), many):
        text = printed(summary_of(rounds, clients, metrics), width)
        assert max(map(len, text.splitlines())) <= width


def test_every_number_is_there_in_full() -> None:
    lines = [line.split() for line in printed(summary_of()).splitlines()]
    assert ["3", "*", "0.0030", "1.5000", "1234.56", "2345.67", "3456.78", "12.34", "0.25"] in lines
    assert ["down", "115.0", "GiB", "1,234", "56,789", "3", "12.50", "9.2", "GiB/s"] in lines
    assert ["server", "160", "MiB", "179", "MiB", "19", "MiB", "25", "MiB"] in lines
    assert ["site-4", "160", "MiB", "504", "MiB", "344", "MiB", "404", "MiB"] in lines
    assert ["best", "round", "3,", "accuracy", "0.0030"] in lines
    assert ["final", "model", "accuracy", "0.0030"] in lines
    assert ["status", "finished", "after", "3", "rounds,", "1m", "23s"] in lines
    assert ["model", "runs/x/global.safetensors"] in lines


def test_the_metric_that_decides_comes_first_and_those_left_out_are_counted() -> None:
    summary = summary_of(metrics=tuple(f"metric{number}" for number in range(8)))
    summary.best = BestSummary(2, "metric7", 0.5)
    lines = printed(summary).splitlines()
    title = next(line for line in lines if line.startswith("Rounds"))
    heads = next(line for line in lines if line.startswith("round")).split()
    shown = heads.index("download") - 1
    assert heads[1] == "metric7"
    assert f"{9 - shown} more metrics in summary.json" in title


def test_of_many_rounds_the_first_the_last_and_the_best_are_shown() -> None:
    summary = summary_of(rounds=100)
    summary.best = BestSummary(50, "accuracy", 0.05)
    table = printed(summary).split("\n\n")[0].split("evaluate\n")[1].splitlines()
    first_words = [line.split()[0] for line in table]
    assert len(first_words) <= 20
    assert {"1", "50", "100"} <= set(first_words)
    assert any(line.startswith("50 *") for line in table)
    assert sum(line.startswith("...") for line in table) == 2


def test_of_many_clients_the_largest_and_the_median_are_shown() -> None:
    text = printed(summary_of(clients=40))
    names = [line.split()[0] for line in text.splitlines() if line.startswith("site-")]
    assert names == ["site-40", "site-39", "site-38"]
    (median,) = (line for line in text.splitlines() if line.startswith("median of 40 clients"))
    assert "520 MiB" in median


def test_a_run_that_stopped_points_to_its_last_model() -> None:
    summary = summary_of(rounds=2)
    summary.status = "stopped"
    assert "runs/x/checkpoints/round-0002.safetensors" in printed(summary)


def test_a_run_that_never_began_is_told_without_tables() -> None:
    text = printed(Summary(status="failed", error="no model", wall_seconds=1.0))
    assert text.split() == [
        "status", "failed", "after", "0", "rounds,", "1", "s", "run", "directory", "runs/x",
    ]  # fmt: skip


@pytest.mark.parametrize("width", [80, 200])
def test_of_a_thousand_sites_that_failed_the_worst_are_named_with_their_last_reason(
    width: int,
) -> None:
    summary = summary_of()
    summary.failures = [
        SiteFailure(number, f"site-{site}", f"round {number} went wrong " + "\x1b[31m" * 90)
        for number in range(1, 4)
        for site in range(1000 if number == 1 else 2)
    ]
    summary.benched = [f"site-{site}" for site in range(700)]
    text = printed(summary, width)
    assert max(map(len, text.splitlines())) <= width
    assert "\x1b" not in text
    title = "Failures (1,000 sites, 1,004 times; summary.json has each reason)\n"
    lines = text.split(title)[1].splitlines()
    sites = [line for line in lines if line.startswith("site-")]
    assert len(sites) == 5
    assert sites[0].startswith("site-0: 3 times, last in round 3: round 3 went wrong")
    assert sites[2].startswith("site-2: 1 time, last in round 1: round 1 went wrong")
    assert "... and 995 more sites" in lines
    assert "asked no more  site-0, site-1, site-2, site-3, site-4 and 695 more" in text


def test_at_40_columns_nothing_is_cut() -> None:
    summary = summary_of()
    reason = "the training script raised ValueError: the data are not there"
    summary.failures = [SiteFailure(1, "site-1", reason)]
    narrow, wide = printed(summary, 40), printed(summary, 200)
    assert max(map(len, narrow.splitlines())) <= 40
    assert "\u2026" not in narrow
    assert "..." not in narrow
    assert set(wide.split()) <= set(narrow.split())
