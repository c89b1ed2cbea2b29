"""Codecs with a loss: which tensors they change, by how much, and that ranges do not matter."""

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flstream.codecs.lossy import LossyCodec
from flstream.errors import CodecError
from flstream.model.header import parse_header
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource, MemoryBody
from flstream.model.source import Scratch, change_of, views_of
from tests.codecs.lossy_cases import CODECS, Narrow, decoded, lossy, model, rounded
from tests.support import FrontToBack, assert_same_tensors, body_of, entries, tensors_of

every_codec = pytest.mark.parametrize("name", CODECS)


@every_codec
@settings(max_examples=20)
@given(st.data())
def test_any_cuts_give_the_same_bytes_on_both_sides(name, data):
    layout = Layout.of([("a", "F32", (70_000,)), ("b", "BF16", (321,)), ("c", "F32", (40,))])
    numbers = np.random.default_rng(1).standard_normal(layout.nbytes // 4 + 1).astype(np.float32)
    halves = numbers.view(np.uint16) & 0xBF7F  # no infinities
    source = BufferSource(layout, memoryview(halves.tobytes())[: layout.nbytes])
    codec = lossy(name)
    whole = body_of(codec.encode(source))
    bounds = data.draw(st.lists(st.integers(1, layout.nbytes - 1), max_size=12, unique=True))
    remote = FrontToBack(BufferSource(codec.encoded(layout), memoryview(whole)))
    made = codec.decode(remote, layout)
    ends = [0, *sorted(bounds), layout.nbytes]
    found = b"".join(bytes(views_of(made, *pair, Scratch())[0]) for pair in pairwise(ends))
    assert found == body_of(rounded(codec, source))


@pytest.mark.parametrize("name", ["int8", "topk", "cast bf16"])
def test_threads_that_read_one_encoded_body_get_its_bytes(name):
    source, codec = MemoryBody.of(model()), lossy(name)
    sent = codec.encode(source)
    received = codec.decode(sent, source.layout)
    whole, due = body_of(codec.encode(source)), body_of(rounded(codec, source))

    def read_all(number):
        assert body_of(sent, 4096 * number) == whole
        assert body_of(received, 40_960 * number) == due

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read_all, range(1, 9)))


@every_codec
@given(entries())
def test_the_encoded_layout_of_any_model_is_sound_and_no_longer(name, given_entries):
    layout = Layout.of(given_entries)
    found = lossy(name).encoded(layout)
    assert found.names == layout.names
    assert found.is_canonical
    assert found.nbytes <= layout.nbytes
    assert parse_header(found.header()[8:], "it")[0] == found


@every_codec
def test_what_is_no_float_or_is_required_passes_to_the_bit(name):
    tensors = model()
    found = decoded(name, tensors, "norm", "^lm_head")
    kept = ("norm.weight", "lm_head.weight", "complex", "steps", "mask", "empty", "scalar")
    assert_same_tensors({n: found[n] for n in kept}, {n: tensors[n] for n in kept})
    assert not torch.equal(found["embed.weight"], tensors["embed.weight"])
    assert found.keys() == tensors.keys()
    # NaNs, infinities and negative zeros in them, too.
    strange = torch.tensor([float("nan"), float("inf"), -0.0, 1.0] * 100)
    assert_same_tensors(decoded(name, {"w": strange}, "^w$"), {"w": strange})


@every_codec
def test_tied_tensors_stay_tied_and_pass_by_any_of_their_names(name):
    weight = torch.randn(300, 10, generator=torch.Generator().manual_seed(0))
    source = MemoryBody.of({"embed": weight, "head": weight})
    assert source.layout.aliases == {"head": "embed"}
    codec = lossy(name)
    assert codec.encoded(source.layout).aliases == {"head": "embed"}
    assert rounded(codec, source).layout == source.layout
    assert body_of(lossy(name, "^head").encode(source)) == body_of(source)


def numbers_of(found, name):
    return found[name].double().numpy().reshape(-1)


@pytest.mark.parametrize(("name", "bits"), [("cast bf16", 8), ("cast f16", 11)])
def test_a_cast_is_that_of_torch(name, bits):
    tensors = model()
    found = decoded(name, tensors)
    kind = torch.bfloat16 if bits == 8 else torch.float16
    for each in ("embed.weight", "odd", "norm.weight"):
        assert torch.equal(found[each], tensors[each].to(kind).float())
    # Those of 16 bits would not become shorter.
    kept = ("half", "short", "small")
    assert_same_tensors({n: found[n] for n in kept}, {n: tensors[n] for n in kept})
    change = np.abs(numbers_of(found, "double") - numbers_of(tensors, "double"))
    assert (change <= np.abs(numbers_of(tensors, "double")) * 2.0**-bits).all()


