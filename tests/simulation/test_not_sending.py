"""What sites and the server have is not sent again: fewer bytes, and the same bits."""

import pytest
from training_scripts import QUIET, plain

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

PREPARED = """
from model import build

net = build()
for each in net.parameters():
    each.data += 1  # another model than the first one
"""


def in_place(trains):
    """Trains some tensors of a module that receives the model."""
    body = f"""
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            if {trains}:
                tensor.add_(torch.randn(tensor.shape) * int(site[-1]))
    """
    return plain(body, before=PREPARED, receive="into=net", sends="params=net.state_dict()")


# On one machine without a link, all of a body is read: that takes less time than to compare it.
FAR = ("engine.type=local", "network.latency=1 ms")


def run(jobs, script, *overrides, model=ADAPTED):
    done = jobs.run(script, "rounds=3", *FAR, *overrides, model=model).finished()
    return done.summary


def test_layers_that_nobody_changes_travel_once_to_the_same_bits(jobs):
    auto = run(jobs, in_place("'adapter' in name"), QUIET)
    off = run(jobs, in_place("'adapter' in name"), QUIET, "streaming.reuse=off")
    assert auto.model.digest == off.model.digest
    down, up, size = auto.transfer.down, auto.transfer.up, auto.model.bytes
    assert down.bytes + down.reused == off.transfer.down.bytes
    assert up.bytes + up.reused == off.transfer.up.bytes
    # Of blocks of 64 KiB, each adapter is in one or two, of four or five that a layer takes.
    assert down.bytes - 2 * size <= 0.5 * 4 * size
    assert up.bytes <= 0.5 * 6 * size


@pytest.mark.parametrize(("width", "codecs"), [(16, "topk"), (256, "")])
def test_a_model_that_was_evaluated_is_not_sent_again_to_be_trained(jobs, width, codecs):
    # A codec needs the model as it was received, and so has it in another place than the code.
    how = ["workflow.args.evaluate_every=1", f"streaming.codecs.up=[{codecs}]"]
    summary = run(jobs, in_place("True"), *how, model=ADAPTED.replace("256", str(width)))
    down, size = summary.transfer.down, summary.model.bytes
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
    script = in_place("name == 'rest'").replace(
        "    with torch.no_grad", "    net.a.data += 1\n    with torch.no_grad"
    )
    how = "aggregation.exclude=[z]", "workflow.args.evaluate_every=1"
    digests = {
        run(jobs, script, *how, f"streaming.reuse={reuse}", model=OVERLAPPING).model.digest
        for reuse in ("auto", "off")
    }
    assert len(digests) == 1
