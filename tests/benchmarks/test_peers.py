"""The benchmark beside peers: journals, tables, trees of processes, adapters."""

import json
import os
import subprocess
import sys
from pathlib import Path

import contestants
import numpy as np
import psutil
import pytest
from contestants import ADAPTERS, EXCHANGE, Result, Run, exchange_shapes, read_journal
from table import EXCHANGE_FIGURES, grid

PEERS = Path(contestants.__file__).parent
MIB = 1 << 20
IDLE = {"event": "idle", "time": 12.0, "pid": 7, "rss": 300}
RIGHT = {"event": "result", "time": 20.0, "wrong": "", "accuracy": 0.9}
BROKEN = Run(failure="MemoryError: too large")


def run(round_seconds, over_idle):
    return Run(1.0, (9.0, *round_seconds), 100, 100 + over_idle, 512 * MIB)


def result(name, *runs):
    (contestant,) = [each for each in EXCHANGE if each.name == name]
    return Result(contestant, list(runs))


def rounds(*times):
    return [{"event": "round", "time": time, "number": i} for i, time in enumerate(times, 1)]


@pytest.mark.parametrize(
    ("events", "why"),
    [
        ([IDLE, *rounds(13.0, 17.0, 18.5, 20.5), RIGHT], ""),
        ([IDLE, *rounds(1, 2, 3)], "ended without a result"),
        ([IDLE, *rounds(1, 2, 3), {**RIGHT, "wrong": "w begins with 3.0"}], "w begins with 3.0"),
        ([IDLE, *rounds(1, 2), RIGHT], "did not say when its rounds began"),
        (None, "ended without a result"),
    ],
)
def test_a_run_is_what_its_journal_says_or_has_failed(tmp_path, events, why):
    path = tmp_path / "journal"
    if events is not None:
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
    found = read_journal(path, 10.0, {7: 1000, 8: 9000}, 5000)
    if why:
        assert why in found.failure
    else:
        assert found == Run(3.0, (4.0, 1.5, 2.0), 300, 1000, 5000, 0.9)


def test_the_table_has_ratios_of_medians_without_first_rounds_and_failures():
    results = [
        result("flstream", run([0.25], 8 * MIB), BROKEN, run([0.5, 1.0], 24 * MIB)),
        result("nvflare-offload", run([5.0], 1600 * MIB)),
        result("flower", BROKEN),
        result("flower-1cpu", run([4.0], 160 * MIB)),
    ]
    table = grid("256 MiB exchanged, 2 clients", results, EXCHANGE_FIGURES)
    assert [row[3] for row in table.rows] == ["", "10", "", "8.0"]
    assert table.rows[2][1] == "failed"
    assert "1 of 1 runs failed: MemoryError" in " ".join(table.notes)
    due = ["1.0 s", "4 s", "8.0", "160 MiB", "10", "512 MiB"]
    assert table.rows[3][1:] == due


def test_peers_are_told_the_tensors_of_the_exchange_job():
    shapes = exchange_shapes(4 * MIB)
    assert len(shapes) > 20
    assert sum(shapes.values()) == MIB


@pytest.fixture
def adapters(monkeypatch):
    monkeypatch.syspath_prepend(str(ADAPTERS))
    yield
    for name in ("softmax", "task"):  # which modules of jobs are called, too
        sys.modules.pop(name, None)


@pytest.mark.usefixtures("adapters")
def test_the_race_takes_the_same_steps_in_torch_as_in_numpy():
    import softmax
    import task

    module, (images, labels) = softmax.Softmax(), task.site_digits(3)
    weight, bias = np.zeros((64, 10), np.float32), np.zeros(10, np.float32)
    for _ in range(2):
        softmax.train(module, *softmax.site_tensors(3))
        task.train(images, labels, weight, bias)
    assert np.abs(weight).max() > 0.1
    assert module.weight.detach().numpy() == pytest.approx(weight, abs=1e-5)
    assert module.bias.detach().numpy() == pytest.approx(bias, abs=1e-5)


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


@pytest.mark.parametrize(
    ("script", "deadline", "status"),
    [
        ("setsid sleep 100 & echo $! > pid; sleep 1", 60, "0"),
        ("echo $$ > pid; exec sleep 100", 1, "None"),
    ],
)
def test_what_a_run_leaves_behind_or_takes_too_long_is_killed(tmp_path, script, deadline, status):
    line = [sys.executable, "-c", RUNS_IT, script, str(tmp_path), str(deadline)]
    env = {**os.environ, "PYTHONPATH": str(PEERS)}
    done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=60, check=True)
    ended, sampled = done.stdout.splitlines()
    pid = (tmp_path / "pid").read_text().strip()
    assert ended == status
    assert sampled.startswith("True")
    assert pid in sampled
    assert not psutil.pid_exists(int(pid))
