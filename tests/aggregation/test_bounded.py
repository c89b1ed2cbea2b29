"""Clipped and private means: no update moves the model further than it may."""

import math

import numpy as np
import pytest
import torch
from folding import fold, sent, shifted, step_of
from hypothesis import given, settings
from hypothesis import strategies as st
from support import COMPLEX, FLOATS, FOLDED, as_bytes, assert_same_tensors, cuts, every_kind, tensor

from flstream.aggregation.clipping import AdaptiveNorm
from flstream.aggregation.optimizers import ServerOptimizer
from flstream.aggregation.private import NoiseSource
from flstream.aggregation.rules import AggregationRule, GaussianMechanism


def wide(value):
    return value.to(torch.complex128)


@given(seed=st.integers(0, 99), share=st.floats(0.01, 2.0), full=st.booleans(), step=cuts(1400))
@settings(max_examples=30, deadline=None)
def test_a_difference_is_scaled_to_the_norm_it_may_have(seed, share, full, step):
    base, state = every_kind(FOLDED), shifted(every_kind(FOLDED), seed)
    floats = [n for n, value in base.items() if value.is_floating_point() or value.is_complex()]
    moved = {name: wide(state[name]) - (wide(base[name]) if full else 0) for name in floats}
    norm = math.sqrt(sum((each.abs() ** 2).sum().item() for each in moved.values()))
    updates = sent([state], [3.0], "FULL" if full else "DIFF")
    found = fold(base, updates, AggregationRule(clip_norm=norm * share), step=step)
    plain = fold(base, updates)
    if share >= 1:
        assert_same_tensors(found, plain)
        return
    for name in ("F64.matrix", "F32.matrix", "F32.scalar", "C64.matrix"):
        due = wide(base[name]) + moved[name] * share
        assert torch.allclose(wide(found[name]), due, rtol=2e-7, atol=1e-12)
    for name in plain.keys() - set(floats):  # integers and bools are not scaled
        assert torch.equal(found[name], plain[name])


def test_each_update_is_clipped_by_the_norm_of_what_is_aggregated_of_it():
    base = {"w": torch.zeros(2), "z": tensor("F32", (2,))}
    near, far = ({"w": torch.tensor([3.0, 4.0]) * by, "z": base["z"]} for by in (1, 200))
    # The last is the median of the norms 5, 5 and 1000.
    for most, states, due in (
        (5.0, [near, far], [3.0, 4.0]),
        (10.0, [near, far], [4.5, 6.0]),
        ("median", [near, far, near], [3.0, 4.0]),
    ):
        found = fold(base, sent(states), AggregationRule(clip_norm=most))
        torch.testing.assert_close(found["w"], torch.tensor(due))
        assert as_bytes(found["z"]) == as_bytes(base["z"])
    base = {"a": torch.zeros(1), "b": torch.zeros(1)}
    whole, part = {"a": torch.ones(1), "b": torch.tensor([1e6])}, {"a": torch.ones(1)}
    found = fold(base, sent([whole]), AggregationRule(clip_norm=1.0, exclude=["b"]))
    assert (found["a"].item(), found["b"].item()) == (1.0, 0.0)
    found = fold(base, sent([part], partial=True), AggregationRule(clip_norm=1.0))
    assert found["a"].item() == 1.0


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
    # Sites that sent nothing move it neither up nor down.
    adaptive = AdaptiveNorm(0.5, 0.2, 10, 0.0)
    assert adaptive.after(2.0, 0, 0, 0.0) == 2.0
    assert adaptive.after(2.0, 4, 2, 0.0) == 2.0
    assert adaptive.after(2.0, 4, 4, 0.0) > 2.0 > adaptive.after(2.0, 4, 0, 0.0)


MANY = 1_000_000


def private(clip_norm=1.0, cohort=1, noise=0.0, name="test", **kwargs):
    return AggregationRule(**kwargs).private(GaussianMechanism(clip_norm, cohort, noise, name))


def test_all_updates_count_alike_and_those_that_are_missing_change_no_denominator():
    base, *states = (
        {"w": torch.tensor(row, dtype=torch.float64)} for row in ([0, 0], [0.3, 0.4], [60, -80])
    )
    updates = sent(states, [1.0, 1000.0])
    for cohort in (2, 5):  # three of five have failed
        found = fold(base, updates, private(1.0, cohort))["w"]
        assert found.tolist() == pytest.approx([(0.3 + 0.6) / cohort, (0.4 - 0.8) / cohort])
    assert fold(base, [], private(1.0, 5))["w"].tolist() == [0.0, 0.0]


