"""Filters of models in memory: what each leaves, whatever the chunks in which it is read."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from flstream.errors import ClientError, UsageError
from flstream.filters import selection
from flstream.filters.block import Passage
from flstream.filters.chain import filtered, remaining
from flstream.filters.selection import order_statistics, percentile_of
from flstream.job.filters import FiltersSection
from flstream.model.memory import MemoryBody
from flstream.model.source import Scratch, views_of
from tests.support import FLOATS, as_bytes, assert_same_tensors, body_of, every_kind, tensors_of

UP = Passage("site-1", 2, "up", seed=99)
MANY = 1_000_000


def specs(*sections, folder=None):
    return FiltersSection.model_validate({"up": sections}, context={"folder": folder}).up


def of(kind, **args):
    return {"type": kind, "args": args}


def without(names):
    return of("exclude_vars", exclude_vars=names)


def left(values, *sections, base=None, passage=UP, step=2 << 20, folder=None):
    """What filters leave of tensors."""
    old = None if base is None else MemoryBody.of(base)
    chain = specs(*sections, folder=folder)
    return tensors_of(filtered(MemoryBody.of(values), chain, passage, old), step)


def model_and_update(size=50_000, spread=0.01):
    generator = torch.Generator().manual_seed(5)
    model = {
        "w": torch.randn(size, generator=generator),
        "half": torch.randn(300, 7, generator=generator).bfloat16(),
        "scale": torch.tensor(1.5),
        "steps": torch.tensor([3, 4]),
        "mask": torch.tensor([True, False]),
    }
    update = {
        name: each + spread * torch.randn(each.shape, generator=generator).to(each.dtype)
        if each.is_floating_point()
        else each + 1
        for name, each in model.items()
        if name != "mask"
    }
    return model, {**update, "mask": torch.tensor([False, True])}


def change(model, found, name):
    return (found[name].double() - model[name].double()).numpy().reshape(-1)


@pytest.mark.parametrize("steps", [1, 4])
def test_percentile_privacy_is_that_of_numpy(steps):
    model, update = model_and_update()
    passage = Passage("site-1", 2, "up", 99, steps)
    chain = of("percentile_privacy", percentile=30, gamma=0.004)
    found = left(update, chain, base=model, passage=passage)
    changes = {name: change(model, update, name) for name in ("w", "half", "scale")}
    cutoff = np.percentile(np.abs(np.concatenate(list(changes.values()))), 30)
    for name in ("w", "half"):
        kept = np.where(np.abs(changes[name]) < cutoff, 0, changes[name])
        due = np.clip(kept, -0.004 * steps, 0.004 * steps)
        due = (model[name].double().numpy().reshape(-1) + due).reshape(model[name].shape)
        assert torch.equal(found[name], torch.from_numpy(due).to(model[name].dtype))
    # As in NVFlare, a scalar stays as it is. So do whole numbers and bools.
    kept = ("scale", "steps", "mask")
    assert_same_tensors({n: found[n] for n in kept}, {n: update[n] for n in kept})


def test_noise_has_its_variance_differs_by_seed_direction_place_and_tensor_and_is_repeated():
    zeros, noise = {"w": np.zeros(100)}, of("gaussian", sigma=1.0)
    first, *others = (
        as_bytes(left(zeros, *chain, passage=passage)["w"])
        for passage, chain in (
            (UP, [noise]),
            (replace(UP, seed=98), [noise]),
            (replace(UP, direction="down"), [noise]),
            (UP, [without("nothing"), noise]),
        )
    )
    assert len({first, *others}) == 4
    assert as_bytes(left(zeros, noise, step=16)["w"]) == first
    found = left({"a": np.zeros(MANY), "b": np.zeros(MANY)}, of("gaussian", sigma=0.5))
    a, b = found["a"].numpy(), found["b"].numpy()
    assert abs(a.var() / 0.25 - 1) < 0.01
    assert abs(np.corrcoef(a, b)[0, 1]) < 4 / math.sqrt(MANY)


def test_svt_shares_the_fraction_with_noise_and_prefers_large_changes():
    size, gamma = 200_000, 0.01
    sent = np.full(size, 1e-6)
    sent[: size // 2] = 1.0  # counts as gamma
    args = {"fraction": 0.1, "epsilon": 50.0, "noise_var": 40.0, "gamma": gamma, "tau": 0.009}
    found = left({"w": sent, "scalar": np.array(3.0)}, of("svt_privacy", **args))
    assert found["scalar"] == 3.0
    out = found["w"].numpy()
    shared = out != 0
    assert shared.sum() == size // 10
    # The chance of each half, by the tail of Laplace's distribution.
    count = size // 10
    scale = gamma * 4 * count / (50.0 * (2 * count) ** (2 / 3))
    due = np.exp(0.01 / scale)
    large, small = shared[: size // 2].sum(), shared[size // 2 :].sum()
    assert abs(large / small / due - 1) < 0.1
    assert np.abs(out).max() <= gamma
    # A small shared change is its noise, cut at gamma: Laplace of scale 2 gamma / noise_var.
    noise = out[size // 2 :][shared[size // 2 :]]
    assert abs(np.abs(noise).mean() / (2 * gamma / 40.0) - 1) < 0.05
    assert abs((noise > 0).mean() - 0.5) < 0.03


def test_excluded_tensors_are_gone_with_their_tied_names():
    model, _ = model_and_update(100)
    tied = {**model, "head": model["w"], "other": torch.ones(3)}
    body = MemoryBody.of(tied)
    by_name = filtered(body, specs(without(["w", "mask"])), UP)
    assert list(by_name.layout.by_name) == ["steps", "other", "scale", "half"]
    assert by_name.layout.aliases == {}
    assert by_name.layout.is_canonical
    by_pattern = left(tied, without("^(ot|st|w)"), step=16)
    assert_same_tensors(by_pattern, {name: model[name] for name in ("scale", "half", "mask")})
    for wrong, flaw in (
        (["w", "absent"], ": .*'absent'.* no tensor"),
        ("^absent$", ": .*absent.* no tensor"),
        (".", " leaves no tensor"),
    ):
        with pytest.raises(UsageError, match=rf"filters.up\[0\].args.exclude_vars{flaw}"):
            remaining(body.layout, specs(without(wrong)), "up")


ALL = [
    of("percentile_privacy", percentile=20),
    of("svt_privacy", fraction=0.5, gamma=0.01),
    without(["half"]),
    of("gaussian", sigma=0.001),
]


@pytest.mark.parametrize("is_difference", [True, False])
def test_a_chain_gives_the_same_bytes_in_any_chunks_and_order(is_difference):
    model, update = model_and_update()
    base = None if is_difference else MemoryBody.of(model)
    source = filtered(MemoryBody.of(update), specs(*ALL), UP, base)
    whole = body_of(source)
    assert set(source.layout.by_name) == {"w", "scale", "steps", "mask"}
    for step in (16, 4096, 65_536 + 16, 2 << 20):
        ranges = list(source.layout.ranges(step))
        if step == 4096:
            ranges.reverse()
        for start, stop in ranges:
            assert b"".join(views_of(source, start, stop, Scratch())) == whole[start:stop]


@pytest.mark.parametrize("code", FLOATS)
def test_every_float_is_filtered_and_nothing_else(code):
    values = every_kind()
    found = left(values, of("gaussian", sigma=8.0))
    assert not torch.equal(found[f"{code}.matrix"].double(), values[f"{code}.matrix"].double())
    rest = {name: each for name, each in values.items() if name[0] in "IUB" and name[1] != "F"}
    assert rest
    assert_same_tensors({name: found[name] for name in rest}, rest)


def test_a_number_that_is_not_finite_stays_for_the_server_to_refuse():
    sent = {"w": np.array([1.0, math.inf, math.nan, -math.inf, 0.2])}
    found = left(sent, of("percentile_privacy", percentile=0, gamma=0.5))["w"]
    np.testing.assert_array_equal(found, [0.5, math.inf, math.nan, -math.inf, 0.2])


OWN = """
class Halve:
    def __init__(self, factor=0.5):
        self.factor = factor

    def __call__(self, values, block):
        if block.tensor == "scale":
            return values
        return values * self.factor + 0 * block.uniforms("mine")

