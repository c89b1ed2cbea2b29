"""What a model is like is found out without its bytes, where its factory allows that."""

import pytest
import torch
from run_fixtures import shared_host_for
from safetensors.torch import save_file

from flstream.errors import CheckpointError, ModelError
from flstream.job import load_job
from flstream.model.memory import MemoryBody
from flstream.simulation.probe import probe

MODEL = """
import os
import numpy as np
import torch


class Tied(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.one = torch.nn.Linear(4, 4)
        self.two = torch.nn.Linear(4, 4)
        self.two.weight = self.one.weight
        self.register_buffer("steps", torch.tensor(0))


def larger_than_memory():
    return torch.nn.ModuleDict({"big": torch.nn.Linear(1 << 22, 1 << 22)})


def arrays():
    return {"w": np.zeros((3, 5), np.float16)}


def needs_values():
    return {"w": torch.zeros(int(torch.ones(4).sum()), 2)}


def fails():
    raise RuntimeError("no weights here")


dies = lambda: os.kill(os.getpid(), 9)
nothing = lambda: None
"""


@pytest.fixture(scope="module")
def job_of(tmp_path_factory):
    folder = tmp_path_factory.mktemp("job")
    (folder / "model.py").write_text(MODEL)
    (folder / "client.py").write_text("")
    (folder / "job.conf").write_text(
        "name = test, rounds = 1, clients.count = 1, train.script = client.py"
    )

    def make(factory, *overrides):
        return load_job(folder / "job.conf", [f"model.factory={factory}", *overrides])

    return make


@pytest.fixture
def host(fork_server, job_of):
    return shared_host_for(job_of("model:Tied"))


def shapes(layout):
    return {spec.name: (spec.dtype, spec.shape) for spec in layout.tensors}


def test_a_module_is_described_as_it_would_be_built_with_its_ties(job_of, host):
    scope: dict[str, type[torch.nn.Module]] = {}
    exec(MODEL, scope)
    built = MemoryBody.of(scope["Tied"]().state_dict()).layout
    assert built.aliases == {"two.weight": "one.weight"}
    assert probe(job_of("model:Tied"), host).layout == built
    # One that is larger than memory, without its bytes; and one that needs values is built.
    large = probe(job_of("model:larger_than_memory"), host).layout
    assert large.nbytes == (1 << 46) + (1 << 24)
    assert shapes(probe(job_of("model:needs_values"), host).layout) == {"w": ("F32", (4, 2))}
    assert shapes(probe(job_of("model:arrays"), host).layout) == {"w": ("F16", (3, 5))}


@pytest.mark.parametrize(
    ("factory", "message"),
    [
        ("fails", r"model.py:fails raised RuntimeError: no weights here \(.*model.py, line \d+\)"),
        ("nothing", "returned a NoneType; it must return a torch module, a dict"),
        ("dies", "the process that called it was killed by SIGKILL: the machine may have too"),
    ],
)
def test_what_is_wrong_with_a_factory_is_said(job_of, host, factory, message):
    with pytest.raises(ModelError, match=message):
        probe(job_of(f"model:{factory}"), host)


def test_a_file_is_described_by_its_header_and_no_factory_is_called(job_of, host, tmp_path):
    save_file({"w": torch.zeros(3), "n": torch.tensor(1)}, tmp_path / "m.safetensors")
    job = job_of("model:fails", f"model.initial={tmp_path}/m.safetensors", "model.factory=null")
    assert shapes(probe(job, host).layout) == {"n": ("I64", ()), "w": ("F32", (3,))}
    (tmp_path / "m.safetensors").write_bytes(b"\xff" * 20)
    with pytest.raises(CheckpointError, match=r"m\.safetensors"):
        probe(job, host)
