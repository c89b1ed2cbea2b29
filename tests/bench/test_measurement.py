"""The figures of a run, from its summary and its samples."""

from dataclasses import replace

import msgspec

from flstream.bench.limits import MachineLimits
from flstream.bench.measurement import figures, median, ratios, read_samples, trace
from flstream.bench.plan import Case, Plan
from flstream.job.link import NetworkLink
from flstream.runs.summary import MemorySummary, RoundSummary, Summary, TransferSummary
from flstream.telemetry.events import Transfer
from flstream.telemetry.memory import ProcessMemory, Sample

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
READY, BEGAN = {"server": 2.0, "site-2": 2.0}, 5.0


def test_the_last_round_and_the_largest_client_are_what_counts():
    run = figures(SUMMARY, SAMPLES, READY)
    assert (run.download, run.train, run.upload_and_fold, run.checkpoint) == (2.0, 0.5, 4.0, 1.0)
    assert run.requests == 8
    assert run.client_peak_rss == 800
    assert run.server_peak_rss == 30
    assert run.total_peak_pss == 2000


def test_idle_uss_is_read_where_the_process_said_that_it_was_idle():
    run = figures(SUMMARY, SAMPLES, READY)
    assert (run.server_idle_uss, run.server_peak_uss) == (30, 20)
    assert (run.client_idle_uss, run.client_peak_uss) == (40, 800)


def test_a_trace_begins_with_the_first_round_and_ends_with_the_process():
    traced = trace(SUMMARY, SAMPLES, BEGAN)
    assert traced.server == [(1.0, 30)]
    assert traced.client == [(1.5, 800)]


def test_a_long_trace_is_thinned_out_but_keeps_its_peak():
    many = [Sample(5 + i / 100, "server", 100 + (i == 7777) * 999) for i in range(10_000)]
    points = trace(SUMMARY, {"server": many}, BEGAN).server
    assert len(points) <= 2000
    assert max(size for _, size in points) == 999


def test_samples_are_read_as_a_run_wrote_them(tmp_path):
    path = tmp_path / "memory.jsonl"
    lines = [msgspec.json.encode(sample) for each in SAMPLES.values() for sample in each]
    path.write_bytes(b"\n".join(lines) + b"\n")
    assert read_samples(path) == SAMPLES


def test_the_median_is_taken_of_each_figure():
    run = figures(SUMMARY, SAMPLES, READY)
    others = [
        msgspec.convert(msgspec.to_builtins(run) | {"download": each}, type(run))
        for each in (5.0, 3.0)
    ]
    assert median([run, *others]).download == 3.0
    assert median([run, *others]).checkpoint == 1.0


def test_ratios_hold_seconds_against_the_bytes_and_the_rates():
    plan = Plan(1000, 2, ["pull"], [16], None, 1)
    limits = MachineLimits(memcpy=4000.0, pipe={16: 2000.0, 32: 4000.0}, disk=500.0)
    run = figures(SUMMARY, SAMPLES, READY)
    pull = ratios(plan, Case("pull", 16), run, limits)
    assert (pull.download_pipe, pull.upload_pipe, pull.exchange_pipe) == (2.0, 4.0, 3.0)
    assert pull.exchange_memcpy == 6.0
    assert pull.checkpoint_disk == 0.5
    # Without chunks, the fastest pipe is the limit.
    assert ratios(plan, Case("native", None), run, limits).exchange_pipe == 6.0


def test_over_a_link_the_slower_of_it_and_the_pipe_is_the_limit():
    plan = Plan(1000, 2, ["pull"], [16], None, 1)
    limits = MachineLimits(memcpy=4000.0, pipe={16: 2000.0}, disk=500.0)
    run, case = figures(SUMMARY, SAMPLES, READY), Case("pull", 16)
    assert ratios(plan, case, run, limits).exchange_link is None
    # A model takes 2 s down the link and 1 s up; all clients have links of their own.
    slow = replace(plan, network=NetworkLink(down=4000.0, up=8000.0))
    assert ratios(slow, case, run, limits).exchange_link == 2.0
    # The pipe takes 1 s for both models, either way.
    fast = replace(plan, network=NetworkLink(latency=0.5))
    assert ratios(fast, case, run, limits).exchange_link == 3.0
