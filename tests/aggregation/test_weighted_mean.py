"""The mean: that of a plain float64 sum, the same bits however the body is cut."""

from fractions import Fraction
from functools import partial

import numpy as np
import pytest
import torch
from folding import Frames, MemorySink
from hypothesis import given, settings
from hypothesis import strategies as st
from support import FLOATS, INTEGERS, cuts, entries, tensor

from flstream.aggregation.elements import Elements
from flstream.aggregation.rules import Rule
from flstream.aggregation.steps import Steps
from flstream.aggregation.updates import Update
from flstream.aggregation.walk import fold_updates
from flstream.model.dtypes import BY_CODE, torch_dtype
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource, MemoryBody

WEIGHTS = (3.0, 1.0, 7.5)


def fold(layout: Layout, updates, weights, step=1 << 20, base=None) -> bytes:
    """The mean of bodies of bytes, folded range by range."""
    sink = MemorySink(layout)
    old = BufferSource(layout, memoryview(bytearray(base or layout.nbytes)))
    kind = "DIFF" if base else "FULL"
    sources = [BufferSource(layout, memoryview(bytearray(data))) for data in updates]
    sent = [
        Update(f"site-{i}", partial(Frames, source, 16), weight, kind)
        for i, (source, weight) in enumerate(zip(sources, weights, strict=True))
    ]
    rule = Rule(on_nonfinite="allow")
    fold_updates(old, sent, rule, sink, Steps(step, 16), lambda _: None)
    return bytes(sink.body)


def mean_of(tensors, weights=None, base=None, step=1 << 20):
    """The mean of tensors of one dtype, in their order."""
    bodies = [MemoryBody.of({"w": each}) for each in tensors]
    layout = bodies[0].layout
    data = [b"".join(body.views(0, layout.nbytes)) for body in bodies]
    old = None
    if base is not None:
        old = b"".join(MemoryBody.of({"w": base}).views(0, layout.nbytes))
    folded = bytearray(fold(layout, data, weights or [1.0] * len(data), step, old))
    return torch.frombuffer(folded, dtype=tensors[0].dtype).reshape(tensors[0].shape)


def bits(value: torch.Tensor) -> bytes:
    return value.contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("code", FLOATS)
@pytest.mark.parametrize("elements", [1, 7, 16_384, 50_001])
def test_floats_are_the_float64_mean_rounded_once(code, elements):
    updates = [tensor(code, (elements,), seed) for seed in range(3)]
    total = sum(update.double() * weight for update, weight in zip(updates, WEIGHTS, strict=True))
    due = (total / sum(WEIGHTS)).to(torch_dtype(code))
    assert bits(mean_of(updates, WEIGHTS)) == bits(due)


def test_complex_numbers_are_averaged_by_their_parts():
    updates = [torch.complex(tensor("F32", (99,), i), tensor("F32", (99,), -i)) for i in range(3)]
    total = sum(u.to(torch.complex128) * w for u, w in zip(updates, WEIGHTS, strict=True))
    assert torch.equal(mean_of(updates, WEIGHTS), (total / sum(WEIGHTS)).to(torch.complex64))


def exact_mean(values, weights):
    """Half to even, of the exact quotient."""
    total = sum(Fraction(w) * v for v, w in zip(values, weights, strict=True))
    return round(total / sum(map(Fraction, weights)))


@pytest.mark.parametrize("code", [c for c in INTEGERS if BY_CODE[c].itemsize < 8])
@given(st.data())
@settings(max_examples=30)
def test_integers_are_the_exact_mean_rounded_half_to_even(code, data):
    limits = np.iinfo(BY_CODE[code].numpy_name)
    sites = data.draw(st.integers(1, 4))
    row = st.lists(st.integers(limits.min, limits.max), min_size=5, max_size=5)
    rows = [data.draw(row) for _ in range(sites)]
    weights = data.draw(st.lists(st.integers(1, 64).map(float), min_size=sites, max_size=sites))
    folded = mean_of([torch.tensor(row, dtype=torch_dtype(code)) for row in rows], weights)
    due = [exact_mean(values, weights) for values in zip(*rows, strict=True)]
    assert folded.tolist() == due


