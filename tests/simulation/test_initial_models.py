"""Initial models: those in files have the bits of whole ones, and nobody holds them."""

import errno
import json
import os
import subprocess
import sys
from pathlib import Path

import initial_factories
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from training_scripts import plain

from flstream.errors import CheckpointError, ModelError
from flstream.job import ModelSection
from flstream.model import file_memory
from flstream.model.checkpoint import unnamed_file
from flstream.model.digests import body_digest
from flstream.report.console import make_console
from flstream.report.forecast import forecast_json, print_forecast
from flstream.simulation.factory import factory_model, meta_model
from flstream.simulation.forecast import available_in, forecast
from flstream.simulation.module_init import ModuleByModule
from flstream.simulation.probe import probe

FILED = (
    *("resnet", "linears", "layers", "transformer", "tied", "half", "initialisers", "slices"),
    *("copies", "data", "complexes", "decomposed", "from_numpy", "two_dtypes"),
)


def section(name):
    return ModelSection.model_construct(factory=f"{initial_factories.__file__}:{name}")


def written(weights, folder):
    file = unnamed_file(weights.layout, folder)
    weights.write(file)
    return file


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", FILED)
def test_a_model_in_files_has_the_bits_and_the_layout_of_a_whole_one(tmp_path, monkeypatch, name):
    monkeypatch.setattr(file_memory, "LEAST_BYTES", 1)
    whole, filed = (factory_model(section(name), 3, build, tmp_path) for build in ("whole", "auto"))
    assert (filed.way, filed.layout) == ("in files", whole.layout)
    assert body_digest(filed.weights) == body_digest(whole.weights)
    assert not list(tmp_path.iterdir())


def test_what_is_made_of_arrays_or_by_ranges_has_no_files(tmp_path):
    for name, way in (("arrays", "whole"), ("zeros", "range by range")):
        assert factory_model(section(name), 3, "auto", tmp_path).way == way


def test_a_disk_without_room_for_a_tensor_is_a_sentence(tmp_path, monkeypatch):
    def refuse(fd, start, count):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(file_memory, "LEAST_BYTES", 1)
    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(CheckpointError, match=r"no room for a tensor of .*No space.*build = whole"):
        factory_model(section("linears"), 3, "auto", tmp_path)


def test_files_of_tensors_take_no_descriptors_and_have_no_names(tmp_path):
    before = len(os.listdir("/proc/self/fd"))
    with file_memory.FileMemory(tmp_path):
        held = [torch.ones(128, 256) for _ in range(3)]
    assert len(os.listdir("/proc/self/fd")) == before
    assert str(tmp_path) in Path("/proc/self/maps").read_text()
    assert not list(tmp_path.iterdir())
    assert all(tensor.sum() == 128 * 256 for tensor in held)


def by_module(section, seed=3):
    return ModuleByModule(meta_model(section, seed), seed)


@pytest.mark.parametrize("name", ["resnet", "layers", "transformer", "tied"])
def test_modules_are_initialised_one_by_one_with_seeds_of_their_own(tmp_path, name):
    model = by_module(section(name))
    assert model.layout == factory_model(section(name), 3, "whole", tmp_path).layout
    assert 0 < model.peak < model.layout.nbytes
    digest = body_digest(written(model, tmp_path))
    assert digest == body_digest(written(model, tmp_path))
    assert digest != body_digest(written(by_module(section(name), 4), tmp_path))


def test_a_tensor_that_no_module_initialises_is_refused_by_its_name(tmp_path):
    with pytest.raises(ModelError, match=r"nothing initialises 'scale'.*reset_parameters"):
        written(by_module(section("unset")), tmp_path)
    with pytest.raises(ModelError, match="returns no module"):
        by_module(section("complexes"))


SOURCE = Path(initial_factories.__file__).read_text()
ONE_ROUND = ("rounds=1", "clients.count=1", "workflow.args.evaluate_every=0", "model.args={}")


