"""One base for all sites: same bits as one of each site's own, built once, and never written to."""

import os
import re
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from importlib.util import find_spec

import pytest
import torch
from run_fixtures import CACHE, INLINE, share_host, shared_host_for
from safetensors.torch import load_file
from training_scripts import QUIET

import flstream.client as flare
from flstream.client.base import meta_module
from flstream.client.seeding import seed_everything
from flstream.engines.ray_node import build_base
from flstream.errors import ClientError, ModelError, SimulationError, UsageError
from flstream.job import JobError
from flstream.job.model_section import BaseSection
from flstream.model.shared_base import SharedBase, base_file, bases_folder, held_tensors, write_base
from flstream.simulation.forecast import Available, lacks
from flstream.simulation.probe import check_job

# Sizes are no multiples of 64 bytes; a weight is tied; a buffer and an attribute are in no state.
MODEL = """
import os
import signal
from pathlib import Path

import torch
from torch import nn
import flstream.client as flare

HERE = Path(__file__).parent


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 7)
        self.second = nn.Linear(7, 7, bias=False)
        self.tied = nn.Linear(7, 7, bias=False)
        self.tied.weight = self.second.weight
        self.norm = nn.BatchNorm1d(7)
        self.register_buffer("scale", torch.arange(5) / 4, persistent=False)
        self.shift = torch.full((7,), 0.5)

    def forward(self, x):
        hidden = self.first(x * self.scale) + self.shift
        return self.norm(self.tied(torch.relu(self.second(hidden))))


class Adapted(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.frozen = [base]  # not among its parameters
        self.adapter = nn.Linear(7, 2, bias=False)

    def forward(self, x):
        return self.adapter(self.frozen[0](x))


def base(factor=1.0):
    with (HERE / "built.txt").open("a") as file:
        file.write(f"{torch.empty(0).device}\\n")
    if (HERE / "kill").exists():
        (HERE / "kill").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    net = Net().eval().requires_grad_(False)
    if (HERE / "other").exists():
        net.first.bias += 1
    return net, "a tokenizer"


def build():
    return Adapted(flare.base_model())


def own():
    with torch.random.fork_rng():
        net = base()[0]
    return Adapted(net)


def on_the_cpu():
    net = base()[0]
    net.shift = torch.full((7,), float(net.first.weight.sum()))
    return net
"""
SCRIPT = """
import torch
import flstream.client as flare
from model import {build}

flare.init()
net = {build}()
frozen = net.frozen[0]
while flare.is_running():
    flare.receive(into=net)
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={{"accuracy": 1.0}}))
        continue
    x, y = torch.randn(16, 5), torch.randint(0, 2, (16,))
    optimizer = torch.optim.AdamW(net.parameters(), 0.1)
    if flare.get_site_name() == "site-2":
        {mistake}
    for _ in range(2):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(x), y).backward()
        optimizer.step()
    flare.send(flare.FLModel(params=net.state_dict()))
"""
BASE = "model.base=model:base"
SIZE = 4 * (35 + 7 + 49 + 4 * 7 + 5 + 7) + 8
MISTAKES = {
    "in place": ("frozen.first.weight.requires_grad_(False).add_(1)", "first.weight"),
    "data": ("frozen.second.weight.data += 1", "second.weight"),
    "numpy": ("frozen.first.bias.numpy()[2] = 7", "first.bias"),
    "buffer": ("frozen.norm.train(); frozen(x)", "norm.num_batches_tracked"),
    "optimizer": (
        "frozen.requires_grad_(True); "
        "optimizer = torch.optim.AdamW([*net.parameters(), *frozen.parameters()])",
        "first.bias",
    ),
}


def script(build="build", mistake="pass"):
    return SCRIPT.format(build=build, mistake=mistake)


