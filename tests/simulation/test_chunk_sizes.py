"""Chunk sizes that a job file leaves to the machine: chosen once, written down, and kept."""

import pytest
from training_scripts import noisy

from flstream.errors import UsageError
from flstream.job import load_job
from flstream.simulation import chunk_sizes
from flstream.simulation.chunk_sizes import with_chunk_sizes

pytestmark = pytest.mark.usefixtures("processes")  # inline, nothing is measured
MIB = 1 << 20
TENSORS, ARRAYS = "streaming.tensor_download_chunk_size", "streaming.np_download_chunk_size"


def sizes_of(job):
    streaming = with_chunk_sizes(job).streaming
    return streaming.tensor_download_chunk_size, streaming.np_download_chunk_size


def test_a_run_writes_down_what_it_chose_and_keeps_to_it_when_resumed(jobs, monkeypatch):
    monkeypatch.setattr(chunk_sizes, "measured_chunk_size", lambda: 4 * MIB)
    run = jobs.run(noisy(), "rounds=1", f"{ARRAYS}=48")
    assert sizes_of(load_job(run.directory.job_file)) == (4 * MIB, 48)
    monkeypatch.setattr(chunk_sizes, "measured_chunk_size", lambda: MIB)
    resumed = jobs.go_on(run, noisy(), "rounds=2", f"{ARRAYS}=48")
    assert resumed.summary.transfer.chunk_size == 4 * MIB
    with pytest.raises(UsageError, match=f"{TENSORS} is .* there and .* here"):
        jobs.go_on(run, noisy(), "rounds=3", f"{TENSORS}={8 * MIB}", f"{ARRAYS}=48")


@pytest.mark.parametrize(
    ("settings", "sizes"),
    [
        ([f"{TENSORS}=48", f"{ARRAYS}=0"], (48, 0)),
        ([f"{TENSORS}=48"], (48, 2 * MIB)),
        # Where longer chunks gain nothing they are of 2 MiB.
        (["network.up=10 Mbit"], (2 * MIB, 2 * MIB)),
        (["streaming.codecs.up=[zstd]"], (2 * MIB, 2 * MIB)),
        (["engine={type=join,bind=localhost:0,key_file=key}"], (2 * MIB, 2 * MIB)),
    ],
)
def test_what_a_job_states_or_does_not_need_is_not_measured(jobs, monkeypatch, settings, sizes):
    monkeypatch.setattr(chunk_sizes, "measured_chunk_size", lambda: pytest.fail("measured"))
    assert sizes_of(jobs.make(noisy(), *settings)) == sizes
