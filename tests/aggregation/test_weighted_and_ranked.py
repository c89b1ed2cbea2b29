"""Mean, median and trimmed mean at the ends of every type. The rest is in the contract."""

import numpy as np
import pytest
import torch
from folding import fold, update
from support import as_bytes

from flstream.aggregation.ranked import fraction_trim
from flstream.model.dtypes import LARGEST, numbers_in, store, torch_dtype


def mean_of(tensors, weights=None, step=1 << 20):
    """The mean of tensors of one dtype, in their order."""
    updates = [
        update(f"site-{i}", {"w": value}, weight)
        for i, (value, weight) in enumerate(
            zip(tensors, weights or [1.0] * len(tensors), strict=True)
        )
    ]
    return fold({"w": torch.zeros_like(tensors[0])}, updates, step=step)["w"]


@pytest.mark.parametrize(
    ("dtype", "values", "due", "weights"),
    [
        # A half is rounded to even.
        (torch.uint8, [0, 255], 128, None),
        (torch.int8, [-128, 127], 0, None),
        # Integers on which all agree, and the ends of 64 bits.
        (torch.int64, [2**50 + 1] * 3, 2**50 + 1, [0.1, 0.7, 1e9]),
        (torch.uint64, [0, 2**64 - 1], 2**64 - 1, [1e-20, 1.0]),
        (torch.int64, [-(2**63), 2**63 - 1], 2**63 - 1, [1e-20, 1.0]),
        # More than half the weight.
        (torch.bool, [True, False, True], True, [5.0, 2.0, 1.0]),
        (torch.bool, [True, False, True], False, [1.0, 2.0, 1.0]),
        # The largest floats of large weights do not overflow.
        (torch.float16, [65504.0] * 4, 65504.0, [1e6] * 4),
        (torch.float32, [LARGEST["F32"]] * 3, LARGEST["F32"], [1e30] * 3),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_the_ends_of_types(dtype, values, due, weights, order):
    tensors = [torch.tensor([value], dtype=dtype) for value in values][::order]
    assert mean_of(tensors, weights and weights[::order]).tolist() == [due]


@pytest.mark.parametrize("code", ["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"])
def test_minus_zero_stays_minus_zero_where_all_agree(code):
    minus = torch.tensor([-0.0, -0.0], dtype=torch.float32).to(torch_dtype(code))
    assert as_bytes(mean_of([minus] * 3, [3.0, 1.0, 7.5])) == as_bytes(minus)
    mixed = mean_of([minus, minus.float().neg().to(minus.dtype)])
    assert not mixed.float().signbit().any()


@pytest.mark.parametrize("code", ["BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"])
def test_small_floats_are_rounded_once_to_the_nearest(code):
    # torch goes by way of float32, where what is just beside a tie becomes one.
    dtype = torch_dtype(code)
    # All of a type of one byte; 256 neighbours of bfloat16, from 1 to 4.
    bits = torch.arange(256).to(torch.uint8 if dtype.itemsize == 1 else torch.int16)
    every = (bits if dtype.itemsize == 1 else bits + 0x3F80).view(dtype)
    values = np.unique(every.double().numpy())
    values = values[np.isfinite(values)]
    middle = (values[1:] + values[:-1]) / 2
    given = np.concatenate(
        [values, middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf)]
    )
    stored = bytearray(len(given) * dtype.itemsize)
    store(given, numbers_in(code, memoryview(stored)))
    found = torch.frombuffer(stored, dtype=dtype).double().numpy()
    nearest = np.abs(given[:, None] - values[None, :]).min(axis=1)
    assert (np.abs(found - given) == nearest).all()


@pytest.mark.parametrize(
    ("fraction", "count", "left_out"),
    [(0.1, 10, 1), (0.1, 9, 0), (0.3, 10, 3), (0.49, 100, 49), (0.499, 2, 0), (0.0, 5, 0)],
)
def test_a_fraction_is_rounded_down_to_whole_values(fraction, count, left_out):
    assert fraction_trim(fraction)(count) == left_out
