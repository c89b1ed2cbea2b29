"""From a pretrained checkpoint to one that others open, and adapters instead of whole models."""

import subprocess
import sys

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

from flstream.inspection.export import export
from flstream.telemetry.events import SiteLog, decode_event

# Adds noise to each tensor once, whatever names it has.
NOISE = """
import torch
import flstream.client as flare

flare.init()
while flare.is_running():
    model = flare.receive()
    if flare.is_evaluate():
        flare.send(flare.FLModel(metrics={"mean": 0.0}))
        continue
    for tensor in {id(each): each for each in model.params.values()}.values():
        tensor += 0.01 * torch.randn(tensor.shape)
    flare.send(flare.FLModel(params=model.params))
"""
MODEL = """
def build(path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(path), AutoTokenizer.from_pretrained(path)
"""
CONFIG = """
def build(path):
    from transformers import AutoConfig, AutoModelForCausalLM

    return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))
"""
WRAPPED = """
import torch


class Wrapped(torch.nn.Module):
    def __init__(self, path):
        super().__init__()
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(path)


def build(path):
    return Wrapped(path)
"""
ADAPTER = """
def build(path):
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(path)
    config = LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    return get_peft_model(base, config)
"""
# In a process of its own, so that the libraries are not imported into that of the tests.
OPENS = """
import sys, torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2LMHeadModel

folder, state, *tokenizer = sys.argv[1:]
opened = AutoModelForCausalLM.from_pretrained(folder).eval()
known = GPT2LMHeadModel(opened.config).eval()
known.load_state_dict(torch.load(state, weights_only=True))
tokens = torch.arange(12).reshape(2, 6)
assert torch.equal(opened(tokens).logits, known(tokens).logits)
assert opened.lm_head.weight is opened.transformer.wte.weight
assert opened.generation_config.eos_token_id == 0
if tokenizer:
    assert AutoTokenizer.from_pretrained(folder)("add 3").input_ids
"""
OPENS_ADAPTER = """
import sys, torch
from peft import PeftModel, get_peft_model_state_dict
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

folder, base, final = sys.argv[1:]
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), folder)
state, wanted = get_peft_model_state_dict(model), load_file(final)
assert state.keys() == wanted.keys()
assert all(torch.equal(state[name], wanted[name]) for name in wanted)
"""


def opens(code, *words):
    subprocess.run([sys.executable, "-c", code, *map(str, words)], check=True)


@pytest.mark.parametrize(
    ("factory", "initial", "has_tokenizer"),
    [
        (MODEL, False, True),
        (WRAPPED, False, False),
        # Weights as save_pretrained writes them: lm_head.weight is not in the file.
        (CONFIG, True, True),
        (None, True, True),
    ],
)
def test_an_export_opens_with_from_pretrained(
    jobs, tiny, tmp_path, factory, initial, has_tokenizer
):
    weights = tiny.model / "model.safetensors"
    with safe_open(weights, "pt") as file:
        assert "lm_head.weight" not in set(file.keys())
    how = [f"model.initial={weights}"] if initial else []
    how += [f"model.args.path={tiny.model}"] if factory else ["model.factory=null"]
    run = jobs.run(NOISE, *how, model=factory or "")
    assert run.summary.status == "finished", run.summary.error
    assert run.summary.rounds_completed == 2
    folder, state = tmp_path / "exported", tmp_path / "exported.pt"
    done = export(run.directory.path, folder)
    assert {path.name for path in done.files} >= {"config.json", "model.safetensors"}
    export(run.directory.path, state)
    if factory is None:  # whose file has no name for the tied tensor
        saved = torch.load(state, weights_only=True)
        torch.save({**saved, "lm_head.weight": saved["transformer.wte.weight"]}, state)
    if factory == WRAPPED:
        assert all(not name.startswith("model.") for name in torch.load(state, weights_only=True))
    opens(OPENS, folder, state, *["tokenizer"] * has_tokenizer)


def test_a_model_of_peft_exchanges_its_adapter_which_peft_opens(jobs, tiny, tmp_path):
    run = jobs.run(NOISE, f"model.args.path={tiny.model}", model=ADAPTER)
    assert run.summary.status == "finished", run.summary.error
    names = load_file(run.directory.final_model).keys()
    assert names == {
        f"base_model.model.transformer.h.{layer}.attn.c_attn.lora_{part}.weight"
        for layer in (0, 1)
        for part in "AB"
    }
    done = export(run.directory.path, tmp_path / "exported")
    assert [path.name for path in done.files] == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]
    opens(OPENS_ADAPTER, tmp_path / "exported", tiny.model, run.directory.final_model)


