"""An optimizer whose state lies in files: torch's bits, in memory of its own size."""

import errno
import gc
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import flstream.client as flare
from flstream.errors import CheckpointError, ClientError
from flstream.model import file_memory

KINDS = {
    "adamw": lambda net: torch.optim.AdamW(net.parameters(), lr=0.01, foreach=False),
    "adamw, amsgrad": lambda net: torch.optim.AdamW(
        net.parameters(), lr=0.01, amsgrad=True, foreach=False
    ),
    "adam": lambda net: torch.optim.Adam(net.parameters(), weight_decay=0.1, foreach=False),
    "sgd": lambda net: torch.optim.SGD(net.parameters(), lr=0.1, foreach=False),
    "momentum": lambda net: torch.optim.SGD(
        net.parameters(), lr=0.1, momentum=0.9, dampening=0.5, weight_decay=0.01, foreach=False
    ),
    "nesterov, groups": lambda net: torch.optim.SGD(
        [{"params": net[0].parameters(), "lr": 0.01}, {"params": net[2:].parameters()}],
        lr=0.1, momentum=0.9, nesterov=True, foreach=False,
    ),
}  # fmt: skip


def trained(make, wrap=lambda optimizer: optimizer, steps=20):
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 8, 3), torch.nn.Flatten(), torch.nn.Linear(288, 40),
        torch.nn.Linear(40, 4),
    ).to(memory_format=torch.channels_last)  # fmt: skip
    optimizer = wrap(make(net))
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7)
    for _ in range(steps):
        optimizer.zero_grad()
        loss = net(torch.randn(5, 1, 8, 8)).square().mean()
        loss.backward()
        optimizer.step()
        scheduler.step()
    return net, optimizer


@pytest.fixture
def all_in_files(monkeypatch):
    """Small tensors have files, too."""
    monkeypatch.setattr(file_memory, "LEAST_BYTES", 1)


@pytest.mark.usefixtures("all_in_files")
@pytest.mark.parametrize("kind", KINDS)
def test_it_steps_to_torchs_bits(kind, tmp_path):
    net, optimizer = trained(KINDS[kind])
    other, offloaded = trained(KINDS[kind], lambda made: flare.offloaded(made, tmp_path / "state"))
    for (name, tensor), same in zip(net.named_parameters(), other.parameters(), strict=True):
        assert torch.equal(tensor, same), name
    states = [made.state_dict() for made in (optimizer, offloaded)]
    assert states[0]["state"].keys() == states[1]["state"].keys()
    for state, like in zip(*(made["state"].values() for made in states), strict=True):
        for key, value in state.items():
            assert torch.equal(torch.as_tensor(value), torch.as_tensor(like[key])), key
    assert isinstance(offloaded, type(optimizer))
    assert os.listdir(tmp_path / "state") == []  # files without names


@pytest.mark.usefixtures("all_in_files")
def test_hooks_closures_and_a_loaded_state_are_as_without_it(tmp_path):
    def continued(wrap):
        net, optimizer = trained(KINDS["momentum"], steps=3)
        other = wrap(KINDS["momentum"](net))
        other.load_state_dict(optimizer.state_dict())
        calls = []
        other.register_step_post_hook(lambda *_: calls.append("hook"))
        assert other.step(lambda: 3.5) == 3.5
        assert calls == ["hook"]
        return [*net.parameters(), *(state["momentum_buffer"] for state in other.state.values())]

    plain_values = continued(lambda made: made)
    values = continued(lambda made: flare.offloaded(made, tmp_path))
    assert all(map(torch.equal, plain_values, values))


def test_another_optimizer_or_folder_is_refused(tmp_path):
    net = torch.nn.Linear(2, 2)
    with pytest.raises(ClientError, match="was given a Adagrad; it takes AdamW, Adam and SGD"):
        flare.offloaded(torch.optim.Adagrad(net.parameters()), tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(ClientError, match="cannot be used for an optimizer's state"):
        flare.offloaded(torch.optim.SGD(net.parameters()), tmp_path / "file")


@pytest.mark.usefixtures("all_in_files")
def test_the_states_take_no_descriptors_and_go_with_the_optimizer(tmp_path):
    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count(str(tmp_path))

    net = [torch.nn.Parameter(torch.ones(2000)) for _ in range(30)]
    for parameter in net:
        parameter.grad = torch.ones_like(parameter)
    gc.collect()  # what earlier tests have left
    before = descriptors()
    optimizer = flare.offloaded(torch.optim.AdamW(net), tmp_path)
    optimizer.step()
    places = mappings()
    assert (descriptors(), places >= 2 * len(net)) == (before, True)
    optimizer.load_state_dict(optimizer.state_dict())
    assert mappings() >= 2 * len(net)
    del optimizer
    gc.collect()
    assert mappings() == 0


def test_a_full_disk_is_named_with_what_to_do(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    parameter = torch.nn.Parameter(torch.ones(20_000))
    parameter.grad = torch.ones_like(parameter)
    optimizer = flare.offloaded(torch.optim.SGD([parameter], momentum=0.9), tmp_path)
    with pytest.raises(CheckpointError, match=r"no room for a tensor of 78.1 KiB.*No space left"):
        optimizer.step()


# Prints how far each of two processes grows, the second one with its state in a folder.
MEMORY = """
import os, sys, torch
import flstream.client as flare

def anonymous():
    line = next(line for line in open("/proc/self/status") if line.startswith("RssAnon"))
    return int(line.split()[1]) >> 10

def grow(folder):
    net = torch.nn.ParameterList([torch.ones(1 << 20) for _ in range(32)])  # 128 MiB
    for parameter in net:
        parameter.grad = torch.ones_like(parameter)
    optimizer = torch.optim.AdamW(net)
    if folder:
        flare.offloaded(optimizer, folder)
    before, peak = anonymous(), 0
    for _ in range(2):
        optimizer.step()
        peak = max(peak, anonymous())
    print(peak - before, flush=True)

one = torch.nn.Parameter(torch.ones(1))
one.grad = torch.ones(1)
torch.optim.AdamW([one]).step()  # with the imports that a first step does
for folder in (None, sys.argv[1]):
    if os.fork() == 0:
        grow(folder)
        os._exit(0)
    os.wait()
"""


def test_the_state_takes_no_memory_of_the_process(tmp_path):
    command = [sys.executable, "-c", MEMORY, tmp_path]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    in_memory, in_files = map(int, done.stdout.split())
    assert in_memory > 200  # MiB: two moments of 128 MiB
    assert in_files < 80  # a step of one parameter takes a few times its 4 MiB
