"""DiLoCo and its streaming and overlapped forms, beside a few lines of plain torch."""

import pytest
import torch
from safetensors.torch import load_file
from training_scripts import QUIET, of_kind, results

from flstream.errors import UsageError
from flstream.job import JobError
from flstream.model.memory import MemoryBody
from flstream.model.selection import Part, selected_names
from flstream.telemetry.events import LateReceived, SitePhaseChanged

MODEL = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        torch.manual_seed(1)
        self.blocks = nn.ModuleList(nn.Linear(width, width, dtype=torch.float64) for _ in range(6))
        self.head = nn.Linear(width, 1, dtype=torch.float64)

    def forward(self, points):
        for block in self.blocks:
            points = points + block(points).tanh()
        return self.head(points)


def points_of(site, width=4):
    generator = torch.Generator().manual_seed(site)
    points = torch.randn(16, width, generator=generator, dtype=torch.float64)
    return points, points.sum(1, keepdim=True).sin() + site


def loss_of(net, site):
    points, aims = points_of(site, net.head.in_features)
    return (net(points) - aims).square().mean()
"""
SCRIPT = """
import torch
from model import Net, loss_of
import flstream.client as flare

flare.init()
info = flare.system_info()
net = Net(**info["model_args"])
optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
steps = flare.outer_steps(net, optimizer, examples=1 + info["site_index"])
for step in steps:
    loss = loss_of(net, info["site_index"])
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    steps.report(loss=loss)
"""
ONE_STEP = SCRIPT.replace("examples=", "inner_steps=1, examples=")
PROCESSES = "engine.type=local"
SITES, ROUNDS = 3, 7


@pytest.fixture
def train(jobs):
    """Runs of diloco with some arguments."""

    def run(args, *overrides, kind="diloco", rounds=ROUNDS, script=SCRIPT):
        workflow = f"workflow={{type={kind}, args={{{args}}}}}"
        counts = [f"clients.count={SITES}", f"rounds={rounds}", 'model.factory="model:Net"']
        how = [QUIET, *counts, workflow, *overrides]
        return jobs.run(script, *how, model=MODEL).finished()

    return run


def by_hand(
    *, inner_steps=6, fragments=1, overlap=0, alpha=0.5, rate=0.7, momentum=0.9, equal=False
):
    """The models after each segment, by algorithm 2 of Streaming DiLoCo."""
    space = {}
    exec(MODEL, space)
    nets = [space["Net"]() for _ in range(SITES)]
    optimizers = [torch.optim.AdamW(net.parameters(), lr=0.01) for net in nets]
    model = {name: tensor.clone() for name, tensor in nets[0].state_dict().items()}
    velocity = {name: torch.zeros_like(tensor) for name, tensor in model.items()}
    layout, order = MemoryBody.of(model).layout, tuple(model)
    parts = [selected_names("", (Part(i, fragments),), layout, order) for i in range(fragments)]
    weights = [1.0 if equal else 1.0 + site for site in range(SITES)]

    def take(net, names, share):
        with torch.no_grad():
            for name, tensor in net.state_dict().items():
                if name in names:
                    tensor.mul_(share).add_(model[name], alpha=1 - share)

    models = []
    for segment in range(ROUNDS):
        place = segment % fragments
        steps = (place + 1) * inner_steps // fragments - place * inner_steps // fragments
        before = parts[(segment - 1) % fragments] if segment else ()
        for site, (net, optimizer) in enumerate(zip(nets, optimizers, strict=True)):
            if not overlap:
                take(net, before, 0.0)
            for step in range(steps + 1):
                if overlap and step == overlap:
                    take(net, before, alpha)
                if step < steps:
                    space["loss_of"](net, site).backward()
                    optimizer.step()
                    optimizer.zero_grad()
        for name in parts[place]:
            values = [
                weight * net.state_dict()[name] for weight, net in zip(weights, nets, strict=True)
            ]
            gradient = model[name] - sum(values) / sum(weights)
            velocity[name] = momentum * velocity[name] + gradient
            model[name] = model[name] - rate * (gradient + momentum * velocity[name])
        models.append(dict(model))
    return models


CASES = {
    "plain": ("inner_steps=6", {}),
    "equal weights": ("inner_steps=6, weights=equal", {"equal": True}),
    "streaming": ("inner_steps=7, fragments=3", {"inner_steps": 7, "fragments": 3}),
    "overlapped": (
        "inner_steps=6, overlap=2, alpha=0.25",
        {"overlap": 2, "alpha": 0.25},
    ),
    "streaming and overlapped": (
        "inner_steps=6, fragments=3, overlap=2, alpha=0.5, learning_rate=0.5, momentum=0.8",
        {"fragments": 3, "overlap": 2, "rate": 0.5, "momentum": 0.8},
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_the_models_are_those_of_the_paper(train, case):
    args, values = CASES[case]
    run = train(args)
    for number, expected in enumerate(by_hand(**values), 1):
        found = load_file(run.directory.checkpoint(number))
        for name, tensor in expected.items():
            torch.testing.assert_close(found[name], tensor, rtol=1e-9, atol=1e-12)


def test_one_inner_step_with_an_outer_step_to_the_mean_is_fedavg(train):
    args = "inner_steps=1, learning_rate=1, momentum=0"
    assert results(train(args)) == results(train("", kind="fedavg", script=ONE_STEP))


BOTH = "inner_steps=6, fragments=3, overlap=1"


@pytest.mark.parametrize(
    ("args", "key", "words"),
    [
        ("inner_steps=4, fragments=8", "fragments", "at most 4"),
        ("inner_steps=6, fragments=3, overlap=3", "overlap", "at most 2"),
        ("alpha=2", "alpha", "1"),
    ],
)
def test_arguments_that_fit_no_segment_are_mistakes_of_the_job(train, args, key, words):
    with pytest.raises(JobError) as caught:
        train(args)
    assert f"workflow.args.{key}" in str(caught.value)
    assert words in str(caught.value)


def test_sites_train_while_a_fragment_travels_over_a_slow_link(train):
    wide = "model.args={width=64}"
    run = train(BOTH, PROCESSES, "network.down=2Mbit", wide, rounds=3)
    late = of_kind(run, LateReceived)
    assert {event.site for event in late} == {"site-1", "site-2", "site-3"}
    assert all(event.bytes > 60_000 for event in late)
    states = of_kind(run, SitePhaseChanged)
    assert states
    waiting = train("inner_steps=6, fragments=3", PROCESSES, "network.down=2Mbit", wide, rounds=3)
    assert not of_kind(waiting, LateReceived)


CHANGES = "streaming.codecs={up=[{type=int4}], down=[{type=int8}], down_of=changes}"


def test_changes_in_eight_bits_cost_a_quarter_and_change_little(train):
    wide = "model.args={width=64}"
    args = "inner_steps=4, fragments=3"
    plain = train(args, wide, PROCESSES, rounds=7)
    coded = train(args, wide, PROCESSES, CHANGES, rounds=7)
    # Float64: 8 bytes a number, of which 8 bits are sent, and a scale for each 256.
    first = plain.summary.model.bytes * SITES
    down = [run.summary.transfer.down.bytes - first for run in (plain, coded)]
    assert down[1] < 0.14 * down[0]
    expected, found = (load_file(run.directory.checkpoint(7)) for run in (plain, coded))
    begun = load_file(plain.directory.checkpoint(0))
    for name, tensor in expected.items():
        moved = (tensor - begun[name]).norm()
        assert (found[name] - tensor).norm() < 0.1 * moved


def test_a_site_that_lacks_the_model_before_is_sent_all_bits(train):
    some = "clients.per_round=2"
    runs = [train("inner_steps=2", CHANGES, some, *how) for how in ([], [PROCESSES])]
    assert results(runs[0]) == results(runs[1])


@pytest.mark.parametrize("args", ["inner_steps=2", "inner_steps=4, fragments=2"])
def test_a_site_that_was_left_out_begins_with_fresh_moments(train, args):
    run = train(args, "clients.per_round=1", "clients.min_updates=1", PROCESSES)
    logs = "".join(path.read_text() for path in run.directory.sites.glob("*/log.txt"))
    # By chance, a site is drawn again in the round after; all others have missed some.
    assert "new moments" in logs


@pytest.mark.parametrize("codec", ["int4", "delta, shuffle, zstd"])
def test_one_overlapped_fragment_passes_codecs_that_compare(train, codec):
    args, coded = "inner_steps=4, overlap=2", f"streaming.codecs.up=[{codec}]"
    runs = [train(args, coded, *how, rounds=3) for how in ([], [PROCESSES, "clients.parallel=1"])]
    assert results(runs[0]) == results(runs[1])


PLAIN = """
import torch
from model import Net, loss_of
import flstream.client as flare

