"""Norm clipping: no update moves the model further than it may."""

import math

import numpy as np
import pytest
import torch
from folding import fold, fold_into, shifted, update
from hypothesis import given, settings
from hypothesis import strategies as st
from support import FOLDED, as_bytes, assert_same_tensors, cuts, every_kind, tensor

from flstream.aggregation.clipping import AdaptiveNorm, _SquareSum
from flstream.aggregation.rules import AggregationRule
from flstream.errors import UpdateRefusedError


def norm_of(states, base=None, names=None):
    """The L2 norm in plain float64, of a difference or of a state less a base."""
    total = 0.0
    for name in names or states:
        value = states[name]
        if not (value.is_floating_point() or value.is_complex()):
            continue
        wide = torch.complex128 if value.is_complex() else torch.float64
        difference = value.to(wide) - (base[name].to(wide) if base else 0)
        total += float((difference.abs() ** 2).sum())
    return math.sqrt(total)


@given(seed=st.integers(0, 99), share=st.floats(0.01, 2.0), full=st.booleans(), step=cuts(1400))
@settings(max_examples=30, deadline=None)
def test_a_difference_is_scaled_to_the_norm_it_may_have(seed, share, full, step):
    base, sent = every_kind(FOLDED), shifted(every_kind(FOLDED), seed)
    norm = norm_of(sent, base if full else None)
    rule = AggregationRule(clip_norm=norm * share)
    updates = [update("site-1", sent, 3.0, "FULL" if full else "DIFF")]
    found = fold(base, updates, rule, step=step)
    plain = fold(base, updates)
    if share >= 1:
        assert_same_tensors(found, plain)
        return
    for name in ("F64.matrix", "F32.matrix", "F32.scalar", "C64.matrix"):
        wide = torch.complex128 if base[name].is_complex() else torch.float64
        difference = sent[name].to(wide) - (base[name].to(wide) if full else 0)
        due = base[name].to(wide) + difference * share
        assert torch.allclose(found[name].to(wide), due, rtol=2e-7, atol=1e-12)
    for name, value in plain.items():  # integers and bools are not scaled
        if not (value.is_floating_point() or value.is_complex()):
            assert torch.equal(found[name], value)


def test_each_update_is_clipped_for_itself_before_the_mean():
    base = {"w": torch.zeros(2)}
    near, far = {"w": torch.tensor([3.0, 4.0])}, {"w": torch.tensor([600.0, 800.0])}
    updates = [update("near", near), update("far", far)]
    found = fold(base, updates, AggregationRule(clip_norm=5.0))["w"]
    assert torch.allclose(found, torch.tensor([3.0, 4.0]))
    found = fold(base, updates, AggregationRule(clip_norm=10.0))["w"]
    assert torch.allclose(found, torch.tensor([4.5, 6.0]))


def test_only_what_is_aggregated_counts_for_the_norm():
    base = {"a": torch.zeros(1), "b": torch.zeros(1)}
    sent = {"a": torch.tensor([1.0]), "b": torch.tensor([1e6])}
    found = fold(base, [update("site-1", sent)], AggregationRule(clip_norm=1.0, exclude=["b"]))
    assert (found["a"].item(), found["b"].item()) == (1.0, 0.0)
    part = update("site-1", {"a": sent["a"]}, partial=True)
    assert fold(base, [part], AggregationRule(clip_norm=1.0))["a"].item() == 1.0


def test_an_update_equal_to_the_model_leaves_it_as_it_is():
    base = {"w": tensor("F32", (1000,))}
    found = fold(base, [update("site-1", base)], AggregationRule(clip_norm=1e-9))
    assert as_bytes(found["w"]) == as_bytes(base["w"])


@pytest.mark.parametrize("policy", ["reject", "allow"])
def test_a_difference_without_a_finite_norm_is_refused_even_where_it_is_allowed(policy):
    base = {"w": torch.zeros(3)}
    bad = {"w": torch.tensor([1.0, float("nan"), 2.0])}
    updates = [update("site-1", base), update("site-2", bad)]
    with pytest.raises(UpdateRefusedError) as caught:
        fold(base, updates, AggregationRule(clip_norm=1.0, on_nonfinite=policy))
    assert caught.value.site == "site-2"


@given(
    numbers=st.lists(st.floats(-1e100, 1e100), max_size=1500),
    cuts_at=st.lists(st.integers(0, 1500), max_size=6),
)
@settings(max_examples=40, deadline=None)
def test_a_norm_has_the_same_bits_however_it_was_cut(numbers, cuts_at):
    values = np.resize(np.array(numbers or [0.0]), len(numbers) * 3 + 1)
    whole, pieces = _SquareSum(), _SquareSum()
    whole.add(values.copy())
    for piece in np.split(values, sorted(min(at, len(values)) for at in cuts_at)):
        pieces.add(piece.copy())
    assert whole.root() == pieces.root()
    assert whole.root() == pytest.approx(math.hypot(*values), rel=1e-13)


@given(step=cuts(300_000), kind=st.sampled_from(["FULL", "DIFF"]))
@settings(max_examples=8, deadline=None)
def test_a_clipped_model_has_the_same_bits_however_it_was_cut(step, kind):
    base = {"F32.w": tensor("F32", (70_001,)), "BF16.w": tensor("BF16", (999,))}
    step = max(step, 4096)
    updates = [update(f"{i}", shifted(base, i + 3), 1.0 + i, kind) for i in range(2)]
    rule = AggregationRule(clip_norm=7.0)
    assert fold_into(base, updates, rule, step)[1] == fold_into(base, updates, rule)[1]


def test_an_adaptive_norm_follows_the_papers_algorithm_step_by_step():
    """Algorithm 1 of arXiv:1905.03871 in NumPy, with the same noise."""
    rng = np.random.default_rng(3)
    cohort, quantile, rate, deviation = 50, 0.8, 0.2, 2.5
    adaptive = AdaptiveNorm(quantile, rate, cohort, deviation)
    norm = due = 0.1
    for _ in range(60):
        norms, noise = rng.lognormal(size=cohort), rng.normal()
        bits = (norms <= due).astype(float) - 0.5
        fraction = (bits.sum() + deviation * noise) / cohort + 0.5
        due = due * np.exp(-rate * (fraction - quantile))
        norm = adaptive.after(norm, cohort, int((norms > norm).sum()), noise)
        assert norm == pytest.approx(due, rel=1e-9)


def test_an_adaptive_norm_comes_to_the_quantile_of_the_norms():
    rng = np.random.default_rng(5)
    adaptive, norm, last = AdaptiveNorm(0.5, 0.2, 100, 5.0), 0.01, []
    for _ in range(300):
        norms = rng.lognormal(1.0, 0.5, 100)
        norm = adaptive.after(norm, 100, int((norms > norm).sum()), rng.normal())
        last.append(norm)
    assert np.median(last[150:]) == pytest.approx(np.e, rel=0.1)


def test_sites_that_sent_nothing_move_an_adaptive_norm_neither_up_nor_down():
    adaptive = AdaptiveNorm(0.5, 0.2, 10, 0.0)
    assert adaptive.after(2.0, 0, 0, 0.0) == 2.0
    assert adaptive.after(2.0, 4, 2, 0.0) == 2.0
    assert adaptive.after(2.0, 4, 4, 0.0) > 2.0 > adaptive.after(2.0, 4, 0, 0.0)
