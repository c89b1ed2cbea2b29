"""What is foretold of a job is what a run of it moves, and no less than what it takes."""

import pytest
from journal_support import a_job
from nightly_cases import first_and_nightly
from training_scripts import QUIET, adding

from flstream.errors import UsageError
from flstream.model.checkpoint import FileSource
from flstream.model.layout import Layout
from flstream.runs.summary import Summary
from flstream.simulation.forecasting.forecast import Forecast, Traffic, forecast, plain_layout
from flstream.telemetry.memory import own_rss

MIB = 1 << 20

# Numbers of the model: 2.3 MiB, so that updates wait in files where workers are few.
LARGE = "model.args.elements=600001"
CUT = ("streaming.tensor_download_chunk_size=64KiB",)
# It answers, and computes next to nothing: what training takes is not foretold.
EXCHANGE = adding({})


def moved(summary: Summary) -> tuple[Traffic, Traffic]:
    ways = summary.transfer.down, summary.transfer.up
    down, up = (Traffic(way.bytes, way.requests, way.chunks) for way in ways)
    return down, up


def assert_took_no_more(summary: Summary, need: Forecast) -> None:
    server = summary.memory.server
    assert 0 < server.peak_rss - server.idle_rss <= need.server_bytes
    for client in summary.memory.clients.values():
        assert 0 < client.peak_rss - client.idle_rss <= need.client_bytes
    # The launcher of this run is the process of the tests, which has imported more than its own.
    assert 0 < summary.memory.peak_total_pss <= need.total_bytes + own_rss()


WAYS = {
    # Updates are walked over twice, and every round is evaluated.
    "a process each": ["aggregation.clip_norm=1"],
    # Updates go into files, and not all of each. Nothing is evaluated.
    "fewer processes": [
        "clients.count=5", "clients.parallel=2", "aggregation.exclude=[b]", QUIET,
        "filters.up=[svt_privacy, { type = exclude_vars, args { exclude_vars = [steps] } }]",
    ],
    "scored across sites": ["workflow={type=cross_site,args{after=fedavg,key_metric=accuracy}}"],
    "a model of each site's own": ["workflow={type=ditto,args{key_metric=accuracy}}"],
    "mapped": ["streaming.mode=map"],
}  # fmt: skip


@first_and_nightly("overrides", WAYS.values(), ids=WAYS)
@pytest.mark.usefixtures("processes")
def test_a_run_moves_to_the_byte_what_was_foretold(jobs, overrides):
    overrides = (*CUT, LARGE, *overrides, "streaming.reuse=off")  # what sites have is not foretold
    job = jobs.make(EXCHANGE, *overrides)
    run = jobs.run(EXCHANGE, *overrides)
    assert run.summary.status == "finished", run.summary.error
    transfer, model = run.summary.transfer, run.summary.model
    assert transfer.down.retries == transfer.up.retries == 0
    need = forecast(job, FileSource(run.directory.final_model).layout)
    assert moved(run.summary) == (need.run_down, need.run_up)
    assert (need.mode, need.chunk_size) == (transfer.mode, transfer.chunk_size)
    assert (need.model_bytes, need.tensors) == (model.bytes, model.tensors)
    assert_took_no_more(run.summary, need)


def streaming(**values):
    return a_job(streaming=values, workflow={"args": {"evaluate_every": 0}})


def test_a_download_takes_a_request_for_each_64_mib_and_a_frame_for_each_chunk():
    job = streaming(tensor_download_chunk_size=4 * MIB)
    need = forecast(job, plain_layout(130 * MIB))
    assert need.down == Traffic(260 * MIB, 2 * 3, 2 * 33)
    assert need.evaluation == Traffic()
    assert need.evaluations == 0


@pytest.mark.parametrize("off", [{"mode": "native"}, {"tensor_download_chunk_size": 0}])
def test_without_streaming_a_model_is_one_request_and_one_chunk(off):
    need = forecast(streaming(**off), plain_layout(33 * MIB))
    assert (need.mode, need.chunk_size) == ("native", 0)
    assert need.down == need.up == Traffic(66 * MIB, 2, 2)


@pytest.mark.parametrize("clients", [1, 16])
def test_the_server_takes_no_more_for_a_larger_model(clients):
    job = a_job(clients={"count": clients})
    small, large = (forecast(job, plain_layout(size)) for size in (4, 1 << 40))
    assert small.server_bytes == large.server_bytes
    assert large.total_bytes > large.server_bytes + clients * large.client_bytes


@pytest.mark.parametrize("mode", ["pull", "native"])
def test_tiny_models_travel_for_several_sites_at_once(mode):
    clients = {"count": 23, "per_round": 11, "parallel": 2}
    job = a_job(3, clients=clients, streaming={"mode": mode})
    need = forecast(job, plain_layout(1000))
    # Six sites and five; and to evaluate, twelve and eleven.
    assert need.down == Traffic(2000, 2, 2)
    assert need.up == Traffic(11_000, 2, 2)
    assert need.run_down == Traffic(3 * 4000, 3 * 4, 3 * 4)


def test_fewer_processes_take_less_memory_and_more_disk():
    layout = plain_layout(1 << 30)
    own = forecast(a_job(clients={"count": 16}), layout)
    few = forecast(a_job(clients={"count": 16, "parallel": 2}), layout)
    assert own.total_bytes - few.total_bytes > 14 * layout.nbytes
    # Two groups of four updates in waiting, and the sum in float64 with its successor.
    assert few.round_disk_bytes - own.round_disk_bytes == (2 * 4 + 2 * 2) * layout.nbytes
    assert few.down == own.down


def test_disk_is_for_the_checkpoints_that_stay():
    layout = plain_layout(MIB)
    kept = [forecast(a_job(9, checkpoints={"keep": keep}), layout) for keep in ("all", 1)]
    # The initial model and nine more; or the last, the best, and the one being written.
    assert [need.disk_bytes for need in kept] == [10 * MIB, 3 * MIB]
    state = forecast(a_job(9, server_optimizer={"type": "fedadam"}), layout)
    assert state.disk_bytes == 10 * MIB + 9 * 2 * MIB


def test_only_what_is_aggregated_travels_up():
    layout = Layout.of([("body.w", "F32", (1000,)), ("head.w", "F32", (50,))])
    need = forecast(a_job(aggregation={"include": ["head"]}), layout)
    assert (need.down.bytes, need.up.bytes) == (2 * 4200, 2 * 200)
    with pytest.raises(UsageError, match="'tail' is found in no tensor's name"):
        forecast(a_job(aggregation={"include": ["tail"]}), layout)


def test_workers_of_other_machines_are_no_memory_of_this_one():
    here = forecast(a_job(), plain_layout(1 << 30))
    assert here.bytes_here == here.total_bytes - here.workers * here.worker_bytes
    assert here.bytes_here < here.worker_bytes < here.total_bytes
    two = here.shared_bytes + 2 * here.worker_bytes + (16 << 20)
    assert here.workers_in(two) == 2
    assert here.workers_in(two - 1) == 1
    assert here.workers_in(0) == 0