flare.init()
info = flare.system_info()
net = Net(**info["model_args"])
while flare.is_running():
    model = flare.receive(into=net)
    flare.send(flare.FLModel(params=net.state_dict()))
"""


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("inner_steps=4, overlap=1", "without late tensors (overlap)"),
        ("inner_steps=4, fragments=2", "(fragments = 1)"),
    ],
)
def test_a_script_that_keeps_no_replica_is_told_to(jobs, args, words):
    workflow = f"workflow={{type=diloco, args={{{args}}}}}"
    counts = ["clients.count=2", "rounds=3", 'model.factory="model:Net"']
    run = jobs.run(PLAIN, QUIET, *counts, workflow, model=MODEL)
    assert run.summary.status == "failed"
    assert "flare.outer_steps" in run.summary.error
    assert words in run.summary.error


def test_a_script_without_replica_does_a_task_as_the_inner_steps_of_one_fragment(train):
    runs = [train("inner_steps=4", *how, script=PLAIN, rounds=2) for how in ([], [PROCESSES])]
    assert results(runs[0]) == results(runs[1])


def test_the_segment_that_nobody_folds_is_no_failure(train):
    slow = SCRIPT.replace(
        "    loss.backward()", "    __import__('time').sleep(0.1)\n    loss.backward()"
    )
    run = train("inner_steps=6, overlap=1", PROCESSES, script=slow, rounds=2)
    assert run.summary.failures == []


def test_a_codec_that_adds_up_what_it_leaves_out_needs_the_same_tensors(train):
    with pytest.raises(UsageError, match="which adds what it leaves out to the next update"):
        train("inner_steps=4, fragments=2", "streaming.codecs.up=[topk]")


ABSENT = SCRIPT.replace(
    "    loss = loss_of",
    "    if info['site_index'] == 2 and FAILS: raise ValueError('empty')\n    loss = loss_of",
)


@pytest.mark.parametrize(
    ("absence", "script"),
    [
        ("devices.phone.dropout=30%", SCRIPT),
        ("devices.phone={}", ABSENT.replace("FAILS", "step == 9")),  # before the late tensors
        ("devices.phone={}", ABSENT.replace("FAILS", "step == 11")),  # after them
    ],
)
def test_sites_that_are_lost_before_late_tensors_are_there_hold_nobody_up(train, absence, script):
    how = ["time.clock=virtual", absence, "clients.min_updates=1", "clients.suspend_after=0"]
    run = train("inner_steps=4, overlap=2", *how, script=script)
    other = train("inner_steps=4, overlap=2", *how, PROCESSES, script=script)
    assert run.summary.failures
    assert run.summary.model.digest == other.summary.model.digest
    assert run.summary.simulated_seconds == other.summary.simulated_seconds
