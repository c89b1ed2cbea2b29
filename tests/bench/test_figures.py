"""The figures of a run, from its summary, samples and journal, and the machine's limits."""

import socket
from dataclasses import replace

import msgspec
import pytest
from bench_plans import make_plan

from flstream.bench.drain import drain
from flstream.bench.limits import MachineLimits, pipe_rate, write_seconds
from flstream.bench.measurement import figures, median, ratios, read_samples, trace
from flstream.bench.plan import Case
from flstream.errors import SimulationError
from flstream.job.link import NetworkLink
from flstream.runs.summary import MemorySummary, RoundSummary, Summary, TransferSummary
from flstream.telemetry.events import Transfer
from flstream.telemetry.memory import ProcessMemory, Sample

MIB = 1 << 20
SUMMARY = Summary(
    status="finished",
    rounds=[RoundSummary(1, 9.0, 9.0, 9.0, 9.0), RoundSummary(2, 2.0, 0.5, 4.0, 1.0)],
    transfer=TransferSummary("pull", 16, Transfer(requests=10), Transfer(requests=6)),
    memory=MemorySummary(
        ProcessMemory(idle_rss=100, peak_rss=130, peak_uss=50),
        {
            "site-1": ProcessMemory(idle_rss=100, peak_rss=700, peak_uss=640),
            "site-2": ProcessMemory(idle_rss=100, peak_rss=900, peak_uss=840),
        },
        2000,
    ),
    wall_seconds=30.0,
)
SAMPLES = {
    "server": [
        Sample(1.0, "server", 90, uss=10, pss=20),
        Sample(2.1, "server", 100, uss=30, pss=40),
        Sample(2.2, "server", 101),
        Sample(6.0, "server", 130, uss=50, pss=60),
        Sample(7.0, "server", 0),
    ],
    "site-2": [Sample(2.0, "site-2", 100, uss=40, pss=50), Sample(6.5, "site-2", 900)],
}
RUN = figures(SUMMARY, SAMPLES, {"server": 2.0, "site-2": 2.0})


def test_the_last_round_and_the_largest_client_count_and_idle_is_where_a_process_was_ready():
    assert (RUN.download, RUN.train, RUN.upload_and_fold, RUN.checkpoint) == (2.0, 0.5, 4.0, 1.0)
    assert (RUN.requests, RUN.total_peak_pss) == (8, 2000)
    assert (RUN.server_peak_rss, RUN.client_peak_rss) == (30, 800)
    assert (RUN.server_idle_uss, RUN.server_peak_uss) == (30, 20)
    assert (RUN.client_idle_uss, RUN.client_peak_uss) == (40, 800)
    others = [replace(RUN, download=each) for each in (5.0, 3.0)]
    assert median([RUN, *others]) == replace(RUN, download=3.0)


def test_a_trace_begins_with_the_first_round_and_ends_with_the_process(tmp_path):
    path = tmp_path / "memory.jsonl"
    lines = [msgspec.json.encode(sample) for each in SAMPLES.values() for sample in each]
    path.write_bytes(b"\n".join(lines) + b"\n")
    traced = trace(SUMMARY, read_samples(path), 5.0)
    assert (traced.server, traced.client) == ([(1.0, 30)], [(1.5, 800)])


def test_ratios_hold_seconds_against_the_bytes_and_the_slowest_limit():
    plan = make_plan(model_bytes=1000, modes=["pull"], chunk_sizes=[16])
    limits = MachineLimits(memcpy=4000.0, pipe={16: 2000.0, 32: 4000.0}, disk=500.0)
    case = Case("pull", 16)
    pull = ratios(plan, case, RUN, limits)
    assert (pull.download_pipe, pull.upload_pipe, pull.exchange_pipe) == (2.0, 4.0, 3.0)
    assert (pull.exchange_memcpy, pull.checkpoint_disk, pull.exchange_link) == (6.0, 0.5, None)
    # Without chunks, the fastest pipe is the limit.
    assert ratios(plan, Case("native", None), RUN, limits).exchange_pipe == 6.0
    # A model takes 2 s down the link and 1 s up; all clients have links of their own.
    slow = replace(plan, network=NetworkLink(down=4000.0, up=8000.0))
    assert ratios(slow, case, RUN, limits).exchange_link == 2.0
    # The pipe takes 1 s for both models, either way.
    fast = replace(plan, network=NetworkLink(latency=0.5))
    assert ratios(fast, case, RUN, limits).exchange_link == 3.0


def test_a_body_that_no_read_size_divides_is_measured_and_an_absent_folder_named(tmp_path):
    assert pipe_rate(5 * MIB + 7, 2 * MIB) > 0
    with pytest.raises(SimulationError, match="absent"):
        write_seconds(tmp_path / "absent", 1)


def test_a_pipe_that_ends_early_is_not_taken_for_a_fast_one():
    ours, theirs = socket.socketpair()
    with theirs:
        ours.sendall(bytes(10))
        ours.close()
        with pytest.raises(EOFError, match="90 bytes"):
            drain(theirs, 100, memoryview(bytearray(64)))
