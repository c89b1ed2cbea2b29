"""Sums of products of factors, and the folds of LoRA adapters that are made of them.

Added to a base, each sum is that of float64, rounded once.
"""

import json
from collections import Counter

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from flstream.aggregation import merged_base
from flstream.aggregation.fold_rule import GroupUpdate, TensorGroup
from flstream.aggregation.low_rank import Factors, residual_shapes
from flstream.aggregation.merged_base import Scaling, write_merged_base
from flstream.errors import CheckpointError, LayoutError, UpdateRefusedError
from flstream.model.checkpoint import FileSource
from flstream.model.digests import body_digest
from flstream.model.lora import layer_in_base, lora_pairs
from flstream.workflows.fedex import FedEx
from flstream.workflows.flora import FLoRA
from flstream.workflows.hlora import HLoRA

A, B = "fc.lora_A.weight", "fc.lora_B.weight"
RESIDUAL_A, RESIDUAL_B = "residual::fc.residual_A", "residual::fc.residual_B"


def product(tensors, a=A, b=B):
    return tensors[b] @ tensors[a]


def combined(code, base, sent, weights):
    """What a fold makes of a pair, in float64, and what it logs."""
    numbers = Counter()
    updates = [
        GroupUpdate(f"site-{place}", weight, tensors)
        for place, (tensors, weight) in enumerate(zip(sent, weights, strict=True))
    ]
    return code.combine(TensorGroup("fc", base, numbers), updates), numbers


def drawn(generator, outputs=30, inputs=20, rank=4, kept=4):
    """A pair of a rank, with zeros behind what a site of a smaller rank has."""
    a, b = generator.normal(size=(rank, inputs)), generator.normal(size=(outputs, rank))
    a[kept:], b[:, kept:] = 0, 0
    return {A: a, B: b}


def with_residual(pair, rank):
    (_, inputs), (outputs, _) = pair[A].shape, pair[B].shape
    zeros = {RESIDUAL_A: np.zeros((rank, inputs)), RESIDUAL_B: np.zeros((outputs, rank))}
    return {**pair, **zeros}


def relative(found, due):
    return np.linalg.norm(found - due) / np.linalg.norm(due)


def test_fedex_is_what_one_computes_by_hand():
    # Of the pairs 1 x 1 and 3 x 5, the mean product is 8, and the product of the means 2 x 3 = 6.
    sent = [
        {A: np.array([[1.0]]), B: np.array([[1.0]])},
        {A: np.array([[3.0]]), B: np.array([[5.0]])},
    ]
    new, numbers = combined(FedEx(), with_residual(sent[0], 1), sent, [1.0, 1.0])
    assert (new[A].item(), new[B].item()) == (2, 3)
    assert product(new, RESIDUAL_A, RESIDUAL_B).item() == pytest.approx(2, abs=1e-12)
    assert numbers["residual_squared"] == pytest.approx(4)
    weighted, _ = combined(FedEx(), with_residual(sent[0], 1), sent, [3.0, 1.0])
    total = product(weighted) + product(weighted, RESIDUAL_A, RESIDUAL_B)
    assert total.item() == pytest.approx((3 * 1 + 15) / 4)


