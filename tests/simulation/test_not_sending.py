"""What sites and the server have is not sent again: fewer bytes, and the same bits."""

import pytest
from nightly_cases import first_and_nightly
from training_scripts import QUIET

# 40 layers of 256 KiB with adapters of 4 KiB beside each: 10.2 MiB, of which 1.6% is trained.
ADAPTED = """
import torch
from torch import nn


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.base = nn.Parameter(torch.rand(256, 256), requires_grad=False)
        self.adapter = nn.Parameter(torch.rand(4, 256))


def build():
    torch.manual_seed(3)
    return nn.ModuleList(Layer() for _ in range(40))
"""

TRAIN = """
import torch
import flstream.client as flare
from model import build

flare.init()
net = build()
for each in net.parameters():
    each.data += 1  # another model than the first one
number = int(flare.get_site_name().removeprefix("site-"))
while flare.is_running():
    model = flare.receive({into})
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={{"score": 1.0}}))
        continue
    params = {params}
    with torch.no_grad():
        for name, tensor in params.items():
            if {trains}:
                tensor.add_(torch.randn(tensor.shape) * number)
    flare.send({answer})
"""

WHOLE = "flare.FLModel(params=params)"
IN_PLACE = {"into": "into=net", "params": "net.state_dict()", "answer": WHOLE}
ADAPTERS = {**IN_PLACE, "trains": "'adapter' in name"}
ALL = {**IN_PLACE, "trains": "True"}
ALLOCATED = {
    "into": "",
    "params": "model.params",
    "trains": "'adapter' in name",
    "answer": WHOLE,
}
DIFFERENCES = {
    **ALLOCATED,
    "params": "{name: torch.zeros_like(each) for name, each in model.params.items()}",
    "answer": 'flare.FLModel(params=params, params_type="DIFF")',
}


def run(jobs, how, *overrides):
    done = jobs.run(TRAIN.format(**how), QUIET, "rounds=3", *overrides, model=ADAPTED)
    assert done.summary.status == "finished", done.summary.error
    return done.summary


@first_and_nightly(
    "how",
    [
        pytest.param(ADAPTERS, id="adapters in place"),
        pytest.param(ALLOCATED, id="adapters in received tensors"),
        pytest.param(DIFFERENCES, id="differences"),
        pytest.param(ALL, id="all tensors"),
    ],
)
@first_and_nightly(
    "overrides",
    [
        pytest.param((), id="own workers"),
        pytest.param(("clients.count=4", "clients.parallel=2"), id="shared workers"),
        pytest.param(("streaming.tensor_download_chunk_size=4 KiB",), id="chunks of 4 KiB"),
        pytest.param(("workflow.type=swarm",), id="swarm"),
        pytest.param(("workflow.type=cyclic",), id="cyclic"),
    ],
    brief=1,
)
def test_the_model_is_the_same_whether_or_not_anything_is_reused(jobs, how, overrides):
    auto = run(jobs, how, *overrides)
    off = run(jobs, how, "streaming.reuse=off", *overrides)
    assert auto.model.digest == off.model.digest
    for one, other in (
        (auto.transfer.down, off.transfer.down),
        (auto.transfer.up, off.transfer.up),
    ):
        assert one.bytes + one.reused == other.bytes + other.reused
    assert off.transfer.down.reused == off.transfer.up.reused == 0


def test_layers_that_nobody_changes_travel_once(jobs):
    summary = run(jobs, ADAPTERS)
    size = summary.model.bytes
    down, up = summary.transfer.down, summary.transfer.up
    # Of blocks of 64 KiB, each adapter is in one or two, of four or five that a layer takes.
    assert down.bytes - 2 * size <= 0.5 * 4 * size
    assert up.bytes <= 0.5 * 6 * size
    assert up.reused >= 0.5 * 6 * size


def test_where_all_is_trained_nothing_is_reused(jobs):
    summary = run(jobs, ALL)
    assert summary.transfer.up.reused == 0
    assert summary.transfer.up.bytes == 6 * summary.model.bytes


# Some need the model as it was received, and so have it in another place than the code.
@first_and_nightly(
    "overrides",
    [
        pytest.param((), id="plain"),
        pytest.param(("streaming.codecs.up=[topk]",), id="topk"),
        pytest.param(("streaming.codecs.up=[delta,zstd]",), id="delta"),
        pytest.param(("filters.up=[{type=gaussian,sigma=0.1}]",), id="filtered"),
    ],
)
@first_and_nightly("width", [16, 256], ids=["50 KiB", "10 MiB"])
def test_a_model_that_was_evaluated_is_not_sent_again_to_be_trained(jobs, width, overrides):
    done = jobs.run(
        TRAIN.format(**ALL),
        "rounds=3",
        "workflow.args.evaluate_every=1",
        *overrides,
        model=ADAPTED.replace("256", str(width)),
    )
    assert done.summary.status == "finished", done.summary.error
    down, size = done.summary.transfer.down, done.summary.model.bytes
    # Two sites receive six models: those of rounds 1 and 2 were evaluated before they were trained.
    assert (down.bytes, down.reused) == (2 * 4 * size, 2 * 2 * size)


# A buffer that shows part of a parameter, and is left as it is where the parameter is averaged.
OVERLAPPING = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.rand(64, 1024), requires_grad=False)
        self.rest = nn.Parameter(torch.rand(1000, 1024), requires_grad=False)
        self.register_buffer("z", self.a.detach()[:32])


def build():
    torch.manual_seed(3)
    return Net()
"""


def test_a_module_with_overlapping_tensors_ends_up_the_same(jobs):
    def run(reuse):
        training = TRAIN.format(**{**IN_PLACE, "trains": "name == 'rest'"}).replace(
            "    params = net", "    net.a.data += 1\n    params = net"
        )
        how = "rounds=3", "aggregation.exclude=[z]", "workflow.args.evaluate_every=1", reuse
        done = jobs.run(training, QUIET, *how, model=OVERLAPPING)
        assert done.summary.status == "finished", done.summary.error
        return done.summary.model.digest

    assert run("streaming.reuse=auto") == run("streaming.reuse=off")
