"""A model is written where others open it: a folder of safetensors."""

import pytest
import torch
from journal_support import flip
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from training_scripts import noisy

from flstream.errors import CheckpointError, UsageError
from flstream.inspection.export import export
from flstream.simulation.export_files import PREFIX

TIED = """
import torch


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.words = torch.nn.Embedding(7, 4)
        self.layer = torch.nn.Linear(4, 4, dtype=torch.bfloat16)
        self.answer = torch.nn.Linear(4, 7, bias=False)
        self.answer.weight = self.words.weight
        self.register_buffer("steps", torch.tensor(3))


def build():
    return Net()
"""
NAMES = ["steps", "words.weight", "layer.weight", "layer.bias", "answer.weight"]


@pytest.fixture
def finished(jobs):
    return jobs.run(noisy().replace('params["w"]', 'params["words.weight"]'), model=TIED)


def test_a_folder_has_each_tensor_once_under_its_first_name(finished, tmp_path):
    done = export(finished.directory.path, tmp_path / "new" / "folder")
    assert [path.name for path in done.files] == ["model.safetensors"]
    [path] = done.files
    assert done.bytes == path.stat().st_size
    exported, final = load_file(path), load_file(finished.directory.final_model)
    # In the run, names are in alphabetical order.
    assert final.keys() == {"answer.weight", "layer.weight", "layer.bias", "steps"}
    assert exported.keys() == set(NAMES) - {"answer.weight"}
    assert torch.equal(exported["words.weight"], final["answer.weight"])
    assert all(torch.equal(exported[name], final[name]) for name in ("layer.weight", "layer.bias"))
    with safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_what_a_run_has_kept_goes_along_and_its_prefix_goes(tmp_path):
    run = tmp_path / "run"
    (run / "export").mkdir(parents=True)
    (run / "export" / "config.json").write_text("{}")
    (run / "export" / PREFIX).write_text("model.")
    (run / "events.jsonl").write_text("")
    save_file({"model.w": torch.ones(3), "model.b": torch.ones(1)}, run / "best.safetensors")
    done = export(run / "best.safetensors", tmp_path / "out")
    assert [path.name for path in done.files] == ["config.json", "model.safetensors"]
    assert load_file(done.files[1]).keys() == {"w", "b"}
    # Names that do not all have the prefix stay.
    save_file({"model.w": torch.ones(3), "head": torch.ones(1)}, run / "best.safetensors")
    done = export(run / "best.safetensors", tmp_path / "whole")
    assert load_file(done.files[1]).keys() == {"model.w", "head"}
    (run / "export" / "adapter_config.json").write_text("{}")
    done = export(run / "best.safetensors", tmp_path / "adapter")
    assert done.files[-1].name == "adapter_model.safetensors"


def test_nothing_is_overwritten_and_no_damaged_model_exported(finished, tmp_path):
    run = finished.directory.path
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    for source, place, error, sentence in (
        (run, full, UsageError, "full has files in it"),
        (run, full / "notes.txt", UsageError, r"notes\.txt is a file"),
        (run, full / "notes.txt" / "out", CheckpointError, "cannot be written"),
        (run / "nothing.safetensors", tmp_path / "out", CheckpointError, "there is no"),
    ):
        with pytest.raises(error, match=sentence):
            export(source, place)
    final = finished.directory.final_model
    flip(final)
    with pytest.raises(CheckpointError, match=r"has the digest"):
        export(run, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert (full / "notes.txt").read_text() == "mine"