def test_the_product_of_fedex_is_the_mean_of_the_products_round_after_round():
    generator, weights = np.random.default_rng(1), [1.0, 2.0, 3.0]
    base = with_residual(drawn(generator), 12)
    sent = [drawn(generator) for _ in weights]
    mean = sum(w * product(s) for w, s in zip(weights, sent, strict=True)) / 6
    new, numbers = combined(FedEx(), base, sent, weights)
    averaged = relative(product(new), mean)
    assert averaged > 0.5  # what averaging alone loses
    assert numbers["residual_squared"] == pytest.approx(np.linalg.norm(mean - product(new)) ** 2)
    done = product(new, RESIDUAL_A, RESIDUAL_B)
    assert relative(product(new) + done, mean) < 1e-14
    assert numbers["lost_squared"] == 0
    # As the files hold it, in float32.
    rounded = {name: value.astype(np.float32).astype(float) for name, value in new.items()}
    assert relative(product(rounded) + product(rounded, RESIDUAL_A, RESIDUAL_B), mean) < 1e-6
    # A second round adds up, and has more than the residual's rank holds; all ranks hold it.
    sent = [drawn(generator) for _ in weights]
    mean = sum(w * product(s) for w, s in zip(weights, sent, strict=True)) / 6
    padded = Factors(new[RESIDUAL_B], new[RESIDUAL_A]).padded(20)
    for residual, holds_all in ((Factors(new[RESIDUAL_B], new[RESIDUAL_A]), False), (padded, True)):
        old = {**new, RESIDUAL_A: residual.right, RESIDUAL_B: residual.left}
        again, numbers = combined(FedEx(), old, sent, weights)
        found = product(again) + product(again, RESIDUAL_A, RESIDUAL_B)
        lost = np.linalg.norm(found - (mean + done)) ** 2
        assert again[RESIDUAL_A].shape == residual.right.shape
        assert numbers["lost_squared"] == pytest.approx(lost, rel=1e-9, abs=1e-18)
        assert (numbers["lost_squared"] < 1e-18) == holds_all


def test_what_is_cut_off_is_the_best_approximation_and_its_loss_is_known():
    generator = np.random.default_rng(2)
    parts = [Factors(generator.normal(size=(30, 3)), generator.normal(size=(3, 20))) for _ in "abc"]
    whole = sum(part.left @ part.right for part in parts)
    stacked = Factors.stacked([*parts, Factors(np.zeros((30, 2)), np.ones((2, 20)))])
    assert stacked.rank == 9
    assert stacked.squared_norm() == pytest.approx(np.linalg.norm(whole) ** 2)
    values = np.linalg.svd(whole, compute_uv=False)
    for rank in (1, 4, 9, 12):
        near, lost = stacked.best(rank)
        assert (near.left.shape, near.right.shape) == ((30, rank), (rank, 20))
        assert lost == pytest.approx((values[rank:9] ** 2).sum(), rel=1e-9, abs=1e-18)
        assert np.linalg.norm(near.left @ near.right - whole) ** 2 == pytest.approx(
            lost, rel=1e-9, abs=1e-18
        )
    # By falling singular value, the same for both factors.
    np.testing.assert_allclose(np.linalg.norm(near.left, axis=0)[:9] ** 2, values[:9])
    np.testing.assert_allclose(near.left.T @ near.left, near.right @ near.right.T, atol=1e-12)
    assert not near.left[:, 9:].any()
    # A layer of fewer inputs than there is rank, and a matrix of zeros.
    wide, _ = Factors(generator.normal(size=(5, 9)), generator.normal(size=(9, 3))).best(9)
    assert (wide.left.shape, wide.right.shape) == ((5, 9), (9, 3))
    assert not Factors.stacked([Factors(np.zeros((5, 2)), np.zeros((2, 3)))]).best(4)[0].left.any()
    # Threads of torch are as before.
    before = torch.get_num_threads()
    torch.set_num_threads(before + 1)
    try:
        Factors(np.ones((4, 2)), np.ones((2, 3))).best(1)
        assert torch.get_num_threads() == before + 1
    finally:
        torch.set_num_threads(before)


def test_hlora_is_the_best_of_the_mean_product_by_falling_value_and_spare_rank_is_trainable():
    generator, weights = np.random.default_rng(3), [1.0, 1.0, 2.0]
    sent = [drawn(generator, rank=16, kept=kept) for kept in (4, 8, 16)]
    mean = sum(w * product(s) for w, s in zip(weights, sent, strict=True)) / 4
    new, numbers = combined(HLoRA(), sent[0], sent, weights)
    u, s, vh = np.linalg.svd(mean)
    assert relative(product(new), (u[:, :16] * s[:16]) @ vh[:16]) < 1e-13
    assert numbers["lost_squared"] == pytest.approx((s[16:] ** 2).sum())
    for rank in (4, 8):  # what a site of a smaller rank takes
        cut = new[B][:, :rank] @ new[A][:rank]
        assert relative(cut, (u[:, :rank] * s[:rank]) @ vh[:rank]) < 1e-13
    generator = np.random.default_rng(3)
    base, small = drawn(generator), drawn(generator, kept=1)
    new, _ = combined(HLoRA(), base, [small], [1.0])
    np.testing.assert_allclose(new[B] @ new[A], small[B] @ small[A])
    # With both factors 0, neither would have a gradient.
    assert np.array_equal(new[A][1:], base[A][1:])
    assert not new[B][:, 1:].any()