def errors_of_groups(name, due, got):
    """The largest number of each group that shares a scale, and the largest error."""
    for start in range(0, len(due), CODECS[name].group):
        group = slice(start, start + CODECS[name].group)
        yield np.abs(due[group]).max(), np.abs(due[group] - got[group]).max()


@pytest.mark.parametrize(("name", "most"), [("int8", 127), ("int4", 7)])
def test_a_whole_number_is_off_by_half_of_its_scale_at_most(name, most):
    tensors = model()
    found = decoded(name, tensors)
    for each in ("embed.weight", "lm_head.weight", "double", "short", "half"):
        due, got = numbers_of(tensors, each), numbers_of(found, each)
        # bfloat16 and float16 round what was decoded, too.
        own = {"short": 2.0**-11, "half": 2.0**-8}.get(each, 2.0**-22)
        for largest, error in errors_of_groups(name, due, got):
            assert error <= largest / most * (0.5 + 1e-5) + largest * own


@settings(max_examples=200)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=20, max_size=600),
    st.sampled_from([("int8", 127), ("int4", 7)]),
)
def test_any_numbers_from_the_smallest_to_the_largest_are_quantised(values, of):
    name, most = of
    found = numbers_of(decoded(name, {"w": np.array(values, np.float32)}), "w")
    for largest, error in errors_of_groups(name, np.array(values), found):
        scale = max(largest / most, 2.0**-149)
        assert error <= (scale * (0.5 + 1e-4) if scale > 2.0**-120 else scale)


def places_of_largest(numbers, fraction):
    return np.argsort(-np.abs(numbers), kind="stable")[: int(np.ceil(fraction * len(numbers)))]


def test_the_largest_changes_are_kept_to_the_bit_and_ties_go_to_the_first():
    tensors = model()
    found = decoded("topk", tensors)
    for each in ("embed.weight", "half", "double"):
        due, got = numbers_of(tensors, each), numbers_of(found, each)
        for start in range(0, len(due), 65_536):
            part, kept = due[start : start + 65_536], got[start : start + 65_536]
            order = places_of_largest(part, 0.01)
            assert set(np.flatnonzero(kept)) == set(order)
            assert np.array_equal(kept[order], part[order])
    same = np.ones(1000, np.float32)
    same[::2] = -1
    kept = decoded("topk", {"w": same})["w"].numpy()
    assert np.array_equal(np.flatnonzero(kept), np.arange(10))
    assert np.array_equal(kept[:10], same[:10])


def test_ternary_keeps_signs_and_the_mean_of_the_largest():
    due = numbers_of(model(), "embed.weight")[:65_536]
    got = numbers_of(decoded("ternary", {"w": due.astype(np.float32)}), "w")
    order = places_of_largest(due, 0.04)
    mean = np.float32(np.abs(due[order]).mean())
    assert set(np.flatnonzero(got)) == set(order)
    assert np.allclose(got[order], np.sign(due[order]) * mean, rtol=1e-7)
    assert len(set(np.abs(got[order]))) == 1
    huge = np.full(3000, 3.4e38, np.float32)
    assert decoded("ternary", {"w": huge})["w"].max() == huge[0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["int8", "int4", "topk", "ternary"])
def test_a_number_that_is_not_finite_is_refused_by_name_and_place(name, dtype, value):
    numbers = torch.zeros(70_000, dtype=dtype)
    numbers[69_999] = value
    message = rf"'layer.weight' has -?(nan|inf) as element 69999.*{name}"
    with pytest.raises(CodecError, match=message):
        body_of(lossy(name).encode(MemoryBody.of({"layer.weight": numbers})))


def test_a_cast_refuses_what_would_become_infinite_and_passes_what_is():
    beyond = torch.zeros(2000)
    beyond[[7, 1999]] = torch.tensor([float("nan"), -65520.0])
    with pytest.raises(CodecError, match=r"'w' has -65520.0 as element 1999.*cast to f16"):
        body_of(lossy("cast f16").encode(MemoryBody.of({"w": beyond})))
    largest = torch.full((10,), 65519.0)
    assert decoded("cast f16", {"w": largest})["w"][0] == 65504
    huge = torch.tensor([3.4e38] * 20)
    with pytest.raises(CodecError, match="cast to bf16"):
        body_of(lossy("cast bf16").encode(MemoryBody.of({"w": huge})))
    strange = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0] * 10)
    for name in ("cast bf16", "cast f16"):
        found = decoded(name, {"w": strange})["w"]
        assert torch.equal(found.nan_to_num(), strange.nan_to_num())
        assert torch.equal(found.isnan(), strange.isnan())


