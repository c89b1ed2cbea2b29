"""Whole runs over emulated links: the same bits, and in the summary what the links are."""

import json

import pytest
from nightly_cases import first_and_nightly

LINK = "network={ up = 40 Mbit, down = 80 Mbit, latency = 3 ms, jitter = 2 ms, loss = 1% }"
TRACE = "site,seconds,up,latency\nsite-1,0,30 Mbit,5 ms\nsite-1,0.2,0,\nsite-1,0.3,60 Mbit,1 ms\n"
MODEL = "import torch\ndef build():\n    return {'w': torch.zeros(100_000), 'b': torch.ones(3, 5)}"


@pytest.fixture
def plain(jobs, noise):
    """The digest of a run without links."""
    return jobs.run(noise, model=MODEL).summary.model.digest


@pytest.mark.nightly
@first_and_nightly(
    "options",
    [
        [],
        ["clients.parallel=1"],
        ["workflow.type=swarm"],
        ["streaming.mode=push"],
        ["streaming.mode=native"],
        ['train.command="python3 -u"'],
        ["train.exchange_format=pytorch", "streaming.tensor_download_chunk_size=32 KiB"],
    ],
    brief=1,
    ids=["own", "shared", "swarm", "push", "native", "command", "small chunks"],
)
def test_no_bit_depends_on_the_links(jobs, noise, plain, options):
    run = jobs.run(noise, LINK, *options, model=MODEL)
    assert run.summary.status == "finished", run.summary.error
    assert run.summary.failures == []
    assert run.summary.warnings == []
    assert run.summary.model.digest == plain
    link = {"up": 4e7, "down": 8e7, "latency": 0.003, "jitter": 0.002, "loss": 0.01}
    summary = json.loads((run.directory.path / "summary.json").read_text())
    assert summary["network"] == {"site-1": link, "site-2": link}


@pytest.mark.nightly
def test_a_run_goes_over_links_that_change_and_on_over_the_same(jobs, noise, plain):
    (jobs.folder / "links.csv").write_text(TRACE)
    options = ["network.traces=links.csv", "checkpoints.keep=1"]
    run = jobs.run(noise, *options, model=MODEL)
    assert run.summary.model.digest == plain
    assert set(run.summary.network) == {"site-1", "site-2"}
    longer = jobs.go_on(run, noise, *options, "rounds=3", model=MODEL)
    assert longer.summary.status == "finished"
    assert longer.summary.network == run.summary.network


def test_a_run_without_links_says_nothing_of_them(jobs, noise):
    run = jobs.run(noise)
    summary = json.loads((run.directory.path / "summary.json").read_text())
    assert "network" not in summary


def test_models_take_as_long_as_the_links_say(jobs, noise):
    """400 kB at 4 Mbit/s are 0.8 s each way; that they take no longer is not asserted."""
    run = jobs.run(
        noise, "network={ up = 4 Mbit, down = 4 Mbit }", "rounds=1", "clients.count=1", model=MODEL
    )
    [record] = run.summary.rounds
    assert record.download >= 0.8
    assert record.upload_and_fold >= 0.8