def test_flora_stacks_unequal_ranks_exactly_and_begins_anew():
    generator, weights = np.random.default_rng(4), [1.0, 2.0]
    base = with_residual(drawn(generator, rank=8, kept=8), 12)
    sent = [drawn(generator, rank=8, kept=kept) for kept in (4, 8)]
    mean = (product(sent[0]) + 2 * product(sent[1])) / 3
    new, numbers = combined(FLoRA(), base, sent, weights)
    assert relative(product(new, RESIDUAL_A, RESIDUAL_B), mean) < 1e-14
    assert not new[B].any()
    np.testing.assert_array_equal(new[A], base[A])
    assert numbers["lost_squared"] == 0


def test_pairs_are_found_by_their_names_and_what_is_no_pair_is_a_sentence():
    names = ["h.0.c.lora_A.weight", "h.0.c.lora_B.weight", "head.weight"]
    assert lora_pairs(names) == {"h.0.c": tuple(names[:2])}
    infix = ["m.q.lora_B.default.weight", "m.q.lora_A.default.weight"]
    assert lora_pairs(infix) == {"m.q": (infix[1], infix[0])}
    assert layer_in_base("base_model.model.h.0.c") == layer_in_base("h.0.c") == "h.0.c"
    for wrong, message in (
        (["fc.weight"], "the model has no LoRA pair"),
        (names[:1], r"'h.0.c.lora_A.weight' lacks the other factor of 'h.0.c'"),
        ([*names, "h.0.c.lora_A.other.weight"], "adapt one layer; exchange one adapter"),
        (["wte.lora_embedding_A"], r"'wte.lora_embedding_A' adapts an embedding"),
    ):
        with pytest.raises(LayoutError, match=message):
            lora_pairs(wrong)
    base = {A: np.ones((1, 2)), B: np.ones((2, 1))}
    with pytest.raises(
        UpdateRefusedError, match=r"one factor alone of the LoRA pair 'fc'"
    ) as caught:
        combined(HLoRA(), base, [base, {A: base[A]}], [1.0, 1.0])
    assert caught.value.site == "site-1"


def test_a_residual_has_the_rank_of_a_round_of_sites_and_no_more_than_its_layer():
    shapes = {A: (4, 20), B: (30, 4)}
    residual_a, residual_b = "fc.residual_A", "fc.residual_B"
    assert residual_shapes(shapes, 3, None) == {residual_a: (12, 20), residual_b: (30, 12)}
    assert residual_shapes(shapes, 9, None)[residual_a] == (20, 20)
    assert residual_shapes(shapes, 9, 7)[residual_b] == (30, 7)
    with pytest.raises(LayoutError, match=r"'fc.lora_A.weight' has 4 dimensions, as in .* convol"):
        residual_shapes({**shapes, A: (4, 20, 3, 3)}, 2, None)
    of_convolution = {A: np.ones((1, 2, 3, 3)), B: np.ones((2, 1, 1, 1))}
    with pytest.raises(LayoutError, match=r"take its layer out of target_modules"):
        combined(HLoRA(), of_convolution, [of_convolution], [1.0])


LAYER = "base_model.model.fc"


def factors(outputs, inputs, rank=3):
    torch.manual_seed(4)
    a, b = torch.randn(rank, inputs), torch.randn(outputs, rank)
    return {f"{LAYER}.residual_A": a, f"{LAYER}.residual_B": b}, b.double() @ a.double()


def merged(tmp_path, base, residual, scaling):
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
def test_a_weight_changes_as_with_peft(tmp_path, monkeypatch, shape, is_transposed, dtype, numbers):
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
