"""Chunk sizes that a job file leaves to the machine: chosen once, written down, and kept."""

import json
import re

import pytest
from training_scripts import noisy, results

from flstream.errors import UsageError
from flstream.job import load_job
from flstream.simulation import chunk_sizes
from flstream.simulation.chunk_sizes import with_chunk_sizes
from flstream.streaming.chunk_choice import CANDIDATES, measured_chunk_size

MIB = 1 << 20
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


@pytest.mark.nightly
def test_a_resumed_run_is_another_one_with_another_size_than_it_chose(jobs):
    run = jobs.run(noisy(), "rounds=1")
    chosen, _ = sizes_of(load_job(run.directory.job_file))
    with pytest.raises(UsageError, match=f"{TENSORS} is .* there and .* here"):
        jobs.go_on(run, noisy(), "rounds=2", f"{TENSORS}={2 * chosen}")


def test_a_model_has_the_same_bits_in_every_size_that_may_be_chosen(jobs, monkeypatch):
    runs = []
    for size in CANDIDATES:
        monkeypatch.setattr(chunk_sizes, "measured_chunk_size", lambda size=size: size)
        run = jobs.run(noisy(), "rounds=2")
        assert run.summary.transfer.chunk_size == size
        runs.append(results(run))
    assert runs[0] == runs[1] == runs[2]


@pytest.mark.nightly
def test_a_size_that_was_spoilt_in_a_run_is_chosen_anew(jobs, monkeypatch):
    run = jobs.run(noisy(), "rounds=1")
    text = run.directory.job_file.read_text()
    run.directory.job_file.write_text(
        re.sub(r"(tensor_download_chunk_size =) .*", r"\1 large", text)
    )
    monkeypatch.setattr(chunk_sizes, "measured_chunk_size", lambda: 4 * MIB)
    resumed = jobs.go_on(run, noisy(), "rounds=2")
    assert resumed.summary.transfer.chunk_size == 4 * MIB


def test_what_a_job_states_is_not_measured(jobs, unmeasured):
    job = jobs.make(noisy(), f"{TENSORS}=48", f"{ARRAYS}=0")
    assert with_chunk_sizes(job) is job


def test_one_that_is_left_open_is_chosen_alone(jobs, monkeypatch):
    monkeypatch.setattr(chunk_sizes, "measured_chunk_size", lambda: 4 * MIB)
    assert sizes_of(with_chunk_sizes(jobs.make(noisy(), f"{ARRAYS}=48"))) == (4 * MIB, 48)


def test_of_what_the_job_does_not_exchange_nothing_is_measured(jobs, unmeasured):
    assert sizes_of(with_chunk_sizes(jobs.make(noisy(), f"{TENSORS}=48"))) == (48, 2 * MIB)


@pytest.mark.parametrize(
    "setting",
    [
        "network.up=10 Mbit",
        "streaming.mode=native",
        "streaming.codecs.up=[zstd]",
        "streaming.codecs.down=[zstd]",
    ],
)
def test_where_longer_chunks_gain_nothing_they_are_of_2_mib(jobs, unmeasured, setting):
    assert sizes_of(with_chunk_sizes(jobs.make(noisy(), setting))) == (2 * MIB, 2 * MIB)


def test_so_they_are_where_nodes_join(jobs, unmeasured):
    nodes = "engine.type=join", "engine.bind=localhost:0", "engine.key_file=key"
    assert sizes_of(with_chunk_sizes(jobs.make(noisy(), *nodes))) == (2 * MIB, 2 * MIB)
