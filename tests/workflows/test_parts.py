"""Trainings of parts of a model: what sites are sent, and what they send back."""

import textwrap

import pytest
import torch
from safetensors.torch import load_file
from training_scripts import QUIET, results

FACTORY = 'model={factory="parts.py:build"}'
PROCESSES = "engine.type=local"
# The model of a site of its own: it takes what it receives, adds to all of it, and keeps it.
REPLICA = """
import json
import torch
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"accuracy": 0.0}))
        continue
    path = flare.system_info()["state_dir"] + "/replica.pt"
    received = {name: tensor.clone() for name, tensor in model.params.items()}
    try:
        replica = torch.load(path, weights_only=True)
    except FileNotFoundError:
        replica = {}
    replica |= received
    for name, tensor in replica.items():
        if tensor.is_floating_point():
            replica[name] = tensor + torch.randn(tensor.shape).to(tensor.dtype)
    torch.save(replica, path)
    index = int(flare.get_site_name().rpartition("-")[2])
    metrics = {name: 1.0 for name in received}
    params = dict(replica)
    # LATE
    flare.send(flare.FLModel(params=params, metrics=metrics, meta={"num_examples": index}))
"""
MODEL = """
import torch

def build(elements: int = 8):
    torch.manual_seed(1)
    names = ["embed.weight", *(f"blocks.{i}.weight" for i in range(5)), "head.bias"]
    return {name: torch.randn(elements) for name in names}
"""


@pytest.fixture
def parted(flows):
    """Runs of workflows on a model of seven tensors, at sites that keep it."""
    (flows.jobs.folder / "parts.py").write_text(textwrap.dedent(MODEL))

    def run(text, *overrides, script=REPLICA):
        return flows.finish(text, QUIET, FACTORY, *overrides, script=script)

    return run


def models(run, rounds):
    return [
        load_file(run.directory.checkpoints / f"round-{number:04d}.safetensors")
        for number in range(rounds + 1)
    ]


BLOCKS = r"""
if number == 1:
    updates = run.train(model, run.sites, send=[r"blocks\.[01]\..*"])
else:
    updates = run.train(model, run.sites, receive=[r"blocks\.[01]\.weight"], send=["head.bias"])
if {is_read}:
    see([sorted(update.metrics) for update in updates])
model = run.fold(model, updates)
"""


@pytest.mark.parametrize("is_read", [False, True])
@pytest.mark.parametrize("workers", [[], [PROCESSES], [PROCESSES, "clients.parallel=1"]])
def test_sites_are_sent_some_tensors_and_send_others_back(parted, flows, workers, is_read):
    run = parted(BLOCKS.format(is_read=is_read), "rounds=2", "clients.count=3", *workers)
    first, second, third = models(run, 2)
    changed = {name for name in first if not torch.equal(first[name], second[name])}
    assert changed == {"blocks.0.weight", "blocks.1.weight"}
    changed = {name for name in first if not torch.equal(second[name], third[name])}
    assert changed == {"head.bias"}
    if is_read:
        of_round_2 = eval(flows.seen()[1])
        assert of_round_2 == [["blocks.0.weight", "blocks.1.weight"]] * 3


LATE = REPLICA.replace(
    "    torch.save(",
    """    from flstream.client.session import current
    for name, tensor in (current().turn.late() or {}).items():
        replica[name] = 0.25 * replica[name] + 0.75 * tensor
    torch.save(""",
)
OVERLAPPED = """
def flow(run):
    model, parts = run.initial_model(), run.partition(3)
    for number in run.rounds():
        part = parts[(number - 1) % 3]
        if number == 1:
            for site in run.sites:
                run.start(site, model, send=[part])
        answers = [run.next() for _ in run.in_flight]
        answers.sort(key=lambda answer: answer.site)
        for site in run.sites:
            run.start(site, model, receive=[], send=[parts[number % 3]], late=[part])
        break_off(f"before fold {number}")
        model = run.fold(model, answers)
        break_off(f"after fold {number}")
    return model
"""


THREE = ["rounds=5", "clients.count=3"]


@pytest.mark.parametrize(
    "how",
    [
        [PROCESSES],
        [PROCESSES, "clients.parallel=1"],
        [PROCESSES, "streaming.tensor_download_chunk_size=4KiB"],
        [PROCESSES, "network.up=50Mbit", "network.down=50Mbit"],
    ],
)
def test_tensors_that_come_while_sites_train_decide_the_same_bits_anywhere(parted, how):
    inline = parted(OVERLAPPED, *THREE, script=LATE)
    assert results(parted(OVERLAPPED, *THREE, *how, script=LATE)) == results(inline)


@pytest.mark.parametrize("place", ["before fold 1", "after fold 3", "before fold 5"])
@pytest.mark.parametrize("how", [[PROCESSES], []])
def test_a_run_with_late_tensors_that_is_broken_off_ends_in_the_same_bits(
    parted, flows, place, how
):
    whole = parted(OVERLAPPED, *THREE, *how, script=LATE)
    settings = QUIET, FACTORY, *THREE, *how
    broken = flows.broken(OVERLAPPED, *settings, script=LATE, place=place)
    again = flows.resume(broken, OVERLAPPED, *settings, script=LATE)
    assert results(again) == results(whole)
