"""Initial models: recorded ones have the bits of whole ones, and nobody holds them."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import initial_factories
import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from training_scripts import plain

from flstream.errors import ModelError
from flstream.job import ModelSection
from flstream.model.checkpoint import unnamed_file
from flstream.model.digests import body_digest
from flstream.model.replay import NotRecordedError
from flstream.report.console import make_console
from flstream.report.forecast import forecast_json, print_forecast
from flstream.simulation.factory import meta_model, recorded_model, whole_model
from flstream.simulation.forecast import available_in, forecast
from flstream.simulation.model_builder import ForkedError, forked
from flstream.simulation.module_init import ModuleByModule
from flstream.simulation.probe import probe

RECORDED = (
    *("resnet", "linears", "layers", "transformer", "encoder", "tied", "half", "bfloat16"),
    *("default_dtype", "initialisers", "seeds", "unused", "slices", "copies", "data", "values"),
    *("decomposed", "parametrised", "permuted", "complexes", "normalised", "copied_onto_itself"),
)
REFUSED = {
    "own_generator": "a generator of its own",
    "from_numpy": "memory of NumPy",
    "to_numpy": "for NumPy or a file",
    "from_a_module": "takes a tensor with bytes",
    "partly_arrays": "'a' is no tensor that torch made",
    "chain": "over and over",
    "interleaved": "over and over",
    "called_norm": "running_mean",
    "called_lstm": "train",
    "positional_generator": "a generator of its own",
    "other_thread": "another thread",
    "expected_error": "shape",
    "two_dtypes": "two dtypes",
    "fails": "no weights here",
}


def section(name):
    return ModelSection.model_construct(factory=f"{initial_factories.__file__}:{name}")


def written(weights, folder):
    file = unnamed_file(weights.layout, folder)
    weights.write(file)
    return file


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", RECORDED)
def test_a_recorded_model_has_the_bits_and_the_layout_of_a_whole_one(tmp_path, name):
    whole = whole_model(section(name), 3)
    recorded = recorded_model(section(name), 3)
    assert recorded.way == "tensor by tensor"
    assert recorded.layout == whole.layout
    digest = body_digest(whole.weights)
    torch.rand(5)  # it does not depend on what others draw
    assert body_digest(written(recorded.weights, tmp_path)) == digest
    assert body_digest(written(recorded.weights, tmp_path)) == digest
    # As of a file with weights for the others.
    name = recorded.layout.tensors[-1].name
    last = unnamed_file(recorded.layout.subset({name}), tmp_path)
    recorded.weights.write(last)
    one, other = bytearray(last.layout.nbytes), bytearray(last.layout.nbytes)
    last.read(0, len(one), memoryview(one))
    whole.weights.read(whole.layout.nbytes - len(other), whole.layout.nbytes, memoryview(other))
    assert one == other


@pytest.mark.parametrize(
    ("name", "most"), [("linears", 6400 + 160), ("half", 6400 * 1.5), ("transformer", 16 * 48 * 4)]
)
def test_a_recorded_model_takes_the_memory_of_its_largest_tensor(name, most):
    recorded = recorded_model(section(name), 3)
    assert recorded.memory <= most < recorded.layout.nbytes * 2


@pytest.mark.parametrize("name", REFUSED)
def test_a_factory_that_cannot_be_replayed_is_refused_with_the_reason(name):
    with pytest.raises(NotRecordedError, match=REFUSED[name]):
        recorded_model(section(name), 3)


def test_a_fork_leaves_this_process_as_it_was_and_its_end_is_this_processs():
    with pytest.raises(ForkedError, match="memory of NumPy"):
        forked(lambda: recorded_model(section("left_dtype"), 3))
    assert torch.get_default_dtype() == torch.float32
    assert forked(lambda: ("layout", 3)) == ("layout", 3)
    with pytest.raises(ForkedError, match="status 3"):
        forked(lambda: os._exit(3))
    killed = "import os; from flstream.simulation.model_builder import forked; forked(os.abort)"
    assert subprocess.run([sys.executable, "-c", killed], check=False).returncode == -signal.SIGABRT


def test_a_factory_without_torch_is_called_once():
    model = recorded_model(section("arrays"), 3)
    assert model.way == "whole"
    assert body_digest(model.weights) == body_digest(whole_model(section("arrays"), 3).weights)


def test_tensors_of_a_module_that_a_factory_imports_are_real(tmp_path, monkeypatch):
    (tmp_path / "tables_of_a_test.py").write_text("import torch\nTABLE = torch.arange(5.0)\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "tables_of_a_test", raising=False)
    recorded_model(section("of_an_import"), 3)
    assert sys.modules["tables_of_a_test"].TABLE.tolist() == [0, 1, 2, 3, 4]


def test_recording_does_not_import_torchs_compiler():
    lines = (
        "import sys, torch",
        "from flstream.model.recording import Recorder",
        "with Recorder(): torch.nn.Linear(3, 3)",
        "print({'torch._dynamo', 'sympy'} & sys.modules.keys())",
    )
    command = [sys.executable, "-c", "\n".join(lines)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "set()\n"


def by_module(section, seed=3):
    return ModuleByModule(meta_model(section, seed), seed)


@pytest.mark.parametrize("name", ["resnet", "layers", "transformer", "tied"])
def test_modules_are_initialised_one_by_one_with_seeds_of_their_own(tmp_path, name):
    model = by_module(section(name))
    assert model.layout == whole_model(section(name), 3).layout
    assert 0 < model.peak < model.layout.nbytes
    digest = body_digest(written(model, tmp_path))
    assert digest == body_digest(written(model, tmp_path))
    assert digest != body_digest(written(by_module(section(name), 4), tmp_path))


def test_a_tensor_that_no_module_initialises_is_refused_by_its_name(tmp_path):
    with pytest.raises(ModelError, match=r"nothing initialises 'scale'.*reset_parameters"):
        written(by_module(section("unset")), tmp_path)
    with pytest.raises(ModelError, match="returns no module"):
        by_module(section("permuted"))


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
    files, logs = [], []
    for build in ("auto", "whole"):
        how = (f"model.factory=model:{name}", f"model.build={build}", *others)
        run = jobs.run(plain(), *ONE_ROUND, *how, model=SOURCE)
        assert run.summary.status == "finished", run.summary.error
        files.append(run.directory.checkpoint(0).read_bytes())
        log = run.directory.log("model-builder")
        logs.append(log.read_text() if log.exists() else "")
    assert files[0] == files[1]
    reason = "as model.factory cannot be recorded: it makes a tensor of memory of NumPy"
    assert [reason in log for log in logs] == [name == "from_numpy", False]


@pytest.mark.parametrize(
    ("name", "build", "way", "words"),
    [
        ("linears", "auto", "tensor by tensor", "tensor by tensor, about 6.2 KiB at a time"),
        ("linears", "whole", "whole", "whole, about 38.4 KiB"),
        ("linears", "by_module", "module by module", "module by module, about 6.4 KiB"),
        ("from_numpy", "auto", "whole", "cannot be recorded: it makes a tensor of memory"),
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
    need = forecast(job, measured.layout, measured.imports, [], measured.building)
    room = available_in(jobs.folder)
    print_forecast(make_console(), job, need, room, [])
    assert words in capsys.readouterr().out
    assert json.loads(json.dumps(forecast_json(job, need, room, [])))["building"]["way"] == way


MEMORY = """
import re, sys, threading, time
from pathlib import Path
from flstream.model.formats.opening import open_checkpoint
from flstream.model.checkpoint import write_checkpoint
import torch, numpy, flstream.model.formats.archives

def held():
    return int(re.search("RssAnon:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) << 10

peak = before = held()
def watch():
    global peak
    while not done.wait(0.001):
        peak = max(peak, held())
done = threading.Event()
thread = threading.Thread(target=watch)
thread.start()
write_checkpoint(Path("out.safetensors"), open_checkpoint(Path(sys.argv[1])))
done.set()
thread.join()
print(peak - before)
"""


@pytest.mark.parametrize("form", ["pt", "npz", "index"])
def test_a_file_is_converted_tensor_by_tensor(tmp_path, form):
    values = {f"layer.{i}": torch.full((1 << 20,), float(i)) for i in range(24)}
    values["turned"] = torch.ones(1 << 10, 1 << 10).t()
    if form == "pt":
        path = tmp_path / "w.pt"
        torch.save(values, path)
    elif form == "npz":
        path = tmp_path / "w.npz"
        np.savez(path, **{name: value.numpy() for name, value in values.items()})
    else:
        path = save_index(tmp_path, values)
    command = [sys.executable, "-c", MEMORY, str(path)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 24 << 20  # a tensor has 4 MiB, all have 100
    assert_same(load_file(tmp_path / "out.safetensors"), values)


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
