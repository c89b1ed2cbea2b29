"""Jobs that begin with somebody's weights, in any format, under the factory's names and dtypes."""

import json
import re

import pytest
import torch
from nightly_cases import first_and_nightly
from run_fixtures import shared_host_for
from safetensors.torch import load_file, save_file
from training_scripts import plain

from flstream.errors import ModelError
from flstream.model.checkpoint import FileSource
from flstream.simulation.probe import probe

MODEL = """
import torch


class Tied(torch.nn.Module):
    def __init__(self, dtype="float32"):
        super().__init__()
        self.wte = torch.nn.Embedding(6, 4)
        self.head = torch.nn.Linear(4, 6, bias=False)
        self.head.weight = self.wte.weight
        self.norm = torch.nn.Linear(4, 4)
        self.to(getattr(torch, dtype))


def tied(dtype="float32"):
    return Tied(dtype), "a tokenizer"
"""
VALUES = {
    "wte.weight": torch.arange(24.0).reshape(6, 4) / 8,
    "norm.weight": torch.arange(16.0).reshape(4, 4),
    "norm.bias": torch.ones(4),
}
ONE_ROUND = ("rounds=1", "clients.count=1", "workflow.args.evaluate_every=0", "model.args={}")


def save(folder, values, form="safetensors"):
    if form == "bin":
        torch.save(values, folder / "pytorch_model.bin")
        return folder / "pytorch_model.bin"
    if form == "safetensors":
        save_file(values, folder / "w.safetensors")
        return folder / "w.safetensors"
    path = folder / "model.safetensors.index.json"
    for name in values:
        save_file({name: values[name]}, folder / f"{name}.safetensors")
    homes = {name: f"{name}.safetensors" for name in values}
    path.write_text(json.dumps({"metadata": {}, "weight_map": homes}))
    return path


@first_and_nightly("form", ["index", "bin"])
def test_a_model_with_ties_begins_with_a_file_of_any_format(jobs, tmp_path, form):
    # As save_pretrained writes it: a tied tensor is there under one of its names.
    path = save(tmp_path, VALUES, form)
    run = jobs.run(
        plain(), *ONE_ROUND, "model.factory=model:tied", f"model.initial={path}", model=MODEL
    ).finished()
    initial = FileSource(run.directory.checkpoint(0))
    assert initial.layout.aliases == {"wte.weight": "head.weight"}
    found = load_file(run.directory.checkpoint(1))
    assert torch.equal(found["head.weight"], VALUES["wte.weight"])
    assert torch.equal(found["norm.weight"], VALUES["norm.weight"])
    # The shards of an index are compared on resume, as the file itself is.
    listed = json.loads(run.directory.job_files.read_text())["files"]["model.initial"]
    assert len(listed) == (4 if form == "index" else 1)


@first_and_nightly(
    ("bias", "strict", "error"),
    [(1 / 3, "true", "tensor 'norm.bias'"), (1 / 3, "false", None), (1.0, "true", None)],
    brief=2,
)
def test_values_that_a_cast_to_the_factorys_dtype_would_change_are_refused_or_rounded(
    jobs, tmp_path, bias, strict, error
):
    path = save(tmp_path, {**VALUES, "norm.bias": torch.full((4,), bias)})
    args = ("model.factory=model:tied", "model.args.dtype=bfloat16", f"model.initial={path}")
    run = jobs.run(plain(), *ONE_ROUND[:3], *args, f"model.strict={strict}", model=MODEL)
    if error is None:
        assert run.summary.status == "finished", run.summary.error
        initial = FileSource(run.directory.checkpoint(0)).layout
        assert {spec.dtype for spec in initial.tensors} == {"BF16"}
    else:
        assert run.summary.status == "failed"
        assert error in run.summary.error
        assert "model.strict = false" in run.summary.error


def job_of(jobs, tmp_path, values, *how):
    path = save(tmp_path, values)
    how = ("model.factory=model:tied", f"model.initial={path}", *how)
    return jobs.make(plain(), *ONE_ROUND, *how, model=MODEL)


PART = {"wte.weight": VALUES["wte.weight"], "old": torch.ones(1)}
LACKS = "lacks 2 tensors ('norm.bias', 'norm.weight')"


def probed(job):
    with shared_host_for(job) as host:
        return probe(job, host)


def test_tensors_that_a_file_lacks_are_listed_before_a_run(jobs, tmp_path):
    with pytest.raises(
        ModelError, match=re.escape(f"{LACKS} of the model; it has 1 tensor ('old'")
    ):
        probed(job_of(jobs, tmp_path, PART))


@pytest.mark.nightly
def test_what_a_loose_start_does_not_share_is_the_factorys_and_nothing_at_all_is_refused(
    jobs, tmp_path
):
    loose = "model.strict=false"
    some = job_of(jobs, tmp_path, PART, loose)
    assert LACKS in probed(some).differences
    how = (*ONE_ROUND, "model.factory=model:tied", f"model.initial={some.model.initial}", loose)
    found = load_file(jobs.run(plain(), *how, model=MODEL).directory.checkpoint(0))
    assert torch.equal(found["head.weight"], VALUES["wte.weight"])
    assert found["norm.bias"].abs().sum() > 0
    assert "old" not in found
    whole = job_of(jobs, tmp_path, VALUES, loose)
    assert probed(whole).differences == ""
    # As the weights of a base model are, without the prefix that its heads have.
    none = job_of(jobs, tmp_path, {f"base.{name}": each for name, each in VALUES.items()}, loose)
    with pytest.raises(ModelError, match="no tensor of the file is the model's"):
        probed(none)
