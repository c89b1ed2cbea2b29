"""Chunk sizes that a job file leaves to the machine: chosen once, written down, and kept."""

import json

import pytest
from training_scripts import noisy

from flstream.errors import UsageError
from flstream.job import load_job
from flstream.simulation import chunk_sizes
from flstream.simulation.chunk_sizes import with_chunk_sizes
from flstream.streaming.chunk_choice import CANDIDATES, measured_chunk_size

MIB = 1 << 20
pytestmark = pytest.mark.usefixtures("processes")  # inline, nothing is measured
TENSORS, ARRAYS = "streaming.tensor_download_chunk_size", "streaming.np_download_chunk_size"


def sizes_of(job):
    streaming = job.streaming
    return streaming.tensor_download_chunk_size, streaming.np_download_chunk_size


@pytest.fixture
def unmeasured(monkeypatch):
    """Have a measurement fail, where none is to be made."""

    def fail():
        raise AssertionError("nothing is to be measured here")

    monkeypatch.setattr(chunk_sizes, "measured_chunk_size", fail)


@pytest.mark.nightly
def test_a_run_measures_writes_down_what_it_chose_and_keeps_to_it(jobs, monkeypatch):
    monkeypatch.setattr(chunk_sizes, "measured_chunk_size", measured_chunk_size)
    run = jobs.run(noisy(), "rounds=1")
    written = load_job(run.directory.job_file)
    chosen, _ = sizes_of(written)
    assert chosen in CANDIDATES
    assert sizes_of(written) == (chosen, chosen)
    summary = json.loads(run.directory.summary.read_text())
    assert summary["transfer"]["chunk_size"] == chosen

    # On another machine, or on another day, the measurement may come out otherwise.
    other = next(size for size in CANDIDATES if size != chosen)
    monkeypatch.setattr(chunk_sizes, "measured_chunk_size", lambda: other)
    resumed = jobs.go_on(run, noisy(), "rounds=2")
    assert resumed.summary.transfer.chunk_size == chosen
    assert sizes_of(load_job(run.directory.job_file)) == (chosen, chosen)
    with pytest.raises(UsageError, match=f"{TENSORS} is .* there and .* here"):
        jobs.go_on(run, noisy(), "rounds=2", f"{TENSORS}={2 * chosen}")


def test_what_a_job_states_or_does_not_exchange_is_not_measured(jobs, unmeasured):
    job = jobs.make(noisy(), f"{TENSORS}=48", f"{ARRAYS}=0")
    assert with_chunk_sizes(job) is job
    assert sizes_of(with_chunk_sizes(jobs.make(noisy(), f"{TENSORS}=48"))) == (48, 2 * MIB)


def test_one_that_is_left_open_is_chosen_alone(jobs, monkeypatch):
    monkeypatch.setattr(chunk_sizes, "measured_chunk_size", lambda: 4 * MIB)
    assert sizes_of(with_chunk_sizes(jobs.make(noisy(), f"{ARRAYS}=48"))) == (4 * MIB, 48)


@pytest.mark.parametrize(
    "setting",
    [
        "network.up=10 Mbit",
        "streaming.mode=native",
        "streaming.codecs.up=[zstd]",
        "streaming.codecs.down=[zstd]",
        "engine={type=join,bind=localhost:0,key_file=key}",
    ],
)
def test_where_longer_chunks_gain_nothing_they_are_of_2_mib(jobs, unmeasured, setting):
    assert sizes_of(with_chunk_sizes(jobs.make(noisy(), setting))) == (2 * MIB, 2 * MIB)