@pytest.mark.parametrize(
    ("name", "others"),
    [
        ("linears", ()),
        ("linears", ("streaming.codecs.down=[cast]",)),
        ("linears", ("model.strict=false", "model.initial={folder}/part.safetensors")),
        ("from_numpy", ()),
    ],
)
def test_a_run_begins_with_the_same_model_however_it_is_built(
    jobs, processes, tmp_path, name, others
):
    save_file({"0.weight": torch.ones(40, 40)}, tmp_path / "part.safetensors")
    others = [override.format(folder=tmp_path) for override in others]
    files = []
    for build in ("auto", "whole"):
        how = (f"model.factory=model:{name}", f"model.build={build}", *others)
        run = jobs.run(plain(), *ONE_ROUND, *how, model=SOURCE).finished()
        files.append(run.directory.checkpoint(0).read_bytes())
    assert files[0] == files[1]


@pytest.mark.parametrize(
    ("name", "build", "way", "words"),
    [
        ("linears", "auto", "in files", "in files, about 38.4 KiB at a time"),
        ("linears", "whole", "whole", "whole, about 38.4 KiB"),
        ("linears", "by_module", "module by module", "module by module, about 6.4 KiB"),
        ("wide", "auto", "in files", "in files, about 355.1 KiB at a time"),
        ("zeros", "auto", "range by range", "range by range"),
    ],
)
def test_validate_says_how_the_initial_model_is_built(
    capsys, jobs, processes, name, build, way, words
):
    how = (f"model.factory=model:{name}", f"model.build={build}", "model.args={}")
    job = jobs.make(plain(), *how, model=SOURCE)
    with jobs.host_for(job) as host:
        measured = probe(job, host)
    need = forecast(job, measured.layout, measured=measured)
    room = available_in(jobs.folder)
    print_forecast(make_console(), job, need, room, [])
    assert words in capsys.readouterr().out
    assert json.loads(json.dumps(forecast_json(job, need, room, [])))["building"]["way"] == way


# For each place, a process of its own tells what it takes to write the model's checkpoint.
MEMORY = """
import os, re, sys, threading
from pathlib import Path
from flstream.job import ModelSection
from flstream.model.formats import open_checkpoint
from flstream.model.checkpoint import write_checkpoint
from flstream.simulation.factory import factory_model
import torch, numpy, flstream.model.file_memory, flstream.model.archives

def opened(place):
    if ":" not in place:
        return open_checkpoint(Path(place))
    section = ModelSection.model_construct(factory=place)
    return factory_model(section, 3, "auto", Path(".")).weights

def held():
    return int(re.search("RssAnon:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

def write(place):
    before = held()
    peak, done = [before], threading.Event()
    def watch():
        while not done.wait(0.001):
            peak[0] = max(peak[0], held())
    thread = threading.Thread(target=watch)
    thread.start()
    write_checkpoint(Path(f"{Path(place).name}.safetensors"), opened(place))
    done.set()
    thread.join()
    compiler = {"torch._dynamo", "sympy"} & sys.modules.keys()
    print(peak[0] - before, len(compiler), flush=True)

for place in sys.argv[1:]:
    if os.fork() == 0:
        write(place)
        os._exit(0)
    os.wait()
"""


def test_a_model_is_written_tensor_by_tensor_whatever_it_comes_from(tmp_path):
    values = {f"layer.{i}": torch.full((1 << 20,), float(i)) for i in range(24)}
    values["turned"] = torch.ones(1 << 10, 1 << 10).t()
    torch.save(values, tmp_path / "w.pt")
    np.savez(tmp_path / "w.npz", **{name: value.numpy() for name, value in values.items()})
    places = [tmp_path / "w.pt", tmp_path / "w.npz", save_index(tmp_path, values)]
    command = [sys.executable, "-c", MEMORY, *places, section("large").factory]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    for line in done.stdout.splitlines():
        taken, compiler = map(int, line.split())
        # A tensor has 4 MiB and all have 100; of the factory's, 8 in float32, and 64 in float16.
        assert taken < 24 << 20
        assert compiler == 0  # torch's, whose import takes seconds
    assert len(done.stdout.splitlines()) == 4
    for place in places:
        assert_same(load_file(tmp_path / f"{place.name}.safetensors"), values)


def save_index(folder, values):
    for place, (name, value) in enumerate(values.items()):
        torch.save({name: value}, folder / f"{place}.bin")
    homes = {name: f"{place}.bin" for place, name in enumerate(values)}
    path = folder / "pytorch_model.bin.index.json"
    path.write_text(json.dumps({"metadata": {}, "weight_map": homes}))
    return path


def assert_same(read, values):
    assert read.keys() == values.keys()
    assert all(torch.equal(read[name], value) for name, value in values.items())