@pytest.fixture(autouse=True)
def bases(monkeypatch):
    """The folder of bases, which is empty; it is that of the processes of tests, too."""
    monkeypatch.setattr(sys, "path", list(sys.path))  # a factory's folder is put in front
    monkeypatch.setenv("XDG_CACHE_HOME", CACHE)
    shutil.rmtree(bases_folder(), ignore_errors=True)
    yield bases_folder()
    shutil.rmtree(bases_folder(), ignore_errors=True)


def built(folder):
    """How often the base was built with its values."""
    return (folder / "built.txt").read_text().split().count("cpu")


@pytest.mark.parametrize("sharing", [[], ["clients.parallel=1"]], ids=["own", "shared"])
def test_bits_are_those_of_a_base_of_each_sites_own(jobs, bases, sharing):
    shared = jobs.run(script(), QUIET, BASE, *sharing, model=MODEL).finished()
    (file,) = bases.glob("*.safetensors")
    facts = shared.summary.model
    assert (f"{facts.base_digest}.safetensors", facts.base_bytes) == (file.name, SIZE)
    assert set(load_file(shared.directory.final_model)) == {"adapter.weight"}
    # A factory's draws begin with the job's seed, wherever it is called.
    own = script("own").replace("net = own()", "torch.manual_seed(7); net = own()")
    alone = jobs.run(own, QUIET, "model.factory=model:own", *sharing, model=MODEL).finished()
    assert alone.summary.model.digest == shared.summary.model.digest
    assert alone.summary.model.base_bytes is not facts.base_bytes


@pytest.mark.usefixtures("processes")
def test_processes_and_ranks_and_the_evaluator_map_it_and_end_in_equal_bits(jobs, bases):
    (jobs.folder / "score.py").write_text(script())
    command = ["train.command=python", "evaluate.at=server", "evaluate.script=score.py"]
    for options in ([], ["clients.count=1", *command]):
        run = jobs.run(script(), BASE, *options, model=MODEL).finished().summary
        alone = options[:1]  # of its interpreters, each of which imports torch
        inline = jobs.run(script(), BASE, *alone, *INLINE, model=MODEL).summary
        assert run.model.digest == inline.model.digest
    assert len(list(bases.glob("*.safetensors"))) == 1


@pytest.mark.parametrize(("mistake", "name"), MISTAKES.values(), ids=MISTAKES)
def test_writing_to_the_base_names_the_tensor_and_leaves_the_others_base_as_it_was(
    jobs, bases, mistake, name
):
    sharing = [QUIET, BASE, "clients.min_updates=1", "clients.parallel=1", "rounds=2"]
    summary = jobs.run(script(mistake=mistake), *sharing, model=MODEL).finished().summary
    assert {failure.site for failure in summary.failures} == {"site-2"}
    assert f"written to '{name}'" in summary.failures[0].reason
    # site-1 is trained in the same process, and its base has no trace of it.
    alone = jobs.run(script(), *sharing, model=MODEL).summary
    gone = script(mistake="raise SystemExit(1)")
    assert jobs.run(gone, *sharing, model=MODEL).summary.model.digest == summary.model.digest
    assert alone.model.base_digest == summary.model.base_digest
    assert base_file(summary.model.base_digest).exists()


def test_a_damaged_file_is_written_again(jobs, bases):
    digest = jobs.run(script(), BASE, model=MODEL).summary.model.digest
    (file,) = bases.glob("*.safetensors")
    whole = file.read_bytes()
    for damaged in (whole[:-1] + b"?", whole[:100], b""):
        file.chmod(0o644)
        file.write_bytes(damaged)
        assert jobs.run(script(), BASE, model=MODEL).summary.model.digest == digest
        assert file.read_bytes() == whole
    assert built(jobs.folder) == 4