HEADED = """
import torch


class Headed(torch.nn.Module):
    def __init__(self, path):
        super().__init__()
        from transformers import AutoModelForCausalLM

        self.model = AutoModelForCausalLM.from_pretrained(path)
        self.head = torch.nn.Linear(2, 2)


def build(path):
    return Headed(path)
"""
AROUND_ADAPTER = ADAPTER.replace("return get_peft", "return torch.nn.ModuleDict({'model': get_peft")
AROUND_ADAPTER = "import torch\n" + AROUND_ADAPTER.replace("(base, config)", "(base, config)})")
SECOND = MODEL.replace("return AutoModelForCausalLM", "return (AutoModelForCausalLM").replace(
    "AutoTokenizer.from_pretrained(path)", "AutoModelForCausalLM.from_pretrained(path).base_model)"
)


@pytest.mark.parametrize("factory", [HEADED, AROUND_ADAPTER])
def test_a_configuration_that_does_not_fit_the_weights_is_not_exported(
    jobs, tiny, tmp_path, factory
):
    run = jobs.run(NOISE, f"model.args.path={tiny.model}", "rounds=1", model=factory)
    assert run.summary.status == "finished", run.summary.error
    done = export(run.directory.path, tmp_path / "exported")
    assert [path.name for path in done.files] == ["model.safetensors"]


def test_a_second_model_that_a_factory_returns_is_no_tokenizer(jobs, tiny, tmp_path):
    run = jobs.run(NOISE, f"model.args.path={tiny.model}", "rounds=1", model=SECOND)
    assert run.summary.status == "finished", run.summary.error
    export(run.directory.path, tmp_path / "exported")
    export(run.directory.path, tmp_path / "exported.pt")
    opens(OPENS, tmp_path / "exported", tmp_path / "exported.pt")


PROMPTS = """
def build(path):
    from peft import PromptTuningConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(path)
    return get_peft_model(base, PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
"""
INTO = """
import flstream.client as flare
from model import build

flare.init()
model = build(flare.system_info()["model_args"]["path"])
while flare.is_running():
    flare.receive(into=model)
"""


def test_an_adapter_whose_state_is_made_anew_cannot_be_received_into(jobs, tiny):
    run = jobs.run(INTO, f"model.args.path={tiny.model}", model=PROMPTS)
    assert run.summary.status == "failed"
    assert "PeftModelForCausalLM is made anew when it is asked for" in run.summary.error


LARGE = """
import torch


def config():
    from transformers import GPT2Config

    return GPT2Config()


def whole():
    from transformers import GPT2LMHeadModel

    return GPT2LMHeadModel(config())


def build():
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(0)
    lora = LoraConfig(r=8, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True)
    return get_peft_model(whole(), lora)
"""
LARGE_CLIENT = """
import torch
from model import build
from peft import get_peft_model_state_dict
import flstream.client as flare

model = build()
optimizer = torch.optim.AdamW([each for each in model.parameters() if each.requires_grad])
flare.init()
flare.log("base", model.base_model.model.transformer.wte.weight.double().sum().item())
while flare.is_running():
    flare.receive(into=model)
    tokens = torch.randint(50257, (1, 8))
    loss = model(input_ids=tokens, labels=tokens).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    params, metrics = get_peft_model_state_dict(model), {"loss": loss.item()}
    flare.send(flare.FLModel(params=params, metrics=metrics))
"""


def test_an_adapter_of_a_large_model_is_small_on_the_wire_and_there_is_one_base_a_client(jobs):
    run = jobs.run(LARGE_CLIENT, "workflow.args.evaluate=received", model=LARGE)
    assert run.summary.status == "finished", run.summary.error
    events = map(decode_event, run.directory.events.read_bytes().splitlines())
    bases = [each.value for each in events if isinstance(each, SiteLog) and each.key == "base"]
    assert bases == [bases[0]] * 2
    base = 4 * 124_439_808
    transfer = run.summary.transfer
    for way in (transfer.down, transfer.up):
        assert way.bytes <= 0.02 * 2 * 2 * base  # 2 rounds, 2 sites
    for site in ("site-1", "site-2"):
        assert base < run.summary.memory.clients[site].peak_uss < 2 * base
