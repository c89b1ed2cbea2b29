"""From a pretrained checkpoint to one that others open, and adapters instead of whole models."""

from nightly_cases import first_and_nightly
from safetensors import safe_open
from safetensors.torch import load_file
from tiny_gpt2 import opens, opens_adapter
from training_scripts import drawing

from flstream.inspection.export import export

HEAD = """
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

lora = LoraConfig(r=4, target_modules=["c_attn"], fan_in_fan_out=True, task_type="CAUSAL_LM")


class Around(torch.nn.Module):
    def __init__(self, **parts):
        super().__init__()
        self.model = parts.pop("model")
        for name, part in parts.items():
            setattr(self, name, part)


def build(path):
    model = AutoModelForCausalLM.from_pretrained(path)
"""


def factory(returned):
    return f"{HEAD}    return {returned}\n"


TOKENIZER = factory("model, AutoTokenizer.from_pretrained(path)")
CONFIG = factory("AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(path))")
WRAPPED = factory("Around(model=model)")
SECOND = factory("model, AutoModelForCausalLM.from_pretrained(path).base_model")  # no tokenizer
ADAPTER = factory("get_peft_model(model, lora)")
QUIET = "workflow.args.evaluate_every=0"


def trained(jobs, tiny, factory, *how):
    how = [*how, "rounds=1", QUIET, *([f"model.args.path={tiny}"] if factory else [])]
    run = jobs.run(drawing(), *how, model=factory or "")
    assert run.summary.status == "finished", run.summary.error
    return run


@first_and_nightly(
    ("factory", "initial", "has_tokenizer"),
    [
        # Weights as save_pretrained writes them: lm_head.weight is not in the file.
        (None, True, True),
        (TOKENIZER, False, True),
        (WRAPPED, False, False),
        (CONFIG, True, True),
        (SECOND, False, False),
    ],
    brief=3,
)
def test_an_export_opens_with_from_pretrained(
    jobs, libraries, tiny, tmp_path, factory, initial, has_tokenizer
):
    weights = tiny / "model.safetensors"
    with safe_open(weights, "pt") as file:
        assert "lm_head.weight" not in set(file.keys())
    how = [f"model.initial={weights}"] if initial else []
    how += [] if factory else ["model.factory=null"]
    run = trained(jobs, tiny, factory, *how)
    folder = tmp_path / "exported"
    done = export(run.directory.path, folder)
    assert {path.name for path in done.files} >= {"config.json", "model.safetensors"}
    libraries(opens, folder, run.directory.final_model, has_tokenizer)


def test_a_model_of_peft_exchanges_its_adapter_which_peft_opens(jobs, libraries, tiny, tmp_path):
    run = trained(jobs, tiny, ADAPTER)
    assert load_file(run.directory.final_model).keys() == {
        f"base_model.model.transformer.h.{layer}.attn.c_attn.lora_{part}.weight"
        for layer in (0, 1)
        for part in "AB"
    }
    done = export(run.directory.path, tmp_path / "exported")
    names = {path.name for path in done.files}
    assert names == {"adapter_config.json", "adapter_model.safetensors"}
    libraries(opens_adapter, tmp_path / "exported", tiny, run.directory.final_model)


@first_and_nightly(
    "returned",
    [
        "Around(model=model, head=torch.nn.Linear(2, 2))",
        "torch.nn.ModuleDict({'model': get_peft_model(model, lora)})",
    ],
)
def test_a_configuration_that_does_not_fit_the_weights_is_not_exported(
    jobs, tiny, tmp_path, returned
):
    run = trained(jobs, tiny, factory(returned))
    done = export(run.directory.path, tmp_path / "exported")
    assert [path.name for path in done.files] == ["model.safetensors"]