def test_a_base_that_changed_is_refused_by_both_digests(jobs):
    run = jobs.run(script(), BASE, "rounds=1", model=MODEL)
    (jobs.folder / "other").touch()
    with pytest.raises(UsageError) as caught:
        jobs.go_on(run, script(), BASE, "rounds=2", model=MODEL)
    before, now = re.search(
        r"base (\w{12}), and model.base is (\w{12})", str(caught.value)
    ).groups()
    assert run.summary.model.base_digest.startswith(before)
    assert before != now
    (jobs.folder / "other").unlink()
    more = jobs.go_on(run, script(), BASE, "rounds=2", model=MODEL)
    whole = jobs.run(script(), BASE, "rounds=2", model=MODEL)
    assert more.summary.model == whole.summary.model


@pytest.mark.usefixtures("processes")
def test_a_run_that_is_killed_while_it_builds_the_base_resumes(jobs, bases):
    jobs.folder.joinpath("kill").touch()
    run = jobs.run(script(), BASE, QUIET, model=MODEL)
    assert "builds the base (model.base) was killed by SIGKILL" in run.summary.error
    digest = jobs.run(script(), BASE, QUIET, model=MODEL).summary.model.base_digest
    file = base_file(digest)
    file.rename(f"{file}.tmp")  # as a kill in the middle of writing leaves it
    jobs.go_on(run, script(), BASE, QUIET, model=MODEL).finished()
    assert [path.name for path in bases.iterdir() if path.suffix != ".lock"] == [file.name]
    os.utime(file, (0, 0))
    jobs.go_on(run, script(), BASE, QUIET, "rounds=3", model=MODEL)
    assert file.stat().st_mtime > 0  # so that it is not deleted as one that no run uses


@pytest.mark.usefixtures("processes")
def test_two_runs_at_once_share_one_file(jobs, bases):
    job = jobs.make(script(), BASE, QUIET, model=MODEL)
    with ThreadPoolExecutor() as pool, shared_host_for(job) as host:
        from flstream.engines.child_process import ProcessCall
        from flstream.telemetry.events import BaseReady

        target = "flstream.simulation.base_builder:built_here"
        calls = [ProcessCall(host, "base", BaseReady, target, job) for _ in range(2)]
        digests = {result.digest for result in pool.map(ProcessCall.result, calls)}
    assert [path.stem for path in bases.glob("*.safetensors")] == [*digests]


def test_validate_says_its_size_and_builds_none(jobs, bases, monkeypatch):
    share_host(monkeypatch)
    job = jobs.make(script(), BASE, model=MODEL)
    probe, need = check_job(job, jobs.folder / "job.conf")
    assert probe.layout.names == ["adapter.weight"]
    assert probe.base_bytes == need.measured.base_bytes == SIZE
    room = Available(need.building_bytes - 1, None, jobs.folder)
    [lack] = lacks(job, probe.layout, replace(need, total_bytes=need.building_bytes), room)
    assert "parallel" not in lack.change
    assert not bases.exists()
    assert built(jobs.folder) == 0
    half = jobs.make(script(), "model.base={factory=model:base, dtype=bfloat16}", model=MODEL)
    need = check_job(half, jobs.folder / "job.conf")[1]
    assert need.measured.base_bytes == 2 * (35 + 7 + 49 + 4 * 7) + 4 * (5 + 7) + 8


def test_a_base_of_another_dtype_keeps_buffers_of_no_state_and_draws_no_number(
    tmp_path, monkeypatch
):
    # This process imports it: under a name that no other job's module has.
    (tmp_path / "base_of_another_dtype.py").write_text(MODEL)
    monkeypatch.setattr(sys, "path", [*sys.path])
    section = BaseSection(factory=f"{tmp_path}/base_of_another_dtype.py:base", dtype="float16")
    from flstream.client.base import base_model, enter_base, present_base
    from flstream.simulation.base_builder import _build

    before = present_base()
    try:
        enter_base(section.built(_build(section, 3)[0]))
        seed_everything(5)
        state = torch.get_rng_state()
        net, other = base_model(), base_model()
        assert torch.equal(torch.get_rng_state(), state)
    finally:
        enter_base(before)
    assert net.first.weight.dtype == net.norm.running_mean.dtype == torch.float16
    assert net.scale.dtype == net.shift.dtype == torch.float32
    assert net.scale.tolist() == [0, 0.25, 0.5, 0.75, 1]
    assert net.tied.weight is net.second.weight
    assert net.tied.weight is not other.tied.weight
    assert not any(tensor.requires_grad for _, tensor, _ in held_tensors(net))
    assert all(tensor.data_ptr() % 64 == 0 for _, tensor, _ in held_tensors(net))
    assert net.tied.weight.data_ptr() == other.tied.weight.data_ptr()
    assert not (net.training)
    assert not (net.norm.training)


