"""Whole jobs: what their rounds compute, and that nothing but the job decides it."""

import json
from pathlib import Path

import msgspec
import numpy as np
import pytest
import safetensors.numpy
import torch
from safetensors.torch import load_file
from training_scripts import QUIET

from flstream.job import load_job
from flstream.model.body import Scratch
from flstream.model.checkpoint import FileSource
from flstream.model.digests import BodyDigest
from flstream.runs.run_directory import RunDirectory
from flstream.server.sampling import sample_sites
from flstream.simulation.launcher import simulate
from flstream.telemetry.events import RoundStarted, decode_event

EXCHANGE = Path(__file__).parents[2] / "jobs" / "exchange" / "job.conf"

ADD_NUMBER = """
import torch
import flstream.client as flare

flare.init()
number = int(flare.get_site_name().removeprefix("site-"))
while flare.is_running():
    model = flare.receive()
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"score": number}, meta={"num_examples": number}))
        continue
    for tensor in model.params.values():
        tensor += number
    flare.send(flare.FLModel(params=model.params, metrics={"loss": 10.0 * number},
                             meta={"num_examples": number}))
"""


def body_digest(path):
    source = FileSource(path)
    digest = BodyDigest(source.layout)
    for start, stop in source.layout.ranges(1 << 20):
        digest.update(source.views(start, stop, Scratch()))
    return digest.hexdigest()


def events_of(run):
    return [decode_event(line) for line in run.directory.events.read_bytes().splitlines()]


def test_each_round_adds_the_weighted_mean_of_what_the_sites_added(jobs):
    run = jobs.run(ADD_NUMBER, "clients.count=3", "rounds=2")
    assert run.summary.status == "finished", run.summary.error
    before = load_file(run.directory.checkpoint(0))
    after = load_file(run.directory.final_model)
    # Sites add 1, 2, 3 with the weights 1, 2, 3: 14 / 6 a round.
    for name in ("w", "b"):
        assert after[name].dtype == before[name].dtype
        expected = before[name].double() + 2 * 14 / 6
        torch.testing.assert_close(after[name].double(), expected, rtol=1e-6, atol=1e-6)
    assert after["steps"].dtype == torch.int64
    assert after["steps"].item() == 4  # 14/6 rounds to 2, twice


def test_metrics_are_weighted_means_and_the_best_round_is_named(jobs):
    run = jobs.run(ADD_NUMBER, "clients.count=3", "rounds=2", "workflow.args.key_metric=score")
    first = run.summary.metrics[0]
    assert first["round"] == 1
    assert first["score"] == pytest.approx((1 + 4 + 9) / 6)
    assert first["train"]["loss"] == pytest.approx(10 * (1 + 4 + 9) / 6)
    assert msgspec.structs.astuple(run.summary.best) == (1, "score", first["score"])


def test_the_digest_depends_on_the_seed_and_on_nothing_else(jobs, noise):
    def digest(*overrides):
        run = jobs.run(noise, "rounds=1", QUIET, *overrides)
        assert run.summary.status == "finished", run.summary.error
        assert body_digest(run.directory.final_model) == run.summary.model.digest
        return run.summary.model.digest

    reference = digest()
    small = ["streaming.tensor_download_chunk_size=16", "streaming.request_size=48"]
    assert digest(*small, "streaming.window=5") == reference
    assert digest("streaming.tensor_download_chunk_size=0") == reference
    assert digest("streaming.request_size=1MB", "aggregation.memory_budget=1MiB") == reference
    assert digest("seed=8") != reference


