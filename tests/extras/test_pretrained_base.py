"""A base of transformers: from a folder, in any dtype, with the bits of from_pretrained."""

import os

import pytest


def write_llama(folder):
    """A tiny Llama, whose frequencies are in no state dict, and a GPT-2, whose head is tied."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    size = {"vocab_size": 50, "num_attention_heads": 2, "num_hidden_layers": 2, "hidden_size": 32}
    LlamaForCausalLM(LlamaConfig(intermediate_size=48, **size)).save_pretrained(folder / "llama")
    config = GPT2Config(n_embd=24, n_layer=2, n_head=2, vocab_size=50, n_positions=32)
    GPT2LMHeadModel(config).save_pretrained(folder / "gpt2")


def trained(net, tokens):
    """The adapter after some steps around a model."""
    import torch
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

    torch.manual_seed(5)
    net = get_peft_model(net, LoraConfig(r=2, target_modules="all-linear")).train()
    own = [tensor for tensor in net.parameters() if tensor.requires_grad]
    optimizer = torch.optim.AdamW(own, 1e-2)
    for _ in range(3):
        optimizer.zero_grad()
        net(input_ids=tokens, labels=tokens).loss.backward()
        optimizer.step()
    return net, get_peft_model_state_dict(net)


def bases_are_as_loaded(folder):
    import torch
    import transformers
    from peft import set_peft_model_state_dict

    from flstream.client.base import base_model, check_base, enter_base
    from flstream.errors import ClientError
    from flstream.job import Job
    from flstream.job.load import make_job
    from flstream.simulation.base_builder import base_bytes, built_here

    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    write_llama(folder)
    (folder / "client.py").touch()
    (folder / "model.safetensors").touch()

    def job(**base) -> Job:
        values = {"name": "base", "rounds": 1, "clients": {"count": 1}}
        values |= {"model": {"initial": "model.safetensors", "base": base}}
        return make_job(values | {"train": {"script": "client.py"}}, folder, "the test")

    tokens = torch.arange(48).reshape(3, 16)
    for name, dtype in (("llama", None), ("llama", "bfloat16"), ("gpt2", None)):
        built = job(hf=name, dtype=dtype)
        ready = built_here(built)
        assert 0 <= base_bytes(built.model.base) - ready.bytes <= 8
        enter_base(built.with_base(ready.digest).model.base)
        net = base_model()
        own = type(net).from_pretrained(folder / name, dtype=dtype or "auto")
        assert net.config.to_dict() == own.config.to_dict()
        assert net.generation_config == own.generation_config
        assert (net.training, net.dtype) == (own.training, own.dtype)
        held = [dict([*model.named_parameters(), *model.named_buffers()]) for model in (net, own)]
        assert held[0].keys() == held[1].keys()
        assert all(torch.equal(held[0][key], held[1][key]) for key in held[0])
        (adapted, adapter), (_, other) = trained(net, tokens), trained(own, tokens)
        assert all(torch.equal(adapter[key], other[key]) for key in other)
        set_peft_model_state_dict(adapted, other)
        check_base()
        adapted.merge_adapter()  # by .data, which torch does not count
        with pytest.raises(ClientError, match=r"written to '.*weight'"):
            check_base()
    # It is built once, wherever the same files lie, and anew for others.
    kept = transformers.GPT2LMHeadModel.from_pretrained
    transformers.GPT2LMHeadModel.from_pretrained = None
    (folder / "gpt2").rename(folder / "moved")
    assert built_here(job(hf="moved")).digest == ready.digest
    transformers.GPT2LMHeadModel.from_pretrained = kept
    config = folder / "moved" / "config.json"
    config.write_text(config.read_text().replace('"n_head": 2', '"n_head": 3'))
    assert built_here(job(hf="moved")).digest != ready.digest


def mistakes_are_named(folder):
    from safetensors.torch import load_file, save_file

    from flstream.client.base import described
    from flstream.errors import ModelError
    from flstream.job.model_section import BaseSection
    from flstream.simulation.base_builder import _whole

    write_llama(folder)
    with pytest.raises(ModelError, match="hf download some/model"):
        described(BaseSection(hf="some/model"))
    section = BaseSection(hf=str(folder / "llama"))
    weights = load_file(folder / "llama" / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, folder / "llama" / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelError, match=r"has no weights for model\.norm\.weight"):
        _whole(section)
    config = folder / "llama" / "config.json"
    config.write_text(config.read_text().replace("LlamaForCausalLM", "LlamaForNothing"))
    with pytest.raises(ModelError, match="no architecture 'LlamaForNothing'"):
        _whole(section)


def test_a_base_of_a_folder_is_that_of_from_pretrained_and_is_built_once(libraries, tmp_path):
    libraries(bases_are_as_loaded, tmp_path)


def test_mistakes_of_a_folder_are_sentences(libraries, tmp_path):
    libraries(mistakes_are_named, tmp_path)


OWN_BASE = """
import torch
from peft import LoraConfig, get_peft_model


def build():
    net = torch.nn.Sequential(torch.nn.Linear(300, 400), torch.nn.Linear(400, 10))
    return get_peft_model(net, LoraConfig(r=2, target_modules=["0"]))
"""


def frozen_weights_are_counted(folder):
    from dataclasses import replace

    from flstream.job.load import make_job
    from flstream.simulation.forecast import forecast
    from flstream.simulation.model_builder import initial_layout

    (folder / "net_of_frozen.py").write_text(OWN_BASE)
    (folder / "client.py").touch()
    values = {"name": "frozen", "rounds": 1, "clients": {"count": 2}}
    values |= {"model": {"factory": "net_of_frozen:build"}, "train": {"script": "client.py"}}
    job = make_job(values, folder, "the test")
    layout, _, building = initial_layout(job)
    assert layout.nbytes == 4 * 2 * (300 + 400)
    assert building.frozen == 4 * (300 * 400 + 400 + 400 * 10 + 10)
    without, whole = (
        forecast(job, layout, measured=it) for it in (replace(building, frozen=0), building)
    )
    assert whole.total_bytes - without.total_bytes == 2 * building.frozen


def test_what_lies_below_an_adapter_of_a_site_s_own_base_is_counted(libraries, tmp_path):
    libraries(frozen_weights_are_counted, tmp_path)
