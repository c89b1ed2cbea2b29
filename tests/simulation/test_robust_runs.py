"""Runs with rules that compare updates: the same bits for any workers and chunks, and resumed."""

import os
import signal

import pytest
from nightly_cases import first_and_nightly
from safetensors.torch import load_file
from training_scripts import LARGE, QUIET, noisy, of_kind, results

from flstream.telemetry.events import ProcessReady, SiteFailed, SitePhaseChanged

CHUNK = "streaming.tensor_download_chunk_size"
EIGHT = ["clients.count=8", "rounds=2", LARGE, QUIET, "aggregation.memory_budget=1MiB"]
# One site is far off, and one sends no numbers at all.
ATTACKED = noisy("""
if site == "site-3":
    params = {name: -100 * tensor for name, tensor in params.items()}
if site == "site-5" and number == 1:
    params["w"][7] = float("nan")
""")
OWN = """
import numpy as np


class Median:
    def weigh(self, gram, weights):
        return np.diagonal(gram) < 4 * np.median(np.diagonal(gram))

    def fold(self, values, weights):
        return np.median(values, axis=0)
"""


@pytest.mark.nightly
@first_and_nightly(
    "method",
    [
        "krum",
        "geometric_median",
        "own.py:Median",
    ],
)
def test_the_bits_depend_on_neither_workers_nor_chunks(jobs, method):
    (jobs.folder / "own.py").write_text(OWN)
    rule = [*EIGHT, f'aggregation.method="{method}"', "clients.min_updates=7"]
    first, *others = [
        jobs.run(ATTACKED, *rule, f"clients.parallel={workers}", f"{CHUNK}={chunk}")
        for workers, chunk in [(8, "2MiB"), (2, "4KiB"), (1, "2MiB")]
    ]
    assert {results(run)[0] for run in others} == {results(first)[0]}
    [failed] = of_kind(first, SiteFailed)
    assert (failed.site, failed.round) == ("site-5", 1)
    assert failed.reason.startswith("the update of site-5 is not finite: tensor 'w' at [7] is nan")
    model = load_file(first.directory.final_model)
    assert all(tensor.abs().max() < 20 for tensor in model.values())


@pytest.mark.nightly
@first_and_nightly("workers", [5, 2])
def test_a_run_that_is_cut_off_in_mid_round_ends_in_the_same_bits(jobs, workers):
    # The server is lost in round 2, while the sites train.
    five = ["clients.count=5", "rounds=3", LARGE, QUIET, "aggregation.method=multi_krum"]
    expected = jobs.run(noisy(), *five)
    killed = []

    def kill(event, sampler):
        match event:
            case SitePhaseChanged(round=2, site="site-4", state="training") if not killed:
                killed.append(pids["server"])
                os.kill(pids["server"], signal.SIGKILL)
            case ProcessReady():
                pids[event.process] = event.pid

    pids = {}
    run = jobs.run(noisy(), *five, f"clients.parallel={workers}", listener=kill)
    assert killed
    assert run.summary.status == "failed"
    resumed = jobs.go_on(run, noisy(), *five, f"clients.parallel={workers}")
    assert results(resumed) == results(expected)


def test_too_few_updates_for_the_rule_end_the_run_with_what_is_needed(jobs):
    script = noisy('if site != "site-1":\n    raise KeyError("oops")')
    krum = ["clients.count=3", "clients.min_updates=1", QUIET, "aggregation.method=krum"]
    run = jobs.run(script, *krum)
    assert run.summary.status == "failed"
    assert "krum needs 3 or more updates where 0 of them may be Byzantine, and there are 1" in (
        run.summary.error
    )
