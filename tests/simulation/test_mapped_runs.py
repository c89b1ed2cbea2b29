"""Models that are mapped: the same bits as in any other mode, and memory for what is written."""

import json
import os
import signal

import pytest
from nightly_cases import first_and_nightly
from training_scripts import QUIET

from flstream.telemetry.events import SitePhaseChanged

MIB = 1 << 20
# 1.1 MiB, with ties, buffers, and numbers of several kinds.
NET = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(256, 256)
        self.norm = nn.LayerNorm(256)
        self.register_buffer("seen", torch.zeros(256))
        self.brief = nn.Linear(256, 256).to(torch.bfloat16)
        self.two = nn.Linear(256, 256)
        self.two.weight = self.one.weight
        self.register_buffer("mask", torch.arange(65536) % 3 == 0)

    def forward(self, x):
        x = self.norm(torch.relu(self.one(x)))
        self.seen += x.detach().mean(0)
        return self.two(x) * self.mask[:256] + self.brief(x.to(torch.bfloat16)).float()


def build():
    torch.manual_seed(3)
    return Net()
"""
TRAIN = """
import os
import torch
import flstream.client as flare
from model import build

flare.init()
net = build()
optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
{before}
while flare.is_running():
    model = flare.receive({into})
    {load}
    x = torch.randn(32, 256)
    if flare.is_evaluate():
        net.eval()
        with torch.no_grad():
            score = net(x).square().mean().item()
        flare.send(flare.FLModel(metrics={{"score": score}}))
        continue
    net.train()
    for _ in range(2):
        optimizer.zero_grad()
        net(torch.randn(32, 256)).square().mean().backward()
        optimizer.step()
    {after}
    flare.send(flare.FLModel(params=net.state_dict()))
"""
INTO = {"into": "into=net", "load": "", "before": "", "after": ""}
LOADED = {**INTO, "into": "", "load": "net.load_state_dict(model.params)"}
STATE = {**INTO, "into": "into=net.state_dict()"}
# A state dict that was taken before shows what is received, and what is trained.
STALE = {**INTO, "before": "state = net.state_dict()", "load": "net.load_state_dict(dict(state))"}
ASSIGNED = {
    **LOADED,
    "load": "net.load_state_dict({k: v.clone() for k, v in model.params.items()})",
}


def run(jobs, mode, how=INTO, *overrides, model=NET, listener=None):
    done = jobs.run(
        TRAIN.format(**how),
        QUIET,
        "rounds=3",
        f"streaming.mode={mode}",
        *overrides,
        model=model,
        listener=listener,
    )
    assert done.summary.status == "finished", done.summary.error
    return done


def facts(done):
    """What does not depend on the way that models came."""
    rounds = [json.loads(line) for line in done.directory.events.read_text().splitlines()]
    scores = [each["metrics"] for each in rounds if each["kind"] == "evaluated"]
    return done.summary.model.digest, scores


@first_and_nightly("mode", ["push", "native", "map"])
def test_all_modes_come_to_the_same_bits(jobs, mode):
    assert facts(run(jobs, mode)) == facts(run(jobs, "pull"))


def test_tensors_that_no_view_can_show_are_copied_to_the_same_bits(jobs):
    # The count of its batches comes first, and moves all others by 8 bytes.
    batches = NET.replace("nn.LayerNorm", "nn.BatchNorm1d")
    mapped, pulled = (run(jobs, mode, model=batches) for mode in ("map", "pull"))
    assert facts(mapped) == facts(pulled)


@pytest.mark.nightly
@first_and_nightly(
    "how",
    [
        pytest.param(LOADED, id="loaded"),
        pytest.param(STATE, id="into a state dict"),
        pytest.param(STALE, id="with a state dict from before"),
        pytest.param(ASSIGNED, id="copied"),
    ],
)
def test_however_the_script_receives_it_the_bits_are_the_same(jobs, how):
    mapped = run(jobs, "map", how)
    assert facts(mapped) == facts(run(jobs, "pull", how))
    assert mapped.summary.transfer.down.bytes == 0


@pytest.mark.nightly
@first_and_nightly(
    ("overrides", "is_mapped"),
    [
        pytest.param(("clients.count=4", "clients.parallel=2"), True, id="shared workers"),
        pytest.param(
            ("filters.up=[{ type = percentile_privacy }]",),
            True,
            id="a filter of updates",
        ),
        pytest.param(('aggregation.exclude=["brief"]',), True, id="tensors left out"),
        pytest.param(("workflow.type=cyclic",), True, id="cyclic"),
        pytest.param(
            ("workflow.type=fedper", 'workflow.args.personal=["norm"]'),
            True,
            id="personal tensors",
        ),
        pytest.param(("workflow.type=swarm",), False, id="swarm, whose sites offer the model"),
    ],
)
def test_in_other_jobs_the_bits_are_the_same(jobs, overrides, is_mapped):
    mapped, pulled = (run(jobs, mode, INTO, *overrides) for mode in ("map", "pull"))
    assert facts(mapped) == facts(pulled)
    assert (mapped.summary.transfer.down.bytes == 0) is is_mapped


@pytest.mark.nightly
def test_what_is_mapped_counts_as_not_sent_again(jobs):
    transfer = run(jobs, "map").summary.transfer
    assert transfer.mode == "map"
    down = transfer.down
    assert (down.bytes, down.requests, down.chunks) == (0, 0, 0)
    pulled = run(jobs, "pull", INTO, "streaming.reuse=off").summary.transfer
    assert down.reused == pulled.down.bytes
    assert transfer.up.bytes + transfer.up.reused == pulled.up.bytes


# Keeps what it received in each round, and looks at it in the last.
KEEPER = """
import hashlib
import flstream.client as flare

