"""A forecast is about what a run takes; what does not fit is told the change that does."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from journal_support import a_job
from nightly_cases import first_and_nightly
from run_fixtures import shared_host_for
from training_scripts import QUIET, adding

from flstream.errors import UsageError
from flstream.model.checkpoint import FileSource
from flstream.model.layout import Layout
from flstream.report.console import make_console
from flstream.report.forecast import forecast_json, print_forecast
from flstream.simulation.forecast import (
    Available,
    Lack,
    available_in,
    forecast,
    lacks,
    plain_layout,
)
from flstream.simulation.probe import probe
from flstream.telemetry.memory import own_rss

MIB = 1 << 20

# Numbers of the model: 2.3 MiB, so that updates wait in files where workers are few.
LARGE = "model.args.elements=600001"
# It answers, and computes next to nothing: training is not counted.
EXCHANGE = adding({})

WAYS = {
    "a process each": [],
    "fewer processes, and a part of each update": [
        "clients.count=5", "clients.parallel=2", "aggregation.exclude=[b]",
        "filters.up=[svt_privacy, { type = exclude_vars, args { exclude_vars = [steps] } }]",
    ],
    "mapped": ["streaming.mode=map"],
}  # fmt: skip


@first_and_nightly("overrides", WAYS.values(), ids=WAYS)
@pytest.mark.usefixtures("processes")
def test_a_run_moves_and_takes_no_more_than_its_forecast(jobs, overrides):
    overrides = (LARGE, QUIET, *overrides, "streaming.reuse=off")  # it ignores what sites have
    job = jobs.make(EXCHANGE, *overrides)
    run = jobs.run(EXCHANGE, *overrides).finished()
    transfer, memory = run.summary.transfer, run.summary.memory
    need = forecast(job, FileSource(run.directory.final_model).layout)
    rounds = run.summary.rounds_completed
    is_mapped = job.streaming.mode == "map"
    assert transfer.down.bytes == (0 if is_mapped else rounds * need.down_bytes)
    assert transfer.up.bytes == rounds * need.up_bytes
    assert (need.mode, need.chunk_size) == (transfer.mode, transfer.chunk_size)
    assert (need.model_bytes, need.tensors) == (run.summary.model.bytes, run.summary.model.tensors)
    assert 0 < memory.server.peak_rss - memory.server.idle_rss <= need.server_bytes
    for client in memory.clients.values():
        assert 0 < client.peak_rss - client.idle_rss <= need.worker_bytes
    # The launcher of this run is the process of the tests, which has imported more than its own.
    assert 0 < memory.peak_total_pss <= need.total_bytes + own_rss()
    files = [path.stat() for path in run.directory.checkpoints.iterdir()]
    kept = sum({file.st_ino: file.st_size for file in files}.values())
    assert kept <= need.disk_bytes + (rounds + 1) * 4096  # their headers


@pytest.mark.usefixtures("processes")
def test_imports_of_the_training_code_are_measured_beside_those_of_the_fork_server(jobs):
    # The script itself is not run.
    job = jobs.make("import flstream.client\ndata = bytes(256) * (64 << 12)\nimport part\n")
    (jobs.folder / "part.py").write_text("held = bytes(range(256)) * (32 << 12)\n")
    with shared_host_for(job) as host:
        measured = probe(job, host)
    assert 32 * MIB <= measured.own < 64 * MIB
    assert measured.shared > 100 * MIB
    assert "part" not in sys.modules
    layout = plain_layout(MIB)
    none = forecast(job, layout, measured=replace(measured, own=0))
    more = forecast(job, layout, measured=measured).total_bytes - none.total_bytes
    assert more == job.clients.workers * measured.own


@pytest.mark.parametrize("off", [{"mode": "native"}, {"tensor_download_chunk_size": 0}])
def test_without_streaming_the_server_has_a_model_for_each_worker(off):
    need = forecast(a_job(streaming=off), plain_layout(33 * MIB))
    assert (need.mode, need.chunk_size) == ("native", 0)
    assert need.down_bytes == need.up_bytes == 66 * MIB
    assert need.server_bytes > 3 * 33 * MIB


@pytest.mark.parametrize("clients", [1, 16])
def test_the_server_takes_no_more_for_a_larger_model(clients):
    job = a_job(clients={"count": clients})
    small, large = (forecast(job, plain_layout(size)) for size in (1 << 28, 1 << 40))
    assert small.server_bytes == large.server_bytes
    more = large.worker_bytes - small.worker_bytes
    assert large.total_bytes == small.total_bytes + clients * more


def test_fewer_processes_take_less_memory_and_more_disk():
    layout = plain_layout(1 << 30)
    own = forecast(a_job(clients={"count": 16}), layout)
    few = forecast(a_job(clients={"count": 16, "parallel": 2}), layout)
    assert own.total_bytes - few.total_bytes == 14 * own.worker_bytes
    # Two groups of four updates in waiting, and the sum in float64 with its successor.
    assert few.disk_bytes - own.disk_bytes == (2 * 4 + 2 * 2) * layout.nbytes
    assert few.down_bytes == own.down_bytes


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
    assert (need.down_bytes, need.up_bytes) == (2 * 4200, 2 * 200)
    with pytest.raises(UsageError, match="'tail' is found in no tensor's name"):
        forecast(a_job(aggregation={"include": ["tail"]}), layout)


GIB = 1 << 30
LAYOUT = plain_layout(GIB)


def fitted(job, memory=1 << 50, disk=1 << 50):
    available = Available(memory, disk, Path("runs"))
    return list(lacks(job, LAYOUT, forecast(job, LAYOUT), available))


def test_what_fits_lacks_nothing_and_gets_no_advice():
    assert fitted(a_job()) == []


NATIVE = {"mode": "native"}


@pytest.mark.parametrize(
    ("clients", "streaming", "memory", "advice"),
    [
        (4, NATIVE, 10, "set streaming.mode = pull and leave the chunk sizes at their default"),
        (8, {}, 4, "set clients.parallel = 3"),
        (2, {}, 1, "make the model smaller, or free memory"),
    ],
)
def test_a_job_that_takes_too_much_memory_gets_the_change_that_fits(
    clients, streaming, memory, advice
):
    job = a_job(clients={"count": clients}, streaming=streaming)
    [(sentence, change)] = fitted(job, memory=memory * GIB)
    assert sentence.endswith(f" GiB of memory, {memory} GiB are available")
    assert change == advice
    if advice.startswith("set clients.parallel"):
        job = a_job(clients={"count": clients, "parallel": 3})
        assert fitted(job, memory=memory * GIB) == []


@pytest.mark.parametrize(
    ("clients", "memory", "advice"),
    [
        (8, 20, "set clients.parallel = 3, or memory_limit = 8920 MiB"),
        (8, 5, "set clients.parallel = 3"),  # the machine has no more than the run takes
        (8, 3, None),  # the machine has less than the limit
    ],
)
def test_a_job_that_takes_more_than_its_limit_gets_the_change_that_fits(clients, memory, advice):
    job = a_job(clients={"count": clients}, memory_limit="4 GiB")
    [(sentence, change)] = fitted(job, memory=memory * GIB)
    if advice is None:
        assert sentence.endswith("3 GiB are available")
        return
    assert sentence.endswith("4 GiB are allowed (memory_limit)")
    assert change == advice
    job = a_job(clients={"count": clients, "parallel": 3}, memory_limit="4 GiB")
    assert fitted(job, memory=memory * GIB) == []


def test_the_most_checkpoints_that_fit_are_named():
    sentence = "the run takes about 21 GiB of disk, 8 GiB are free in runs"
    assert fitted(a_job(20), disk=8 * GIB) == [Lack(sentence, "set checkpoints.keep = 6")]
    kept = [forecast(a_job(20, checkpoints={"keep": keep}), LAYOUT) for keep in (6, 7)]
    assert kept[0].disk_bytes <= 8 * GIB < kept[1].disk_bytes
    assert fitted(a_job(20), disk=2 * GIB)[0].change == "make room, or name another --run-dir"


def test_room_is_looked_for_where_the_folder_would_be(tmp_path):
    assert (available_in(tmp_path / "not" / "there").disk or 0) > 0


def test_the_fleet_is_counted_with_its_medians_and_the_sites_without_memory(capsys):
    kinds = {
        "phone": {"share": 0.6, "speed": 0.5, "up": "5 Mbit", "memory": "1 MiB"},
        "laptop": {"share": 0.4, "latency": "50 ms"},
    }
    clients = {"count": 1000, "parallel": 2}
    job = a_job(clients=clients, time={"clock": "virtual"}, devices=kinds)
    need, room = forecast(job, plain_layout(2 * MIB)), available_in(Path.cwd())
    print_forecast(make_console(), job, need, room, [])
    shown = capsys.readouterr().out
    facts = json.loads(json.dumps(forecast_json(job, need, room, [])))["fleet"]
    phones, laptops = facts["sites"]["phone"], facts["sites"]["laptop"]
    assert phones + laptops == 1000
    assert phones == pytest.approx(600, abs=50)
    assert f"{phones} phone, {laptops} laptop" in shown
    assert "medians: speed 0.5, no limit down, 5 Mbit/s up, latency 0 s" in shown
    assert f"{phones} sites without the memory for the model" in shown
    medians = (facts["speed"], facts["up"], facts["down"], facts["latency"])
    assert (medians, facts["without_memory"]) == ((0.5, 5e6, None, 0), phones)
    assert forecast(a_job(), plain_layout(MIB)).fleet is None
