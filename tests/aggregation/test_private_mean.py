"""The private mean: clipped, divided by the expected cohort, noised, and cut in any way."""

import hashlib
import math

import numpy as np
import pytest
import torch
from folding import fold, fold_into, shifted, update
from hypothesis import given, settings
from hypothesis import strategies as st
from support import (
    COMPLEX,
    FLOATS,
    as_bytes,
    assert_same_tensors,
    cuts,
    every_kind,
    tensor,
)

from flstream.aggregation.optimizers import Optimization, ServerOptimizer
from flstream.aggregation.partial_sum import PartialSum
from flstream.aggregation.private import GaussianMechanism, NoiseSource, _log
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.steps import Steps
from flstream.model.checkpoint import FileSink
from flstream.model.memory import MemoryBody

MANY = 1_000_000


def private(clip_norm=1.0, cohort=1, noise=0.0, name="test", **kwargs):
    return AggregationRule(**kwargs).private(GaussianMechanism(clip_norm, cohort, noise, name))


def test_the_noise_on_a_million_numbers_has_the_variance_that_it_is_to_have():
    """Standard deviation z C / n on the mean: within 1% in variance, and no mean of its own."""
    z, norm, cohort = 1.3, 0.7, 8
    deviation = z * norm / cohort
    base = {"w": torch.linspace(-1, 1, MANY, dtype=torch.float64)}
    sent = [update(f"site-{i}", base) for i in range(cohort)]
    found = fold(base, sent, private(norm, cohort, deviation))["w"] - base["w"]
    assert found.var().item() == pytest.approx(deviation**2, rel=0.01)
    assert abs(found.mean().item()) < 5 * deviation / math.sqrt(MANY)
    assert (found**4).mean().item() / deviation**4 == pytest.approx(3.0, abs=0.05)


def test_all_updates_count_alike_and_those_that_are_missing_change_no_denominator():
    base = {"w": torch.zeros(2, dtype=torch.float64)}
    near = {"w": torch.tensor([0.3, 0.4], dtype=torch.float64)}
    far = {"w": torch.tensor([60.0, -80.0], dtype=torch.float64)}
    weigh = private().weighted
    sent = [weigh(update("near", near, 1.0)), weigh(update("far", far, 1000.0))]
    found = fold(base, sent, private(1.0, 2))["w"]
    assert found.tolist() == pytest.approx([(0.3 + 0.6) / 2, (0.4 - 0.8) / 2])
    found = fold(base, sent, private(1.0, 5))["w"]  # three of five have failed
    assert found.tolist() == pytest.approx([(0.3 + 0.6) / 5, (0.4 - 0.8) / 5])
    found = fold(base, [], private(1.0, 5))["w"]
    assert found.tolist() == [0.0, 0.0]