@pytest.mark.parametrize("code", ["I64", "U64"])
@given(st.data())
@settings(max_examples=50)
def test_64_bit_integers_are_the_mean_to_15_digits_of_their_spread(code, data):
    limits = np.iinfo(BY_CODE[code].numpy_name)
    edges = st.sampled_from([limits.min, limits.min + 1, limits.max - 1, limits.max])
    numbers = st.one_of(st.integers(limits.min, limits.max), edges)
    values = data.draw(st.lists(numbers, min_size=1, max_size=4))
    weight = st.one_of(st.integers(1, 64).map(float), st.sampled_from([1e-20, 1e-300, 1e20]))
    weights = data.draw(st.lists(weight, min_size=len(values), max_size=len(values)))
    folded = mean_of([torch.tensor([v], dtype=torch_dtype(code)) for v in values], weights)
    spread = max(values) - min(values)
    assert abs(folded.tolist()[0] - exact_mean(values, weights)) <= spread * 2**-50 + 1


@pytest.mark.parametrize("order", [1, -1])
def test_a_half_is_rounded_to_even_whichever_update_comes_first(order):
    values = [torch.tensor([v], dtype=torch.uint8) for v in (0, 255)][::order]
    assert mean_of(values).tolist() == [128]
    values = [torch.tensor([v], dtype=torch.int8) for v in (-128, 127)][::order]
    assert mean_of(values).tolist() == [0]
    values = [torch.tensor([v], dtype=torch.int64) for v in (2**60 + 1, 2**60 + 2)][::order]
    assert mean_of(values).tolist() == [2**60 + 2]


@pytest.mark.parametrize("value", [2**53 + 1, 2**63 - 1, -(2**63), -(2**53) - 1, 0])
@pytest.mark.parametrize("weights", [(1.0, 1.0, 1.0), (0.1, 0.7, 1e9)])
def test_a_large_integer_that_all_agree_on_stays_as_it_is(value, weights):
    agreed = torch.tensor([value] * 3)
    assert torch.equal(mean_of([agreed] * 3, weights), agreed)


def test_the_ends_of_64_bits_average_to_their_middle():
    low, high = torch.iinfo(torch.int64).min, torch.iinfo(torch.int64).max
    assert mean_of([torch.tensor([low, high]), torch.tensor([high, low])]).tolist() in (
        [0, 0],
        [0, -1],
    )
    top = torch.tensor([2**64 - 1], dtype=torch.uint64)
    zero = torch.tensor([0], dtype=torch.uint64)
    assert mean_of([zero, top]).tolist() == [2**63]
    # The step between them rounds to 2^64: it must not lead round to the other end.
    assert mean_of([zero, top], [1e-20, 1.0]).tolist() == [2**64 - 1]
    assert mean_of([torch.tensor([low]), torch.tensor([high])], [1e-20, 1.0]).tolist() == [high]
    assert mean_of([torch.tensor([high]), torch.tensor([low])], [1e-20, 1.0]).tolist() == [low]


def test_a_bool_is_true_where_more_than_half_the_weight_says_so():
    updates = [
        torch.tensor([True, True, True, False]),
        torch.tensor([True, False, False, False]),
        torch.tensor([True, True, False, False]),
    ]
    assert mean_of(updates).tolist() == [True, True, False, False]
    assert mean_of(updates, [1.0, 2.0, 1.0]).tolist() == [True, False, False, False]
    assert mean_of(updates, [5.0, 2.0, 1.0]).tolist() == [True, True, True, False]


@pytest.mark.parametrize("code", ["F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"])
def test_minus_zero_stays_minus_zero_where_all_agree(code):
    minus = torch.tensor([-0.0, -0.0], dtype=torch.float32).to(torch_dtype(code))
    assert bits(mean_of([minus] * 3, WEIGHTS)) == bits(minus)
    mixed = mean_of([minus, minus.float().neg().to(minus.dtype)])
    assert not mixed.float().signbit().any()


def test_half_floats_of_large_weights_do_not_overflow():
    updates = [torch.full((9,), 100.0, dtype=torch.float16) for _ in range(3)]
    assert (mean_of(updates, [1000.0] * 3) == 100).all()
    top = torch.full((9,), 65504.0, dtype=torch.float16)
    assert (mean_of([top] * 4, [1e6] * 4) == 65504).all()


def test_a_mean_of_one_update_is_that_update():
    for code in BY_CODE:
        update = tensor(code, (100,))
        assert bits(mean_of([update], [8.0])) == bits(update), code


def test_weights_count_only_by_their_ratio():
    updates = [tensor("F32", (1000,), seed) for seed in range(3)]
    small = mean_of(updates, [1.0, 2.0, 4.0])
    assert bits(small) == bits(mean_of(updates, [256.0, 512.0, 1024.0]))