def test_other_tensors_are_refused_a_part_is_read_and_a_change_of_the_model_is_one_of_it():
    source = MemoryBody.of(model())
    codec = lossy("int8")
    other = {**model(), "embed.weight": torch.zeros(411, 334)}
    with pytest.raises(CodecError, match=r"the codec int8 encodes it: tensor 'embed.weight' has"):
        codec.decode(codec.encode(MemoryBody.of(other)), source.layout)
    with pytest.raises(CodecError, match=r"'embed.weight' has dtype U32 instead of F32|shape"):
        lossy("int8", "embed").decode(codec.encode(source), source.layout)
    part = {name: model()[name] for name in ("half", "odd", "steps", "embed.weight")}
    coded = codec.encode(MemoryBody.of(part))
    layout = source.layout.subset(coded.layout.by_name, coded.layout.aliases)
    assert_same_tensors(tensors_of(codec.decode(coded, layout)), decoded("int8", part))
    source = MemoryBody.of({"w": torch.zeros(100)})
    source.changed = lambda: "tensor 'w' was written to"
    for made in (lossy("int8").encode(source), rounded(lossy("int8"), source)):
        assert change_of(made) == "tensor 'w' was written to"


@pytest.mark.parametrize(
    ("method", "result", "flaw"),
    [
        ("encode", b"12", "returned 2 bytes .* return 200 bytes"),
        ("encode", [1], "returned list"),
        ("encode", ZeroDivisionError("zero"), "raised ZeroDivisionError at tensor 'w': zero"),
        ("encode", lambda numbers, _: numbers.fill(2), "read-only"),  # it is the model's
        ("decode", np.zeros(3), r"returned ndarray of shape \[3\]"),
        ("decode", np.zeros(100, int), "return 100 floats"),
        ("decode", KeyError("x"), "raised KeyError at tensor 'w'"),
        ("nbytes", -1, "returned -1 for 100 numbers of tensor 'w'"),
        ("nbytes", KeyError("x"), "raised KeyError for tensor 'w'"),
    ],
)
def test_a_codec_of_the_user_that_fails_is_named(method, result, flaw):
    def broken(*args):
        if isinstance(result, Exception):
            raise result
        return result(*args) if callable(result) else result

    own = Narrow()
    setattr(own, method, broken)
    codec = LossyCodec(own, "mine.py:Narrow")
    with pytest.raises(CodecError, match=flaw):
        body_of(rounded(codec, MemoryBody.of({"w": torch.ones(100)})))


@every_codec
def test_an_update_may_be_encoded_as_its_difference_from_a_base(name):
    base = model(0)
    trained = {
        each: value + 0.01 * model(1)[each] if value.is_floating_point() else value + 1
        for each, value in base.items()
        if each not in ("mask", "small")
    }
    codec = lossy(name, "norm")
    old, new = MemoryBody.of(base), MemoryBody.of(trained)
    encoded = codec.encode(new, old)
    coded = BufferSource(encoded.layout, memoryview(body_of(encoded, 4096)))
    received = codec.decode(coded, new.layout, base=old)
    remote = codec.decode(FrontToBack(coded), new.layout, base=old)
    assert body_of(remote, 48 << 10) == body_of(received)
    found = tensors_of(received)
    passed = ("norm.weight", "complex", "steps", "empty", "scalar")
    assert_same_tensors({n: found[n] for n in passed}, {n: trained[n] for n in passed})
    for each in ("embed.weight", "double"):
        change = trained[each].double() - base[each].double()
        error = (found[each].double() - trained[each].double()).norm() / change.norm()
        assert error < (0.2 if name in ("int4", "cast bf16") else 0.01) or name[:2] in ("to", "te")
        assert error < 1
    # What has not changed is decoded to the same bits.
    for still in (old, MemoryBody.of({"w": torch.tensor([0.0, -0.0] * 100)})):
        received = codec.decode(codec.encode(still, still), still.layout, base=still)
        assert body_of(received) == body_of(still)


def test_a_base_without_a_tensor_of_the_update_is_refused():
    codec = lossy("int8", "^kept")
    update = MemoryBody.of({"w": torch.zeros(100), "kept": torch.zeros(100)})
    for base, flaw in (
        ({"v": torch.zeros(100)}, "is missing"),
        ({"w": torch.zeros(101)}, r"has shape \[101\] instead of \[100\]"),
        ({"w": torch.zeros(100).half()}, "has dtype F16 instead of F32"),
    ):
        with pytest.raises(CodecError, match=rf"a base, in which tensor 'w' {flaw}; name the"):
            codec.encode(update, MemoryBody.of(base))
    whole = {"w": torch.ones(100), "more": torch.ones(3)}
    assert codec.encode(update, MemoryBody.of(whole)).layout == codec.encoded(update.layout)