@given(seed=st.integers(0, 99), size=st.floats(1e-3, 1e6), sites=st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_one_site_moves_the_model_by_its_share_of_the_norm_at_most(seed, size, sites):
    generator = torch.Generator().manual_seed(seed)
    base = {n: torch.randn(50, generator=generator, dtype=torch.float64) for n in "ab"}
    states = [
        {n: v + size * torch.randn(50, generator=generator, dtype=torch.float64)
         for n, v in base.items()}
        for _ in range(sites)
    ]  # fmt: skip
    rule, sent = private(0.5, 4, 0.1), [update(str(i), state) for i, state in enumerate(states)]
    with_it, without = fold(base, sent, rule), fold(base, sent[:-1], rule)
    moved = math.sqrt(sum(float(((with_it[n] - without[n]) ** 2).sum()) for n in base))
    assert moved <= 0.5 / 4 * (1 + 1e-9)


def test_what_a_partial_update_lacks_counts_as_no_difference_and_is_noised_all_the_same():
    base = {name: torch.zeros(1000, dtype=torch.float64) for name in ("both", "one", "none")}
    ones = torch.full((1000,), 1e-3, dtype=torch.float64)
    sent = [
        update("site-1", {"both": ones, "one": ones.clone()}, partial=True),
        update("site-2", {"both": ones}, partial=True),
    ]
    plain = fold(base, sent, private(1.0, 4))
    assert [plain[name][0].item() for name in ("both", "one", "none")] == [0.5e-3, 0.25e-3, 0.0]
    noisy = fold(base, sent, private(1.0, 4, 0.1))
    for name, value in noisy.items():
        assert (value - plain[name]).std().item() == pytest.approx(0.1, rel=0.15)
    assert not torch.equal(noisy["none"], noisy["one"] - plain["one"])  # each tensor its own


def test_only_floats_are_aggregated_and_all_else_keeps_its_values():
    base, sent = every_kind(), shifted(every_kind(), 5)
    found = fold(base, [update("site-1", sent)], private(1e-6, 1, 20.0, exclude=["^F16"]))
    for name, value in base.items():
        is_noised = name.split(".")[0] in {*FLOATS, *COMPLEX} - {"F16"} and value.numel()
        assert (as_bytes(found[name]) != as_bytes(value)) == bool(is_noised), name


def test_noise_comes_before_the_server_optimizer():
    base, sent = {"w": torch.zeros(100)}, {"w": torch.full((100,), 0.01)}
    rule = private(1.0, 2, 0.1)
    mean = fold(base, [update("site-1", sent)], rule)["w"]
    optimizer = ServerOptimizer("fedavgm", 0.5, 0.0, 0.9, 1e-3)
    state = optimizer.state_layout(MemoryBody.of(base).layout, rule)
    optimization = Optimization(optimizer, None, MemoryBody.allocate(state))
    found = fold(base, [update("site-1", sent)], rule, optimization=optimization)["w"]
    assert torch.allclose(found, 0.5 * mean, rtol=1e-6)


@given(step=cuts(300_000), seed=st.integers(0, 9))
@settings(max_examples=8, deadline=None)
def test_a_private_model_has_the_same_bits_however_it_was_cut(step, seed):
    base = {"F32.w": tensor("F32", (70_001,)), "BF16.w": tensor("BF16", (999,))}
    base |= {f"F64.{i}": tensor("F64", (i,)) for i in range(5)}  # several in one block
    sent = [update(f"{i}", shifted(base, i + seed)) for i in range(3)]
    rule = private(7.0, 4, 0.3)
    assert fold_into(base, sent, rule, max(step, 4096))[1] == fold_into(base, sent, rule)[1]


def test_a_partial_sum_ends_in_the_same_private_model_and_knows_who_was_clipped(tmp_path):
    base = {"w": tensor("F32", (5000,)), "n": tensor("I32", (5,)), "v": tensor("F64", (3,))}
    states = [shifted_plainly(base, 10.0**-i) for i in range(4)]
    sent = [update(f"site-{i}", state) for i, state in enumerate(states)]
    rule, body, steps = private(5.0, 6, 0.3), MemoryBody.of(base), Steps(4096, 16)
    PartialSum(tmp_path / "sum.safetensors", body, rule, "x").add(sent[:2], steps, lambda _: None)
    sums = PartialSum(tmp_path / "sum.safetensors", body, rule, "x")  # another process goes on
    sums.add(sent[2:], steps, lambda _: None)
    assert sums.clipped == ("site-0", "site-1")
    with FileSink(tmp_path / "next.safetensors", body.layout) as sink:
        digest = sums.finish(sink, steps, lambda _: None)
        sink.finish()
    assert digest == fold_into(base, sent, rule)[1]


def shifted_plainly(state, by):
    return {n: v + by if v.is_floating_point() else v for n, v in state.items()}


def test_the_noise_follows_from_the_name_of_the_fold_alone():
    base = {"w": torch.zeros(1000, dtype=torch.float64)}
    noise = {
        name: fold(base, [], private(1.0, 2, 1.0, name))["w"].numpy() for name in ("a", "b", "a/1")
    }
    again = fold(base, [update("site-1", base)], private(9.0, 3, 1.0, "a"))
    assert_same_tensors(again, {"w": torch.from_numpy(noise["a"])})
    assert abs(np.corrcoef(noise["a"], noise["b"])[0, 1]) < 0.15
    assert abs(np.corrcoef(noise["a"], noise["a/1"])[0, 1]) < 0.15


def numbers(name, count, first=0):
    out = np.empty(count)
    NoiseSource(name).fill(first, out)
    return out


@pytest.fixture(scope="module")
def million():
    return numbers("flstream/test", MANY)


def test_a_million_numbers_have_the_moments_of_a_normal_distribution(million):
    error = 1 / math.sqrt(MANY)  # of the mean; the bounds below are five standard errors
    assert abs(million.mean()) < 5 * error
    assert million.var() == pytest.approx(1.0, abs=0.01)
    assert abs((million**3).mean()) < 5 * math.sqrt(15) * error
    assert (million**4).mean() == pytest.approx(3.0, abs=5 * math.sqrt(96) * error)


def test_a_million_numbers_have_the_distribution_function_of_a_normal_one(million):
    found = np.sort(million)
    due = np.array([0.5 * math.erfc(-each / math.sqrt(2)) for each in found[:: MANY // 1000]])
    steps = np.arange(0, MANY, MANY // 1000) / MANY
    assert np.abs(due - steps).max() < 2.0 / math.sqrt(MANY)  # Kolmogorov and Smirnov, at 0.0007
    assert 4.4 < np.abs(million).max() < 6.5


def test_neighbours_tensors_and_rounds_have_nothing_in_common(million):
    bound = 5 / math.sqrt(MANY)
    pairs = million[: MANY // 4 * 4].reshape(-1, 4)
    for other in range(1, 4):  # the numbers of one step of the counter
        assert abs(np.corrcoef(pairs[:, 0], pairs[:, other])[0, 1]) < 2 * bound
        assert abs(np.corrcoef(pairs[:, 0] ** 2, pairs[:, other] ** 2)[0, 1]) < 2 * bound
    for other in ("flstream/test/1", "flstream/tess", ""):
        assert abs(np.corrcoef(million, numbers(other, MANY))[0, 1]) < bound


@given(first=st.integers(0, 40_000), count=st.integers(0, 9000))
def test_a_range_has_the_bits_that_it_has_in_the_whole(million, first, count):
    found = numbers("flstream/test", count, first)
    assert found.tobytes() == million[first : first + count].tobytes()


def test_a_range_far_behind_can_be_computed_by_itself():
    far = 10**12 + 3
    assert numbers("far", 5, far).tobytes() == numbers("far", 9, far - 4)[4:].tobytes()


def test_the_bits_are_those_of_any_machine():
    """Noise is made of operations that IEEE 754 rounds in one way: these were written down once."""
    digest = hashlib.sha256(numbers("flstream/privacy/7/1/w", 10_000).tobytes()).hexdigest()
    assert digest == "35fc6e76c05119835d90da6d21cbbf1054ac8811fa45d18b4ffd33dd87b74d43"


@given(values=st.lists(st.floats(2.0**-53, 1.0), min_size=1, max_size=50))
def test_the_logarithm_is_that_of_the_mathematicians(values):
    found = np.array(values)
    _log(found, *(np.empty(len(values)) for _ in range(3)))
    assert found == pytest.approx([math.log(value) for value in values], rel=1e-15, abs=0)
