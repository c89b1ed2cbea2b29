"""Whole jobs: what their rounds compute, whom they ask, and what code is given."""

import json
import os
from pathlib import Path

import msgspec
import pytest
import torch
from run_fixtures import shared_host_for
from safetensors import safe_open
from safetensors.torch import load_file
from training_scripts import LARGE, QUIET, adding, cohorts, noisy, of_kind, plain

from flstream.job import load_job
from flstream.model.checkpoint import FileSource
from flstream.runs.run_directory import RunDirectory
from flstream.server.sampling import sample_sites
from flstream.simulation.launcher import simulate
from flstream.telemetry.events import ProcessReady, SiteLog, SiteUpdate

EXCHANGE = Path(__file__).parents[2] / "jobs" / "exchange" / "job.conf"

ADD_NUMBER = plain(
    """
    for tensor in params.values():
        tensor += int(site[-1])
    meta, metrics = {"num_examples": int(site[-1])}, {"loss": 10.0 * int(site[-1])}
    """,
    first="metrics = {'score': int(site[-1])}",
).replace(
    "FLModel(metrics=metrics)", "FLModel(metrics=metrics, meta={'num_examples': int(site[-1])})"
)


def test_each_round_is_the_weighted_mean_and_so_are_its_metrics(jobs):
    run = jobs.run(ADD_NUMBER, "clients.count=3", "workflow.args.key_metric=score").finished()
    before = load_file(run.directory.checkpoint(0))
    after = load_file(run.directory.final_model)
    # Sites add 1, 2, 3 with the weights 1, 2, 3: 14 / 6 a round.
    for name in ("w", "b"):
        assert after[name].dtype == before[name].dtype
        expected = before[name].double() + 2 * 14 / 6
        torch.testing.assert_close(after[name].double(), expected, rtol=1e-6, atol=1e-6)
    assert after["steps"].dtype == torch.int64
    assert after["steps"].item() == 4  # 14/6 rounds to 2, twice
    first = run.summary.metrics[0]
    assert first["round"] == 1
    assert first["score"] == pytest.approx((1 + 4 + 9) / 6)
    assert first["train"]["loss"] == pytest.approx(10 * (1 + 4 + 9) / 6)
    assert msgspec.structs.astuple(run.summary.best) == (1, "score", first["score"])


