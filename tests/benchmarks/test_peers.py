import io
import json
import os
import subprocess
import sys
from pathlib import Path

import contestants
import psutil
import pytest
from contestants import EXCHANGE
from record import Result, Run, best, last_error, read_journal
from rich.console import Console
from table import exchange_grid, markdown, print_grid

PEERS = Path(contestants.__file__).parent
MIB = 1 << 20


def run(round_seconds, over_idle, startup=1.0, first=9.0):
    return Run(startup, (first, *round_seconds), 100, 100 + over_idle, 512 * MIB, 0.05)


def result(name, *runs):
    (contestant,) = [each for each in EXCHANGE if each.name == name]
    return Result(contestant, runs)


def write_journal(path, *events):
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def rounds(*times):
    return [{"event": "round", "time": time, "number": i} for i, time in enumerate(times, 1)]


IDLE = {"event": "idle", "time": 12.0, "pid": 7, "rss": 300}
RIGHT = {"event": "result", "time": 20.0, "wrong": ""}


def test_startup_and_rounds_follow_from_the_journal(tmp_path):
    path = write_journal(tmp_path / "journal", IDLE, *rounds(13.0, 17.0, 18.5, 20.5), RIGHT)
    found = read_journal(path, 10.0, {7: 1000, 8: 9000}, 5000, 0.1)
    assert found == Run(3.0, (4.0, 1.5, 2.0), 300, 1000, 5000, 0.1)


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([IDLE, *rounds(1, 2, 3)], "ended without a result"),
        ([], "ended without a result"),
        ([IDLE, *rounds(1, 2, 3), {**RIGHT, "wrong": "w begins with 3.0"}], "w begins with 3.0"),
        ([*rounds(1, 2, 3), RIGHT], "did not say when its rounds began"),
        ([IDLE, *rounds(1, 2), RIGHT], "did not say when its rounds began"),
    ],
)
def test_a_run_that_does_not_say_all_of_it_has_failed(tmp_path, events, why):
    path = write_journal(tmp_path / "journal", *events)
    assert why in read_journal(path, 0.0, {}, 0, 0.0).failure


def test_a_run_without_a_journal_has_failed(tmp_path):
    assert read_journal(tmp_path / "none", 0.0, {}, 0, 0.0).failure


def test_the_first_round_and_failed_runs_are_not_in_the_medians():
    broken = Run(0.0, (), 0, 0, 0, 0.0, "it broke")
    both = result("flstream", run([1.0, 2.0], 10), broken, run([3.0, 6.0], 30))
    assert (both.round, both.server_over_idle, both.failures) == (2.5, 20, ["it broke"])


def test_the_best_of_a_peer_is_over_its_settings():
    results = [
        result("flstream", run([0.1], 1)),
        result("nvflare", run([8.0], 900)),
        result("nvflare-offload", run([9.0], 500)),
        result("nvflare-tensors", Run(0.0, (), 0, 0, 0, 0.0, "it broke")),
    ]
    assert best(results, "nvflare", "round") == 8.0
    assert best(results, "nvflare", "server_over_idle") == 500
    assert best(results, "flower", "round") is None


@pytest.fixture
def grid():
    return exchange_grid(
        "256 MiB exchanged, 2 clients",
        [
            result("flstream", run([0.5], 16 * MIB)),
            result("nvflare-offload", run([5.0], 1600 * MIB)),
            result("flower", Run(0.0, (), 0, 0, 0, 0.0, "MemoryError: too large")),
            result("flower-1cpu", run([4.0], 160 * MIB)),
        ],
    )


def test_the_table_has_ratios_misses_and_failures(grid):
    assert [row[3] for row in grid.rows] == ["", "10", "", "8.0"]
    assert grid.rows[2][1] == "failed"
    assert grid.notes == [
        "Flower, defaults: 1 of 1 runs failed: MemoryError: too large",
        "NVFlare at its best takes 10 times (target 8) the time of a round, and 100 times "
        "(target 20) the server's memory over idle.",
        "Flower at its best takes 8.0 times (target 15, missed) the time of a round, and 10 times "
        "(target 20, missed) the server's memory over idle.",
    ]


def test_the_table_fits_80_columns_and_a_page(grid):
    printed = io.StringIO()
    print_grid(Console(file=printed, width=80), grid)
    assert "…" not in printed.getvalue()
    row = "| Flower, 1 CPU a client | 1.0 s | 4.00 s | 8.0 | 160 MiB | 10 | 512 MiB |"
    assert row in markdown(grid)


def test_the_line_that_names_an_error_is_told(tmp_path):
    log = tmp_path / "log"
    log.write_text("Traceback\n  RuntimeError: no more\nbye\n\n")
    assert last_error(log) == "RuntimeError: no more"
    log.write_text("Killed\n\n")
    assert last_error(log) == "Killed"


RUNS_IT = """
import sys
from pathlib import Path
from tree import TreeSampler, adopt_orphans, run_to_end
adopt_orphans()
folder = Path(sys.argv[2])
with TreeSampler() as sampler:
    print(run_to_end(["bash", "-c", sys.argv[1]], {"PATH": "/usr/bin:/bin"}, folder,
                     folder / "log", float(sys.argv[3])))
print(sampler.peak_pss > 0, sorted(sampler.peak_rss))
"""


def run_tree(script, folder, deadline):
    command = [sys.executable, "-c", RUNS_IT, script, str(folder), str(deadline)]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": str(PEERS)},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    return done.stdout.splitlines()


def test_whatever_a_run_leaves_behind_is_sampled_and_killed(tmp_path):
    script = "setsid sleep 100 & echo $! > pid; sleep 1"
    status, sampled = run_tree(script, tmp_path, 60)
    pid = int((tmp_path / "pid").read_text())
    assert status == "0"
    assert sampled.startswith("True")
    assert str(pid) in sampled
    assert not psutil.pid_exists(pid)


def test_a_run_past_its_deadline_is_killed(tmp_path):
    status, _ = run_tree("echo $$ > pid; exec sleep 100", tmp_path, 2)
    assert status == "None"
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