class Wrong:
    def __call__(self, values, block):
        return values[:1]
"""


def test_a_filter_of_ones_own_is_a_class_that_is_called_with_blocks(tmp_path):
    (tmp_path / "mine.py").write_text(OWN)
    model, update = model_and_update()
    found = left(update, of("mine.py:Halve", factor=0.25), base=model, folder=tmp_path)
    due = 0.25 * change(model, update, "w")
    np.testing.assert_allclose(change(model, found, "w"), due, atol=3e-7)
    assert torch.equal(found["scale"], update["scale"])
    with pytest.raises(ClientError, match=r"mine.py:Wrong returned .* for a block of .* 'w'"):
        left(update, "mine.py:Wrong", folder=tmp_path)


NUMBERS = hnp.arrays(
    np.float64,
    st.integers(1, 300),
    elements=st.floats(0, allow_nan=False, allow_infinity=True, allow_subnormal=True)
    | st.sampled_from([0.0, 0.5, 1.0, 1.0 + 2**-52]),
)


@pytest.fixture(params=[1 << 18, 3], ids=["kept", "counted"])
def most_kept(request, monkeypatch):
    monkeypatch.setattr(selection, "_MOST_KEPT", request.param)


@pytest.mark.usefixtures("most_kept")
@given(numbers=NUMBERS, data=st.data())
def test_order_statistics_are_those_of_the_sorted_numbers(numbers, data):
    rank = data.draw(st.integers(0, len(numbers) - 1))
    ranks = [rank, min(rank + 1, len(numbers) - 1), 0]
    blocks = [numbers[at : at + 7] for at in range(0, len(numbers), 7)]
    found = order_statistics(lambda: blocks, len(numbers), ranks)
    assert found == np.sort(numbers)[ranks].tolist()


def test_millions_of_numbers_take_two_passes():
    numbers = np.abs(np.random.default_rng(3).normal(size=3_000_000)) * 1e-3
    passes = []

    def blocks():
        passes.append(1)
        return (numbers[at : at + 16_384] for at in range(0, len(numbers), 16_384))

    assert percentile_of(blocks, len(numbers), 10) == np.percentile(numbers, 10)
    assert len(passes) == 2