def test_mistakes_are_sentences(jobs, tmp_path):
    with pytest.raises(ClientError, match=r"set model\.base in the job file"):
        flare.base_model()
    run = jobs.run(script(), model=MODEL)
    assert "set model.base in the job file" in run.summary.error
    run = jobs.run(script(), "model.base=model:on_the_cpu", model=MODEL)
    assert "cannot be built on torch's meta device" in run.summary.error
    with pytest.raises(UsageError, match=r"model\.base\.factory .*:HERE is a PosixPath"):
        jobs.run(script(), "model.base=model:HERE", model=MODEL)
    flaws = {
        "{hf=/nowhere}": "there is no folder /nowhere",
        "{dtype=float16}": "model.base.dtype: given; must be left out without",
        "{hf=some/name, factory=model:base}": "given with factory",
        "{hf=some/name, args={size=1}}": "model.base.args",
    }
    if find_spec("transformers") is None:
        flaws["{hf=some/name}"] = "there is no module transformers"
        flaws = {key: flaw for key, flaw in flaws.items() if "some/name," not in key}
    for value, flaw in flaws.items():
        with pytest.raises(JobError, match=flaw):
            jobs.make(script(), f"model.base={value}", model=MODEL)


def test_a_module_that_differs_on_the_meta_device_is_refused(tmp_path):
    digest, _ = write_base(torch.nn.Linear(3, 2), {"format": "pt"})
    base = SharedBase(base_file(digest))
    with pytest.raises(ModelError, match="such as bias"):
        base.fill(torch.nn.Linear(3, 2, bias=False))
    listed = torch.nn.Linear(3, 2)
    listed.kept = {"a": torch.ones(2)}
    with pytest.raises(ModelError, match="kept is a dict of tensors"):
        write_base(listed, {})
    (tmp_path / "m.py").write_text("def number():\n    return 3\n")
    with pytest.raises(ModelError, match="returned a int"):
        meta_module(BaseSection(factory=f"{tmp_path}/m.py:number"), {})


@pytest.mark.usefixtures("processes")
def test_a_node_of_a_cluster_builds_the_servers_base_or_none(jobs, tmp_path):
    log, job = tmp_path / "builder.log", jobs.make(script(), BASE, model=MODEL)
    digest = jobs.run(script(), BASE, QUIET, model=MODEL).summary.model.base_digest
    shutil.rmtree(bases_folder())
    with shared_host_for(job) as host:
        build_base(host, job.with_base(digest), log)
        with pytest.raises(
            SimulationError, match=f"base {digest[:12]} .*, and the server 0{{12}};"
        ):
            build_base(host, job.with_base("0" * 32), log)
    assert base_file(digest).exists()


@pytest.mark.parametrize(("kind", "name"), [("strided", "weight"), ("hidden", "parts")])
def test_a_base_that_its_file_would_change_is_refused_by_the_tensors_name(kind, name, bases):
    module = torch.nn.Linear(4, 3)
    if kind == "strided":
        module.weight = torch.nn.Parameter(torch.randn(4, 3).t())
    else:
        module.parts = [torch.nn.Linear(2, 2)]
    with pytest.raises(ModelError, match=name):
        write_base(module, {"format": "pt"})
