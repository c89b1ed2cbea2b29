"""Models of Hugging Face and Lightning whose tensors lie in files: bits of whole ones."""

import json
import sys
from pathlib import Path

import pytest

from flstream.job import ModelSection
from flstream.model import file_memory
from flstream.model.checkpoint import unnamed_file
from flstream.model.digests import body_digest
from flstream.simulation.factory import factory_model, meta_model
from flstream.simulation.module_init import ModuleByModule

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 100,
}
SOURCE = """
import json
import torch

def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel
    return GPT2LMHeadModel(GPT2Config(n_layer=3, n_head=2, n_embd=64, vocab_size=300,
                                      n_positions=40, bos_token_id=0, eos_token_id=0))

def of(kind, dtype=None):
    import transformers
    config = getattr(transformers, f"{kind}Config")(**json.loads(SMALL))
    auto = "AutoModelForCausalLM" if kind == "Llama" else "AutoModel"
    return getattr(transformers, auto).from_config(config, dtype=dtype and getattr(torch, dtype))

def llama(): return of("Llama", "bfloat16")
def bert(): return of("Bert")
def vit(): return of("ViT")

def lora():
    from peft import LoraConfig, get_peft_model
    return get_peft_model(gpt2(), LoraConfig(r=2, fan_in_fan_out=True))

def lightning():
    import lightning

    class Net(lightning.LightningModule):
        def __init__(self, width=5):
            super().__init__()
            self.save_hyperparameters()
            self.net = torch.nn.Sequential(torch.nn.Linear(4, width), torch.nn.BatchNorm1d(width))
            self.example_input_array = torch.zeros(1, 4)

    return Net()
"""
JOBS = Path(__file__).parents[2] / "jobs"
NEEDS = {"lightning": "lightning", "lora": "peft"}


@pytest.fixture
def section(tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "path", [*sys.path])  # to which the folder of a factory is added

    def make(name):
        pytest.importorskip(NEEDS.get(name, "transformers"))
        (tmp_path / "library_models.py").write_text(f"{SOURCE}\nSMALL = {json.dumps(SMALL)!r}\n")
        place = f"{tmp_path}/library_models.py:{name}"
        if name == "job":
            place = f"{JOBS}/gpt2/model.py:get_model"
        return ModelSection.model_construct(factory=place, args={})

    yield make
    for module in ("model", "library_models"):  # other jobs have modules of these names
        sys.modules.pop(module, None)


def digest_of(weights, folder):
    file = unnamed_file(weights.layout, folder)
    weights.write(file)
    return body_digest(file)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "vit", "lightning", "job", "lora"])
def test_a_librarys_model_in_files_has_the_bits_of_a_whole_one(
    section, tmp_path, monkeypatch, name
):
    monkeypatch.setattr(file_memory, "LEAST_BYTES", 1)
    whole, filed = (factory_model(section(name), 3, build, tmp_path) for build in ("whole", "auto"))
    assert (filed.way, filed.layout) == ("in files", whole.layout)
    assert body_digest(filed.weights) == body_digest(whole.weights)


@pytest.mark.parametrize("name", ["gpt2", "bert", "lightning"])
def test_modules_of_a_librarys_model_are_initialised_one_by_one(section, tmp_path, name):
    model = ModuleByModule(meta_model(section(name), 3), 3)
    assert model.layout == factory_model(section(name), 3, "whole", tmp_path).layout
    assert digest_of(model, tmp_path) == digest_of(model, tmp_path)