def test_a_nan_stays_a_nan_and_touches_no_other_element():
    first, second = torch.tensor([1.0, float("nan"), 3.0]), torch.tensor([3.0, 1.0, 5.0])
    folded = mean_of([first, second])
    assert folded.isnan().tolist() == [False, True, False]
    assert folded[[0, 2]].tolist() == [2.0, 4.0]


@pytest.mark.parametrize("code", [*FLOATS, "C64"])
def test_a_difference_counts_as_the_base_plus_itself(code):
    base = tensor(code, (1000,), 9)
    deltas = [tensor(code, (1000,), seed) for seed in range(3)]
    wide = torch.complex128 if code == "C64" else torch.float64
    total = sum((base.to(wide) + d.to(wide)) * w for d, w in zip(deltas, WEIGHTS, strict=True))
    due = (total / sum(WEIGHTS)).to(torch_dtype(code))
    # Eighths below a hundred: every product and sum is exact in float64, so bits can be compared.
    assert bits(mean_of(deltas, WEIGHTS, base)) == bits(due)


@pytest.mark.parametrize("code", [*INTEGERS, "BOOL"])
def test_a_difference_of_integers_gives_what_the_whole_update_gives(code):
    name = BY_CODE[code].numpy_name
    base = tensor(code, (500,), 9).numpy()
    updates = [tensor(code, (500,), seed).numpy() for seed in range(3)]
    deltas = [u ^ base if code == "BOOL" else (u - base).astype(name) for u in updates]
    due = mean_of([torch.from_numpy(u) for u in updates], WEIGHTS)
    assert torch.equal(
        mean_of([torch.from_numpy(d) for d in deltas], WEIGHTS, torch.from_numpy(base)), due
    )


@given(entries().filter(len), st.data())
@settings(max_examples=40)
def test_the_mean_has_the_same_bits_however_the_body_is_cut(given_entries, data):
    layout = Layout.of(given_entries)
    body = st.binary(min_size=layout.nbytes, max_size=layout.nbytes)
    booleans = [s for s in layout.tensors if s.dtype == "BOOL"]
    updates = [bytearray(data.draw(body)) for _ in range(3)]
    for update in updates:
        for spec in booleans:
            update[spec.start : spec.stop] = bytes(b & 1 for b in update[spec.start : spec.stop])
    base = data.draw(st.sampled_from([None, updates[0]]))
    with np.errstate(all="ignore"):
        whole = fold(layout, updates, WEIGHTS, base=base)
        step = data.draw(cuts(layout.nbytes))
        assert fold(layout, updates, WEIGHTS, step, base) == whole


@pytest.mark.parametrize("code", BY_CODE)
def test_blocks_of_a_long_range_are_folded_alike(code):
    updates = [tensor(code, (40_000,), seed) for seed in range(2)]
    assert bits(mean_of(updates)) == bits(mean_of(updates, step=4096))


@given(
    code=st.sampled_from(["F64", "F32", "F16", "BF16"]),
    shape=st.lists(st.integers(1, 9), max_size=3).map(tuple),
    weights=st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=6),
    seed=st.integers(0, 99),
    step=cuts(3000),
)
@settings(max_examples=60, deadline=None)
def test_floats_are_within_an_ulp_of_the_exact_mean(code, shape, weights, seed, step):
    generator = torch.Generator().manual_seed(seed)
    dtype = torch_dtype(code)
    updates = [torch.randn(shape, generator=generator).to(dtype) for _ in weights]
    found = mean_of(updates, weights, step=step)
    # Where values cancel, what float64 rounds off shows.
    largest = max(float(u.abs().max()) for u in updates)
    least = torch.finfo(dtype).smallest_normal + 2**-48 * largest
    for place, values in enumerate(zip(*(u.flatten().tolist() for u in updates), strict=True)):
        exact = sum(Fraction(w) * Fraction(v) for w, v in zip(weights, values, strict=True))
        exact /= sum(map(Fraction, weights))
        ulp = torch.finfo(dtype).eps * abs(exact)
        assert abs(Fraction(found.flatten()[place].item()) - exact) <= max(ulp, least)


@pytest.mark.parametrize("code", ["BF16", "F8_E4M3", "F8_E5M2"])
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
    elements = Elements(code, memoryview(stored))
    elements.store(slice(0, len(given)), given.copy())
    found = torch.frombuffer(stored, dtype=dtype).double().numpy()
    nearest = np.abs(given[:, None] - values[None, :]).min(axis=1)
    assert (np.abs(found - given) == nearest).all()
