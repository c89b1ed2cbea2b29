"""Models that are mapped: memory for what is written, and files that stay as long as needed."""

import pytest
from training_scripts import QUIET, of_kind, plain

from flstream.telemetry.events import SiteUpdate

MIB = 1 << 20
PLAIN = (
    "import torch\n\n\ndef build():\n    return {'w': torch.zeros(1 << 18), 'v': torch.ones(64)}"
)


def run(jobs, script, *overrides, **how):
    return jobs.run(script, QUIET, "streaming.mode=map", *overrides, **how).finished()


NET = """
import torch
from torch import nn


def build():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(256, 256), nn.BatchNorm1d(256))
"""


# The count of batches of a BatchNorm comes first, and moves all others by 8 bytes: no view can
# show them, and they are copied. A state dict that was taken before shows what is received.
@pytest.mark.parametrize("load", ["model.params", "dict(state)"])
def test_however_a_script_receives_it_the_bits_are_those_of_pulling(jobs, load):
    body = f"""
    net.load_state_dict({load})
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
    net(torch.randn(32, 256)).square().mean().backward()
    optimizer.step()
    net.zero_grad()
    """
    before = "from model import build\nnet = build()\nstate = net.state_dict()"
    into = "into=net" if "state" in load else ""
    script = plain(body, before=before, receive=into, sends="params=net.state_dict()")
    mapped = run(jobs, script, "rounds=3", model=NET).summary
    pulled = run(jobs, script, "rounds=3", "streaming.mode=pull", "streaming.reuse=off", model=NET)
    assert mapped.model.digest == pulled.summary.model.digest
    # What is mapped counts as not sent again.
    down = mapped.transfer.down
    assert (down.bytes, down.requests, down.chunks) == (0, 0, 0)
    assert down.reused == pulled.summary.transfer.down.bytes


# Keeps what it received in each round, and looks at it in the last.
KEEPER = plain(
    """
    kept.append((dict(params), digest(params)))
    assert all(digest(each) == due for each, due in kept), "a mapped model was overwritten"
    params = {name: each + 1 for name, each in params.items()}
    """,
    before="""
    kept = []

    def digest(params):
        return [hash(params[name].tobytes()) for name in sorted(params)]
    """,
).replace("meta=meta, metrics=metrics)", "meta=meta), clear_cache=False")


def test_a_checkpoint_is_not_written_over_as_long_as_it_is_mapped_as_arrays(jobs):
    how = ("rounds=6", "checkpoints.keep=1", "train.exchange_format=numpy")
    done = run(jobs, KEEPER, *how, model=PLAIN)
    assert done.summary.transfer.down.bytes == 0


# 32 MiB that are frozen, and 1 MiB that is trained.
FROZEN = """
import torch


def build():
    return {"frozen": torch.ones(8 << 20), "trained": torch.zeros(1 << 18)}
"""
WRITER = plain(
    """
    if model.current_round == 0:
        params["trained"].add_(1)
    else:
        [each.add_(1) for each in params.values()]
    metrics["grown"] = own() - idle
    """,
    before="""
    def own():
        text = open("/proc/self/smaps_rollup").read()
        return int(text.partition("Anonymous:")[2].split()[0]) << 10
    """,
    first="assert float(params['frozen'].sum()) > 0",
).replace("    model = flare", "    idle = own()\n    model = flare")


@pytest.mark.usefixtures("processes")  # whose memory it is
def test_memory_is_taken_by_what_training_writes_to_alone(jobs):
    done = run(jobs, WRITER, "rounds=2", "workflow.args.evaluate=received", model=FROZEN)
    grown = [each.metrics["grown"] for each in of_kind(done, SiteUpdate) if each.round == 1]
    assert len(grown) == 2
    # The trained tensor, and what the interpreter happens to take; a copy would be 33 MiB.
    assert max(grown) < 16 * MIB