@given(seed=st.integers(0, 99), size=st.floats(1e-3, 1e6), sites=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_one_site_moves_the_model_by_its_share_of_the_norm_at_most(seed, size, sites):
    generator = torch.Generator().manual_seed(seed)
    base = {"w": torch.randn(50, generator=generator, dtype=torch.float64)}
    moves = size * torch.randn(sites, 50, generator=generator, dtype=torch.float64)
    updates = sent([{"w": base["w"] + move} for move in moves])
    with_it, without = (fold(base, some, private(0.5, 4, 0.1)) for some in (updates, updates[:-1]))
    assert (with_it["w"] - without["w"]).norm() <= 0.5 / 4 * (1 + 1e-9)


def test_what_an_update_lacks_counts_as_no_difference_and_all_floats_alone_are_noised():
    base = {name: torch.zeros(1000, dtype=torch.float64) for name in ("both", "one", "none")}
    both, one = (torch.full((1000,), 1e-3, dtype=torch.float64) for _ in range(2))
    updates = sent([{"both": both, "one": one}, {"both": both}], partial=True)
    plain = fold(base, updates, private(1.0, 4))
    assert [plain[name][0].item() for name in ("both", "one", "none")] == [0.5e-3, 0.25e-3, 0.0]
    # Standard deviation z C / n on the mean, which is what the mechanism is given.
    noisy = fold(base, updates, private(1.0, 4, 0.1))
    for name, value in noisy.items():
        assert (value - plain[name]).std().item() == pytest.approx(0.1, rel=0.15)
    assert not torch.equal(noisy["none"], noisy["one"] - plain["one"])  # each tensor its own
    base = every_kind()
    found = fold(base, sent([shifted(base, 5)]), private(1e-6, 1, 20.0, exclude=["^F16"]))
    for name, value in base.items():
        is_noised = name.split(".")[0] in {*FLOATS, *COMPLEX} - {"F16"} and value.numel()
        assert (as_bytes(found[name]) != as_bytes(value)) == bool(is_noised), name


def test_noise_follows_from_the_folds_name_alone_and_comes_before_the_optimizer():
    base = {"w": torch.zeros(1000, dtype=torch.float64)}
    first, other = (fold(base, [], private(1.0, 2, 1.0, name))["w"] for name in ("a", "b"))
    again = fold(base, sent([base]), private(9.0, 3, 1.0, "a"))
    assert_same_tensors(again, {"w": first})
    assert abs(np.corrcoef(first, other)[0, 1]) < 0.15
    base, updates = {"w": torch.zeros(100)}, sent([{"w": torch.full((100,), 0.01)}])
    rule, optimizer = private(1.0, 2, 0.1), ServerOptimizer("fedavgm", 0.5, 0.0, 0.9, 1e-3)
    found, _ = step_of(optimizer, base, updates, rule=rule)
    assert torch.allclose(found["w"], 0.5 * fold(base, updates, rule)["w"], rtol=1e-6)


def numbers(name, count, first=0):
    out = np.empty(count)
    NoiseSource(name).fill(first, out)
    return out


@pytest.fixture(scope="module")
def million():
    return numbers("flstream/test", MANY)


def test_a_million_numbers_have_the_distribution_function_of_a_normal_one(million):
    error = 1 / math.sqrt(MANY)  # of the mean; the bounds below are five standard errors
    assert abs(million.mean()) < 5 * error
    assert million.var() == pytest.approx(1.0, abs=0.01)
    assert (million**4).mean() == pytest.approx(3.0, abs=5 * math.sqrt(96) * error)
    found = np.sort(million)
    due = np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in found[:: MANY // 1000]])
    steps = np.arange(0, MANY, MANY // 1000) / MANY
    assert np.abs(due - steps).max() < 2.0 / math.sqrt(MANY)  # Kolmogorov and Smirnov, at 0.0007
    assert 4.4 < np.abs(million).max() < 6.5


@given(first=st.integers(0, 40_000), count=st.integers(0, 9000))
def test_a_range_has_the_bits_that_it_has_in_the_whole(million, first, count):
    found = numbers("flstream/test", count, first)
    assert found.tobytes() == million[first : first + count].tobytes()
    far = 10**12 + first
    assert numbers("far", 5, far).tobytes() == numbers("far", 9, far - 4)[4:].tobytes()
