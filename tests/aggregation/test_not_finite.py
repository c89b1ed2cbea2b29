"""Infinities and NaNs: the site is refused by name, and nothing of its update is used."""

import pickle

import pytest
import torch
from folding import fold, fold_into, shifted, update
from support import assert_same_tensors, tensor

from flstream.aggregation.elements import Elements
from flstream.aggregation.rules import AggregationRule
from flstream.errors import AggregationError, UpdateRefusedError
from flstream.model.dtypes import BY_CODE, torch_dtype


def states(elements=40_000):
    base = {"F32.w": tensor("F32", (elements,), 9), "F32.z": tensor("F32", (4, 5), 9)}
    return base, [shifted(base, seed) for seed in range(3)]


def test_infinities_that_cancel_are_found_in_the_first_of_the_two_sites():
    base, sent = states()
    sent[1]["F32.w"][5], sent[2]["F32.w"][5] = float("inf"), float("-inf")
    with pytest.raises(UpdateRefusedError, match="site-1"):
        fold(base, [update(f"site-{i}", s) for i, s in enumerate(sent)])


def test_a_number_that_its_weight_takes_beyond_float64_is_its_sites_alone():
    base = {"w": torch.zeros(5000, dtype=torch.float64)}
    large = {"w": base["w"].clone()}
    large["w"][4321] = -1e300
    sent = [update("site-0", base, 1e15), update("site-1", large, 1e15)]
    with pytest.raises(
        UpdateRefusedError, match=r"site-1 .*'w' at \[4321\], times the weight 1e\+15"
    ):
        fold(base, sent)
    assert fold(base, [update("site-1", large, 1e3)])["w"][4321] == -1e300


def test_a_tensor_that_is_not_aggregated_may_hold_anything():
    base, sent = states()
    sent[0]["F32.z"][:] = float("nan")
    rule = AggregationRule(exclude=[r"\.z$"])
    found = fold(base, [update(f"site-{i}", s) for i, s in enumerate(sent)], rule)
    assert torch.equal(found["F32.z"], base["F32.z"])


@pytest.mark.parametrize("code", ["F32", "F16", "BF16", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"])
def test_differences_that_leave_the_range_of_the_type_fail_by_tensor(code):
    top = torch.finfo(torch_dtype(code)).max
    base = {"w": torch.tensor([1.0, top]).to(torch_dtype(code))}
    delta = {"w": torch.tensor([1.0, top]).to(torch_dtype(code))}
    with pytest.raises(AggregationError, match=r"tensor 'w' at \[1\] would not be finite"):
        fold(base, [update("site-1", delta, params_type="DIFF")])


def test_the_bytes_that_are_not_finite_are_those_that_torch_says_so_of():
    for code in (code for code in BY_CODE if code.startswith("F8")):
        every = torch.arange(256).to(torch.uint8)
        wide = every.view(torch_dtype(code)).double()
        for byte, value in zip(every, wide, strict=True):
            found = Elements(code, memoryview(bytearray([byte]))).first_not_finite(slice(0, 1))
            assert (found is None) == bool(value.isfinite()), (code, byte)


def test_scales_without_sign_or_zero_are_not_averaged_and_may_be_left_out():
    base = {"F32.w": torch.ones(3), "F8_E8M0.scale": torch.ones(3).to(torch.float8_e8m0fnu)}
    sent = [update(f"site-{i}", shifted(base, i)) for i in range(2)]
    with pytest.raises(AggregationError, match=r"'F8_E8M0.scale' is .* aggregation\.exclude"):
        fold(base, sent)
    found = fold(base, sent, AggregationRule(exclude=["scale"]))
    assert_same_tensors({"s": found["F8_E8M0.scale"]}, {"s": base["F8_E8M0.scale"]})


def test_a_base_that_is_not_finite_is_no_fault_of_a_site():
    base = {"w": torch.tensor([float("nan"), 1.0])}
    delta = {"w": torch.tensor([1.0, 1.0])}
    with pytest.raises(AggregationError, match=r"'w' at \[0\]"):
        fold(base, [update("site-1", delta, params_type="DIFF")])
    assert fold(base, [update("site-1", delta)])["w"].tolist() == [1.0, 1.0]


def test_the_largest_floats_are_finite_and_so_is_their_mean():
    base = {"w": torch.full((3,), torch.finfo(torch.float32).max)}
    found = fold(base, [update(f"site-{i}", base, 1e30) for i in range(3)])
    assert_same_tensors(found, base)


def test_nothing_is_committed_of_a_range_with_a_nan():
    base, sent = states(elements=100)
    sent[0]["F32.w"][0] = float("nan")
    with pytest.raises(UpdateRefusedError):
        fold_into(base, [update("site-0", sent[0])])


def test_a_refusal_survives_pickling():
    error = pickle.loads(pickle.dumps(UpdateRefusedError("site-4", "is late")))
    assert (error.site, error.reason, str(error)) == (
        "site-4",
        "is late",
        "the update of site-4 is late",
    )