def test_numpy_arrays_take_the_same_road_with_their_own_chunk_size(jobs):
    script = plain("""
    assert all(type(value) is np.ndarray for value in params.values())
    params = {name: value + np.ones_like(value) for name, value in params.items()}
    """, before="import numpy as np")  # fmt: skip
    how = ["train.exchange_format=numpy", "streaming.np_download_chunk_size=1024"]
    how += ["engine.type=local", "streaming.direct=off"]
    run = jobs.run(script, "rounds=1", *how, QUIET).finished()
    chunks, transfer = 2 * -(-run.summary.model.bytes // 1024), run.summary.transfer
    assert (transfer.down.chunks, transfer.up.chunks) == (chunks, chunks)
    before = load_file(run.directory.checkpoint(0))
    after = load_file(run.directory.final_model)
    assert all(torch.equal(after[name], before[name] + 1) for name in before)


TIED_MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.wte = nn.Embedding(50, 8)
        self.block = nn.Linear(8, 8)
        self.lm_head = nn.Linear(8, 50, bias=False)
        self.lm_head.weight = self.wte.weight
        self.register_buffer("seen", torch.tensor(0))

def build():
    return Net()
"""


def test_a_module_receives_into_itself_and_tied_weights_travel_once(jobs):
    script = plain(
        """
        assert [value.data_ptr() for value in net.state_dict().values()] == pointers
        assert set(model.params) == set(net.state_dict())
        assert model.params["wte.weight"].data_ptr() == model.params["lm_head.weight"].data_ptr()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter += 1
        """,
        before="""
        from model import build

        net = build()
        pointers = [value.data_ptr() for value in net.state_dict().values()]
        """,
        receive="into=net",
        sends="params=dict(net.named_parameters()) | {'seen': net.seen}",
    )
    run = jobs.run(script, QUIET, model=TIED_MODEL).finished()
    size = 4 * (50 * 8 + 8 * 8 + 8) + 8
    assert run.summary.model.bytes == size
    assert run.summary.transfer.up.bytes + run.summary.transfer.up.reused == 4 * size
    after = run.directory.final_model
    assert FileSource(after).layout.aliases == {"wte.weight": "lm_head.weight"}
    first = load_file(run.directory.checkpoint(0))
    for name, value in load_file(after).items():
        assert torch.allclose(value, first[name] + 2 * (name != "seen"))


def test_training_may_start_from_a_file_of_any_order_which_keeps_its_ties(jobs, tmp_path):
    path = tmp_path / "given.safetensors"
    header = {
        "__metadata__": {"flstream.tied": '{"also": "small"}'},
        "small": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "large": {"dtype": "F32", "shape": [1], "data_offsets": [3, 7]},
    }
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + bytes([1, 2, 3, 0, 0, 192, 63]))
    how = ["model.factory=null", f"model.initial={path}", "rounds=1", QUIET]
    initial = jobs.run(ADD_NUMBER, *how).finished().directory.checkpoint(0)
    layout, tensors = FileSource(initial).layout, load_file(initial)
    assert (layout.aliases, layout.is_canonical) == ({"small": "also"}, True)
    assert (tensors["also"].tolist(), tensors["large"].tolist()) == ([1, 2, 3], [1.5])


SEEN = """
metrics = {
    "python": random.random(),
    "numpy": np.random.rand(),
    "torch": torch.rand(()).item(),
    "seed": flare.system_info()["task_seed"] / 2**63,
}
"""


@pytest.mark.usefixtures("processes")
def test_rounds_sample_sites_by_the_seed_and_few_workers_do_their_work(jobs):
    how = ["clients.count=6", "clients.per_round=0.5", "clients.parallel=2", "rounds=4", QUIET]
    run = jobs.run(noisy(SEEN), *how, LARGE).finished()
    names = [f"site-{number}" for number in range(1, 7)]
    due = [list(sample_sites(names, 3, 7, number)) for number in range(1, 5)]
    assert cohorts(run) == due
    assert len({tuple(cohort) for cohort in due}) > 1
    assert [list(sample_sites(names, 3, 8, number)) for number in range(1, 5)] != due
    # Workers are reused, and not started anew.
    pids = {(event.process, event.pid) for event in of_kind(run, ProcessReady)}
    assert sorted(name for name, _ in pids) == ["server", "worker-1", "worker-2"]
    # What is folded is of no more use.
    assert not (run.directory.path / "updates").exists()
    # Each site and round has streams of its own.
    updates = [event.metrics for event in of_kind(run, SiteUpdate)]
    for name in ("python", "numpy", "torch", "seed"):
        assert len({metrics[name] for metrics in updates}) == 12


def test_the_script_gets_its_arguments_and_knows_its_site_and_its_job_runs_again(jobs):
    script = """
    import argparse, json, pathlib
    import flstream.client as flare

    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    for name in ("--name", "--data"):
        parser.add_argument(name)
    for name in ("--flag", "--off"):
        parser.add_argument(name, action="store_true")
    parser.add_argument("--sizes", type=int, nargs="*")
    args = parser.parse_args()
    flare.init(rank=0, config_file="config.json")
    info = flare.system_info()
    pathlib.Path(info["site_dir"], "seen.json").write_text(json.dumps({**vars(args), **info}))
    assert flare.get_task_name() in (None, "train", "evaluate") and flare.get_job_id() == "test"
    assert flare.get_config()["site_name"] == flare.get_site_name()
    while flare.is_running():
        model = flare.receive()
        assert flare.is_train() != flare.is_evaluate() and not flare.is_submit_model()
        assert flare.get_task_name() == ("train" if flare.is_train() else "evaluate")
        assert model.current_round in (0, 1) and model.total_rounds == 2 and model.start_round == 0
        flare.log("round", model.current_round)
        params = dict(model.params)
        if model.current_round:
            flare.clear()
            assert model.params is None
        flare.send(flare.FLModel(params=params, metrics={}))
        assert model.params is None
    print("bye")
    flare.shutdown()
    assert not flare.is_running()
    """
    args = ['name="a b"', "lr=0.5", "flag=true", "off=false", "sizes=[3, 4]", "none=null"]
    own = [
        "clients.names=[ward, lab.2]",
        """clients.args={ ward { data = a.csv }, "lab.2" { lr = 2.5, data = b.csv } }""",
    ]
    run = jobs.run(script, *own, *(f"train.args.{each}" for each in args)).finished()
    for site, lr, mine in (
        ("ward", 0.5, {"data": "a.csv"}),
        ("lab.2", 2.5, {"lr": 2.5, "data": "b.csv"}),
    ):
        seen = json.loads((run.directory.site(site) / "seen.json").read_text())
        assert (seen["lr"], seen["name"], seen["sizes"]) == (lr, "a b", [3, 4])
        assert (seen["flag"], seen["off"], seen["data"]) == (True, False, mine["data"])
        assert (seen["site_name"], seen["clients"], seen["total_rounds"]) == (site, 2, 2)
        assert seen["site_args"] == mine
        assert run.directory.site_log(site).read_text() == "bye\n"
    logged = {(event.site, event.key) for event in of_kind(run, SiteLog)}
    assert logged == {("ward", "round"), ("lab.2", "round")}
    assert sorted(path.name for path in run.directory.sites.iterdir()) == ["lab.2", "ward"]
    # The job as it was resolved is a job.
    again = load_job(run.directory.job_file)
    directory = RunDirectory.create(again.name, jobs.folder / "again")
    assert simulate(again, directory).model.digest == run.summary.model.digest


def test_the_server_stays_small_and_a_client_holds_one_model(tmp_path, fork_server):
    size = 96 << 20
    job = load_job(EXCHANGE, [f"model.args.size={size}", "clients.count=2", "rounds=2"])
    directory = RunDirectory.create(job.name, tmp_path / "run")
    summary = simulate(job, directory, host=shared_host_for(job))
    assert summary.status == "finished", summary.error
    server = summary.memory.server
    assert server.idle_rss > 0
    assert server.peak_rss - server.idle_rss <= 48 << 20  # half the model
    assert 0 < server.peak_uss <= server.peak_rss
    for client in summary.memory.clients.values():
        assert size <= client.peak_rss - client.idle_rss <= size + (48 << 20)
    assert summary.memory.peak_total_pss >= 2 * size
    weights = load_file(tmp_path / "run" / "global.safetensors")
    assert all(bool((tensor == 3.0).all()) for tensor in weights.values())


@pytest.mark.parametrize("parallel", [2, 1])
def test_updates_that_a_workflow_reads_are_durable_files_fit_to_be_models(
    jobs, parallel, monkeypatch
):
    synced, fsync = [], os.fsync

    def note(fd):
        synced.append(os.readlink(f"/proc/self/fd/{fd}"))
        fsync(fd)

    monkeypatch.setattr(os, "fsync", note)
    options = ["workflow.type=cyclic", f"clients.parallel={parallel}", LARGE, QUIET, "rounds=1"]
    run = jobs.run(adding({}), *options).finished()
    updates = [path for path in synced if "/updates/" in path and path.endswith(".safetensors.tmp")]
    assert len(updates) == 2
    heads = []
    for name in ("0000", "0001.step-00", "0001.step-01"):
        with safe_open(run.directory.checkpoints / f"round-{name}.safetensors", "pt") as file:
            heads.append(file.metadata())
    assert "flstream.order" in heads[0]
    assert heads[1:] == [{**heads[0], "flstream.round": "1"}] * 2
