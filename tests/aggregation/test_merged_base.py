"""Products of factors that are added to a base: each sum is that of float64, rounded once."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file

from flstream.aggregation import merged_base
from flstream.aggregation.merged_base import Scaling, write_merged_base
from flstream.errors import CheckpointError, LayoutError
from flstream.model.checkpoint import FileSource
from flstream.model.digests import body_digest

LAYER = "base_model.model.fc"


def factors(outputs, inputs, rank=3):
    torch.manual_seed(4)
    a, b = torch.randn(rank, inputs), torch.randn(outputs, rank)
    return {f"{LAYER}.residual_A": a, f"{LAYER}.residual_B": b}, b.double() @ a.double()


def merged(tmp_path, base, residual, scaling):
    """The tensors of a base with a residual, and the digest that was returned."""
    save_file(base, tmp_path / "base.safetensors")
    save_file(residual, tmp_path / "residual.safetensors")
    files = [FileSource(tmp_path / f"{name}.safetensors") for name in ("base", "residual")]
    path = tmp_path / "next.safetensors"
    digest = write_merged_base(path, *files, scaling, lambda: None)
    assert digest == body_digest(FileSource(path))
    return load_file(path)


@pytest.mark.parametrize("numbers", [1, 40, 1 << 18])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize(
    ("shape", "is_transposed"), [((7, 11), False), ((11, 7), True), ((9, 9), False), ((9, 9), True)]
)
def test_a_weight_is_changed_as_peft_adds_the_product(
    tmp_path, monkeypatch, shape, is_transposed, dtype, numbers
):
    monkeypatch.setattr(merged_base, "_MOST_NUMBERS", numbers)
    outputs, inputs = shape[::-1] if is_transposed else shape
    residual, product = factors(outputs, inputs)
    base = {
        "fc.weight": torch.randn(shape).to(dtype),
        "fc.bias": torch.randn(5).to(dtype),
        "steps": torch.tensor(3),
    }
    found = merged(tmp_path, base, residual, Scaling(0.5, is_transposed))
    change = 0.5 * (product.T if is_transposed else product)
    due = (base["fc.weight"].double() + change).to(dtype)
    torch.testing.assert_close(found["fc.weight"], due, rtol=1e-6, atol=1e-6)
    assert all(torch.equal(found[name], base[name]) for name in ("fc.bias", "steps"))


def test_the_scaling_is_that_of_pefts_configuration(tmp_path):
    config = tmp_path / "adapter_config.json"
    config.write_text(json.dumps({"r": 4, "lora_alpha": 8, "fan_in_fan_out": True}))
    assert Scaling.of(config) == (2.0, True)
    config.write_text(json.dumps({"r": 4, "lora_alpha": 8, "use_rslora": True}))
    assert Scaling.of(config) == (4.0, False)
    config.write_text(json.dumps({"r": 4, "lora_alpha": 8, "use_dora": True}))
    with pytest.raises(LayoutError, match="set into = factors"):
        Scaling.of(config)
    with pytest.raises(LayoutError, match="no adapter of PEFT"):
        Scaling.of(tmp_path / "none.json")


@pytest.mark.parametrize(
    ("base", "error", "sentence"),
    [
        ({"other.weight": torch.zeros(7, 11)}, LayoutError, r"no 'fc\.weight' of that shape"),
        ({"fc.weight": torch.zeros(7, 12)}, LayoutError, r"no 'fc\.weight' of that shape"),
        ({"fc.weight": torch.full((7, 11), torch.inf)}, CheckpointError, "would not be finite"),
    ],
)
def test_what_has_no_sum_is_refused_by_the_layer(tmp_path, base, error, sentence):
    with pytest.raises(error, match=sentence) as refusal:
        merged(tmp_path, base, factors(7, 11)[0], Scaling(1.0, False))
    assert "'fc.weight' of" in str(refusal.value)
    assert not (tmp_path / "next.safetensors").exists()