flare.init()
kept = []


def digest(params):
    found = hashlib.sha256()
    for name in sorted(params):
        found.update(params[name].numpy().tobytes())
    return found.hexdigest()


while flare.is_running():
    model = flare.receive()
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"score": 1.0}))
        continue
    kept.append((dict(model.params), digest(model.params)))
    assert all(digest(params) == due for params, due in kept), "a mapped model was overwritten"
    answer = {name: each + 1 for name, each in model.params.items()}
    flare.send(flare.FLModel(params=answer), clear_cache=False)
"""
PLAIN = (
    "import torch\n\n\ndef build():\n    return {'w': torch.zeros(1 << 18), 'v': torch.ones(64)}"
)


def test_a_checkpoint_that_is_not_kept_is_not_written_over_as_long_as_it_is_mapped(jobs):
    overrides = ("rounds=6", "checkpoints.keep=1", "streaming.mode=map")
    done = jobs.run(KEEPER, QUIET, *overrides, model=PLAIN)
    assert done.summary.status == "finished", done.summary.error
    assert done.summary.transfer.down.bytes == 0


@pytest.mark.nightly
def test_a_worker_that_is_killed_with_a_mapped_model_is_replaced(jobs):
    killed = []

    def kill(event, sampler):
        # The process of the first site that trains, once.
        if isinstance(event, SitePhaseChanged) and event.state == "training" and not killed:
            killed.append(event.site)
            os.kill(sampler._watched[event.site].process._process.pid, signal.SIGKILL)

    overrides = ("clients.count=3", "clients.min_updates=2")
    done = run(jobs, "map", INTO, *overrides, listener=kill)
    assert killed
    assert done.summary.rounds_completed == 3
    assert done.summary.transfer.down.bytes == 0


@pytest.mark.nightly
def test_a_run_that_was_cut_off_goes_on_to_the_same_bits(jobs):
    # An optimizer's momentum would be that of the process alone.
    anew = {**INTO, "load": "optimizer = torch.optim.SGD(net.parameters(), lr=0.05)"}
    script = TRAIN.format(**anew)
    overrides = (QUIET, "streaming.mode=map")
    whole = jobs.run(script, "rounds=3", *overrides, model=NET)
    begun = jobs.run(script, "rounds=2", *overrides, model=NET)
    done = jobs.go_on(begun, script, "rounds=3", *overrides, model=NET)
    assert done.summary.model.digest == whole.summary.model.digest


# 32 MiB that are frozen, and 1 MiB that is trained.
FROZEN = """
import torch


def build():
    return {"frozen": torch.ones(8 << 20), "trained": torch.zeros(1 << 18)}
"""
WRITER = """
import flstream.client as flare

flare.init()


def own():
    text = open("/proc/self/smaps_rollup").read()
    return int(text.partition("Anonymous:")[2].split()[0]) << 10


while flare.is_running():
    idle = own()
    model = flare.receive()
    assert float(model.params["frozen"].sum()) > 0
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={{"grown": own() - idle}}))
        continue
    {write}
    flare.send(flare.FLModel(params=model.params, metrics={{"grown": own() - idle}}))
"""


def warnings_of(done):
    events = [json.loads(line) for line in done.directory.events.read_text().splitlines()]
    return [each["message"] for each in events if each["kind"] == "warned"]


def written(jobs, write):
    overrides = ("rounds=2", "streaming.mode=map", QUIET)
    done = jobs.run(WRITER.format(write=write), *overrides, model=FROZEN)
    assert done.summary.status == "finished", done.summary.error
    return done


def test_memory_is_taken_by_what_training_writes_to_alone(jobs):
    done = written(jobs, 'model.params["trained"].add_(1)')
    events = [json.loads(line) for line in done.directory.events.read_text().splitlines()]
    grown = [each["metrics"]["grown"] for each in events if each["kind"] == "site_update"]
    assert len(grown) == 4
    # The trained tensor, and what the interpreter happens to take; a copy would be 33 MiB.
    assert max(grown) < 16 * MIB
    assert warnings_of(done) == []


def test_a_run_that_writes_to_most_of_its_pages_gets_one_hint(jobs):
    done = written(jobs, "[each.add_(1) for each in model.params.values()]")
    (hint,) = warnings_of(done)
    assert hint.startswith("in round 1, 2 of 2 sites wrote to most of the model's pages")
    assert "streaming.mode = pull" in hint


SHORT = "import torch\n\n\ndef build():\n    return {'w': torch.zeros(100)}"


def test_a_model_that_comes_with_its_layout_is_not_mapped(jobs, noise):
    done = jobs.run(noise, QUIET, "streaming.mode=map", model=SHORT.replace("100", "1000"))
    assert done.summary.status == "finished", done.summary.error
    assert done.summary.transfer.down.bytes > 0


def test_arrays_are_mapped(jobs):
    script = """
    import flstream.client as flare

    flare.init()
    while flare.is_running():
        model = flare.receive()
        params = {name: each + 1 for name, each in model.params.items()}
        flare.send(flare.FLModel(params=params, metrics={"x": 1.0}))
    """
    overrides = (QUIET, "train.exchange_format=numpy", "workflow.args.evaluate=received")
    mapped, pulled = (
        jobs.run(script, *overrides, f"streaming.mode={mode}", model=PLAIN)
        for mode in ("map", "pull")
    )
    assert mapped.summary.status == "finished", mapped.summary.error
    assert mapped.summary.model.digest == pulled.summary.model.digest
    assert mapped.summary.transfer.down.bytes == 0