def test_numpy_arrays_take_the_same_road_with_their_own_chunk_size(jobs):
    script = """
    import numpy as np
    import flstream.client as flare

    flare.init()
    while flare.is_running():
        model = flare.receive()
        assert all(type(value) is np.ndarray for value in model.params.values())
        for name, value in model.params.items():
            model.params[name] = value + np.ones_like(value)
        flare.send(flare.FLModel(params=model.params))
    """
    run = jobs.run(
        script,
        "rounds=1",
        "train.exchange_format=numpy",
        "streaming.np_download_chunk_size=1024",
        "workflow.args.evaluate_every=0",
    )
    assert run.summary.status == "finished", run.summary.error
    size = run.summary.model.bytes
    assert run.summary.transfer.down.chunks == 2 * -(-size // 1024)
    assert run.summary.transfer.up.chunks == 2 * -(-size // 1024)
    before = load_file(run.directory.checkpoint(0))
    after = load_file(run.directory.final_model)
    assert all(torch.equal(after[name], before[name] + 1) for name in before)


def test_an_update_can_be_sent_as_a_difference(jobs):
    script = """
    import torch
    import flstream.client as flare

    flare.init()
    while flare.is_running():
        model = flare.receive()
        difference = {name: torch.ones_like(value) for name, value in model.params.items()}
        flare.send(flare.FLModel(params=difference, params_type="DIFF"))
    """
    run = jobs.run(script, "rounds=1", "workflow.args.evaluate_every=0")
    before = load_file(run.directory.checkpoint(0))
    after = load_file(run.directory.final_model)
    for name in before:
        torch.testing.assert_close(after[name], before[name] + 1)


def test_a_module_receives_into_its_own_parameters(jobs):
    model = """
    from torch import nn

    def build():
        return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3))
    """
    script = """
    import torch
    from model import build
    import flstream.client as flare

    net = build()
    pointers = [value.data_ptr() for value in net.state_dict().values()]
    flare.init()
    while flare.is_running():
        received = flare.receive(into=net)
        assert [value.data_ptr() for value in net.state_dict().values()] == pointers
        assert set(received.params) == set(net.state_dict())
        with torch.no_grad():
            for parameter in net.parameters():
                parameter += 1
        flare.send(flare.FLModel(params=net.state_dict()))
    """
    run = jobs.run(script, "rounds=2", "workflow.args.evaluate_every=0", model=model)
    assert run.summary.status == "finished", run.summary.error
    before = load_file(run.directory.checkpoint(0))
    after = load_file(run.directory.final_model)
    torch.testing.assert_close(after["0.weight"], before["0.weight"] + 2)
    assert torch.equal(after["1.num_batches_tracked"], before["1.num_batches_tracked"])


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

def build():
    return Net()
"""


@pytest.mark.parametrize(
    ("receive", "params"),
    [
        ("into=net", "net.state_dict()"),
        ("into=net", "dict(net.named_parameters())"),
        ("", "{name: value + 1 for name, value in model.params.items()}"),
    ],
    ids=["a module's state", "a module's parameters", "values of their own"],
)
def test_tied_weights_travel_once_and_stay_tied_through_the_rounds(jobs, receive, params):
    script = f"""
    import torch
    from model import build
    import flstream.client as flare

    net = build()
    flare.init()
    while flare.is_running():
        model = flare.receive({receive})
        assert model.params["wte.weight"].data_ptr() == model.params["lm_head.weight"].data_ptr()
        with torch.no_grad():
            for parameter in net.parameters():
                parameter += 1
        flare.send(flare.FLModel(params={params}))
    """
    run = jobs.run(script, "rounds=2", "workflow.args.evaluate_every=0", model=TIED_MODEL)
    assert run.summary.status == "finished", run.summary.error
    size = 4 * (50 * 8 + 8 * 8 + 8)
    assert run.summary.model.bytes == size
    assert run.summary.transfer.up.bytes == 4 * size
    before, after = (
        FileSource(path) for path in (run.directory.checkpoint(0), run.directory.final_model)
    )
    assert before.layout == after.layout
    assert after.layout.aliases == {"wte.weight": "lm_head.weight"}
    first = load_file(before.path)
    for name, value in load_file(after.path).items():
        torch.testing.assert_close(value, first[name] + 2)


def test_an_update_that_tears_tied_weights_apart_is_refused_by_name(jobs):
    script = """
    import torch
    import flstream.client as flare

    flare.init()
    while flare.is_running():
        model = flare.receive()
        flare.send(flare.FLModel(params={
            name: torch.randn_like(value) for name, value in model.params.items()
        }))
    """
    run = jobs.run(script, "rounds=1", "workflow.args.evaluate_every=0", model=TIED_MODEL)
    assert run.summary.status == "failed"
    # Both sites fail; what counts is what the first of them said.
    assert "tensor 'wte.weight' is tied to 'lm_head.weight' in the model" in run.summary.error


def test_a_file_of_any_order_keeps_its_ties(jobs, tmp_path):
    given = tmp_path / "given.safetensors"
    header = {
        "__metadata__": {"flstream.tied": '{"also": "small"}'},
        "small": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "large": {"dtype": "F32", "shape": [2], "data_offsets": [3, 11]},
    }
    text = json.dumps(header).encode()
    given.write_bytes(len(text).to_bytes(8, "little") + text + bytes([1, 2, 3]) + bytes(8))
    run = jobs.run(ADD_NUMBER, "model.factory=null", f"model.initial={given}", "rounds=1", QUIET)
    assert run.summary.status == "finished", run.summary.error
    initial = FileSource(run.directory.checkpoint(0)).layout
    assert initial.aliases == {"small": "also"}
    assert initial.is_canonical


def test_rounds_sample_sites_by_the_seed(jobs):
    run = jobs.run(ADD_NUMBER, "clients.count=5", "clients.per_round=2", "rounds=4", QUIET)
    assert run.summary.status == "finished", run.summary.error
    cohorts = [event.sites for event in events_of(run) if isinstance(event, RoundStarted)]

    def due(seed):
        names = [f"site-{number}" for number in range(1, 6)]
        return [list(sample_sites(names, 2, seed, number)) for number in range(1, 5)]

    assert all(len(cohort) == 2 and cohort == sorted(cohort) for cohort in cohorts)
    assert len({tuple(cohort) for cohort in cohorts}) > 1
    assert cohorts == due(seed=7)
    assert due(seed=8) != due(seed=7)


def test_training_may_start_from_a_file_of_any_order(jobs, tmp_path):
    given = tmp_path / "given.safetensors"
    header = {
        "small": {"dtype": "U8", "shape": [3], "data_offsets": [0, 3]},
        "large": {"dtype": "F32", "shape": [2], "data_offsets": [3, 11]},
    }
    text = json.dumps(header).encode()
    floats = np.array([1.5, -2.0], dtype="<f4").tobytes()
    given.write_bytes(len(text).to_bytes(8, "little") + text + bytes([1, 2, 3]) + floats)
    assert set(safetensors.numpy.load_file(given)) == {"small", "large"}

    run = jobs.run(ADD_NUMBER, "model.factory=null", f"model.initial={given}", "rounds=1", QUIET)
    assert run.summary.status == "finished", run.summary.error
    initial = load_file(run.directory.checkpoint(0))
    assert initial["small"].tolist() == [1, 2, 3]
    assert initial["large"].tolist() == [1.5, -2.0]


def test_the_script_gets_its_arguments_and_knows_its_site(jobs):
    script = """
    import argparse, json, pathlib
    import flstream.client as flare

    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float)
    parser.add_argument("--name")
    parser.add_argument("--flag", action="store_true")
    parser.add_argument("--off", action="store_true")
    parser.add_argument("--sizes", type=int, nargs="*")
    args = parser.parse_args()
    flare.init()
    info = flare.system_info()
    pathlib.Path(info["site_dir"], "seen.json").write_text(json.dumps({**vars(args), **info}))
    while flare.is_running():
        model = flare.receive()
        assert flare.is_train() != flare.is_evaluate()
        assert model.current_round in (0, 1) and model.total_rounds == 2
        flare.log("round", model.current_round)
        flare.send(flare.FLModel(params=model.params, metrics={}))
        assert model.params is None
    print("bye")
    """
    args = ['name="a b"', "lr=0.5", "flag=true", "off=false", "sizes=[3, 4]", "none=null"]
    run = jobs.run(script, *(f"train.args.{each}" for each in args))
    assert run.summary.status == "finished", run.summary.error
    seen = json.loads((run.directory.site("site-2") / "seen.json").read_text())
    assert (seen["lr"], seen["name"], seen["sizes"]) == (0.5, "a b", [3, 4])
    assert (seen["flag"], seen["off"]) == (True, False)
    assert (seen["site_name"], seen["clients"], seen["total_rounds"]) == ("site-2", 2, 2)
    assert run.directory.site_log("site-2").read_text() == "bye\n"
    logged = [event for event in events_of(run) if type(event).__name__ == "SiteLog"]
    assert {(event.site, event.key) for event in logged} == {
        ("site-1", "round"),
        ("site-2", "round"),
    }


def test_the_resolved_job_in_the_run_directory_runs_again_to_the_same_bits(jobs, noise):
    first = jobs.run(noise, "rounds=1")
    again = load_job(first.directory.job_file)
    directory = RunDirectory.create(again.name, jobs.folder / "again")
    assert simulate(again, directory).model.digest == first.summary.model.digest


def test_the_server_stays_small_and_a_client_holds_one_model(tmp_path):
    size = 96 << 20
    job = load_job(EXCHANGE, [f"model.args.size={size}", "clients.count=2", "rounds=2"])
    summary = simulate(job, RunDirectory.create(job.name, tmp_path / "run"))
    assert summary.status == "finished", summary.error
    server = summary.memory.server
    assert server.idle_rss > 0
    assert server.peak_rss - server.idle_rss <= 48 << 20  # half the model
    assert 0 < server.peak_uss <= server.peak_rss
    assert set(summary.memory.clients) == {"site-1", "site-2"}
    for client in summary.memory.clients.values():
        assert size <= client.peak_rss - client.idle_rss <= size + (48 << 20)
    assert summary.memory.peak_total_pss >= 2 * size
    weights = load_file(tmp_path / "run" / "global.safetensors")
    assert all(bool((tensor == 3.0).all()) for tensor in weights.values())
