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
from flstream.model.layout import Layout, parse_header
from flstream.model.memory import MemoryBody
from flstream.model.source import Scratch, change_of, views_of
from tests.codecs.lossy_cases import (
    CODECS,
    Bytes,
    Narrow,
    encoded,
    lossy,
    model,
    rounded,
)
from tests.support import FrontToBack, assert_same_tensors, body_of, entries, tensors_of

NAMES = list(CODECS)
KIB, MIB = 1 << 10, 1 << 20


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=20)
@given(st.data())
def test_any_cuts_give_the_same_bytes_on_both_sides(name, data):
    layout = Layout.of([("a", "F32", (70_000,)), ("b", "BF16", (321,)), ("c", "F32", (40,))])
    numbers = np.random.default_rng(1).standard_normal(layout.nbytes // 4 + 1).astype(np.float32)
    halves = numbers.view(np.uint16) & 0xBF7F  # no infinities
    source = Bytes(layout, halves.tobytes()[: layout.nbytes])
    codec = lossy(name)
    whole = body_of(codec.encode(source))
    bounds = data.draw(st.lists(st.integers(1, layout.nbytes - 1), max_size=12, unique=True))
    remote = FrontToBack(Bytes(codec.encoded(layout), whole))
    made = codec.decode(remote, layout)
    ends = [0, *sorted(bounds), layout.nbytes]
    found = b"".join(bytes(views_of(made, *pair, Scratch())[0]) for pair in pairwise(ends))
    assert found == body_of(rounded(codec, source))


@pytest.mark.parametrize("name", ["int8", "topk", "cast bf16"])
def test_threads_that_read_one_encoded_body_get_its_bytes(name):
    source = MemoryBody.of(model())
    codec = lossy(name)
    due = body_of(codec.encode(source))
    sent = codec.encode(source)
    decoded = codec.decode(sent, source.layout)
    whole = body_of(rounded(codec, source))

    def read_all(number):
        scratch = Scratch()
        for start, stop in sent.layout.ranges(4096 * (number + 1)):
            assert views_of(sent, start, stop, scratch)[0] == due[start:stop]
        for start, stop in decoded.layout.ranges(40_960 * (number + 1)):
            assert views_of(decoded, start, stop, scratch)[0] == whole[start:stop]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(read_all, range(8)))


@pytest.mark.parametrize("name", NAMES)
@given(entries())
def test_the_encoded_layout_of_any_model_is_sound_and_no_longer(name, given_entries):
    layout = Layout.of(given_entries)
    found = lossy(name).encoded(layout)
    assert found.names == layout.names
    assert found.is_canonical
    assert found.nbytes <= layout.nbytes
    assert parse_header(found.header()[8:], "it")[0] == found


@pytest.mark.parametrize("name", NAMES)
def test_what_is_no_float_or_is_required_passes_to_the_bit(name):
    tensors = model()
    found = tensors_of(rounded(lossy(name, "norm", "^lm_head"), MemoryBody.of(tensors)))
    kept = ["norm.weight", "lm_head.weight", "complex", "steps", "mask", "empty", "scalar"]
    assert_same_tensors(
        {each: found[each] for each in kept}, {each: tensors[each] for each in kept}
    )
    assert not torch.equal(found["embed.weight"], tensors["embed.weight"])
    assert found.keys() == tensors.keys()
    # NaNs, infinities and negative zeros in them, too.
    strange = torch.tensor([float("nan"), float("inf"), -0.0, 1.0] * 100)
    passed = tensors_of(rounded(lossy(name, "^w$"), MemoryBody.of({"w": strange})))
    assert passed["w"].numpy().tobytes() == strange.numpy().tobytes()


@pytest.mark.parametrize("name", NAMES)
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
    found = tensors_of(rounded(lossy(name), MemoryBody.of(tensors)))
    kind = torch.bfloat16 if bits == 8 else torch.float16
    for each in ("embed.weight", "odd", "norm.weight"):
        assert torch.equal(found[each], tensors[each].to(kind).float())
    # Those of 16 bits would not become shorter.
    kept = ("half", "short", "small")
    assert_same_tensors({n: found[n] for n in kept}, {n: tensors[n] for n in kept})
    change = np.abs(numbers_of(found, "double") - numbers_of(tensors, "double"))
    assert (change <= np.abs(numbers_of(tensors, "double")) * 2.0**-bits).all()


@pytest.mark.parametrize(("name", "bits", "group"), [("int8", 8, 256), ("int4", 4, 64)])
def test_a_whole_number_is_off_by_half_of_its_scale_at_most(name, bits, group):
    tensors = model()
    found = tensors_of(rounded(lossy(name), MemoryBody.of(tensors)))
    for each in ("embed.weight", "lm_head.weight", "double", "short", "half"):
        due, got = numbers_of(tensors, each), numbers_of(found, each)
        for start in range(0, len(due), group):
            part = slice(start, start + group)
            largest = np.abs(due[part]).max()
            scale = largest / (2 ** (bits - 1) - 1)
            # bfloat16 and float16 round what was decoded, too.
            own = {"short": 2.0**-11, "half": 2.0**-8}.get(each, 2.0**-22)
            assert np.abs(due[part] - got[part]).max() <= scale * (0.5 + 1e-5) + largest * own


@settings(max_examples=200)
@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=20, max_size=600),
    st.sampled_from(["int8", "int4"]),
)
def test_any_numbers_from_the_smallest_to_the_largest_are_quantised(values, name):
    numbers = np.array(values, np.float32)
    codec = lossy(name)
    found = tensors_of(rounded(codec, MemoryBody.of({"w": numbers})))["w"].double().numpy()
    group, most = CODECS[name].group, 2 ** (CODECS[name].bits - 1) - 1
    for start in range(0, len(numbers), group):
        due = numbers[start : start + group].astype(np.float64)
        scale = max(np.abs(due).max() / most, 2.0**-149)
        allowed = scale * (0.5 + 1e-4) if scale > 2.0**-120 else scale
        assert np.abs(due - found[start : start + group]).max() <= allowed


def test_the_largest_changes_are_kept_to_the_bit_and_ties_go_to_the_first():
    tensors = model()
    found = tensors_of(rounded(lossy("topk"), MemoryBody.of(tensors)))
    for each in ("embed.weight", "half", "double"):
        due, got = numbers_of(tensors, each), numbers_of(found, each)
        for start in range(0, len(due), 65_536):
            part, kept = due[start : start + 65_536], got[start : start + 65_536]
            count = int(np.ceil(0.01 * len(part)))
            order = np.argsort(-np.abs(part), kind="stable")[:count]
            expected = np.zeros_like(part)
            expected[order] = part[order]
            assert np.array_equal(kept, expected)
    same = np.ones(1000, np.float32)
    same[::2] = -1
    kept = tensors_of(rounded(lossy("topk"), MemoryBody.of({"w": same})))["w"].numpy()
    assert np.array_equal(np.flatnonzero(kept), np.arange(10))
    assert np.array_equal(kept[:10], same[:10])


def test_ternary_keeps_signs_and_the_mean_of_the_largest():
    due = numbers_of(model(), "embed.weight")[:65_536]
    source = MemoryBody.of({"w": due.astype(np.float32)})
    got = numbers_of(tensors_of(rounded(lossy("ternary"), source)), "w")
    order = np.argsort(-np.abs(due), kind="stable")[: int(np.ceil(0.04 * len(due)))]
    mean = np.float32(np.abs(due[order]).mean())
    assert set(np.flatnonzero(got)) == set(order)
    assert np.allclose(got[order], np.sign(due[order]) * mean, rtol=1e-7)
    assert len(set(np.abs(got[order]))) == 1
    huge = np.full(3000, 3.4e38, np.float32)
    found = tensors_of(rounded(lossy("ternary"), MemoryBody.of({"w": huge})))["w"].numpy()
    assert found.max() == huge[0]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", ["int8", "int4", "topk", "ternary"])
def test_a_number_that_is_not_finite_is_refused_by_name_and_place(name, dtype, value):
    numbers = torch.zeros(70_000, dtype=dtype)
    numbers[69_999] = value
    codec = lossy(name)
    source = codec.encode(MemoryBody.of({"layer.weight": numbers}))
    with pytest.raises(
        CodecError, match=rf"'layer.weight' has -?(nan|inf) as element 69999.*{name}"
    ):
        body_of(source)


def test_a_cast_refuses_what_would_become_infinite_and_passes_what_is():
    beyond = torch.zeros(2000)
    beyond[[7, 1999]] = torch.tensor([float("nan"), -65520.0])
    with pytest.raises(CodecError, match=r"'w' has -65520.0 as element 1999.*cast to f16"):
        body_of(lossy("cast f16").encode(MemoryBody.of({"w": beyond})))
    largest = torch.full((10,), 65519.0)
    assert tensors_of(rounded(lossy("cast f16"), MemoryBody.of({"w": largest})))["w"][0] == 65504
    huge = torch.tensor([3.4e38] * 20)
    with pytest.raises(CodecError, match="cast to bf16"):
        body_of(lossy("cast bf16").encode(MemoryBody.of({"w": huge})))
    strange = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0] * 10)
    for name in ("cast bf16", "cast f16"):
        found = tensors_of(rounded(lossy(name), MemoryBody.of({"w": strange})))["w"]
        assert torch.equal(found.nan_to_num(), strange.nan_to_num())
        assert torch.equal(found.isnan(), strange.isnan())


def test_a_model_of_other_tensors_is_refused_and_a_part_of_it_is_read():
    source = MemoryBody.of(model())
    codec = lossy("int8")
    other = {**model(), "embed.weight": torch.zeros(411, 334)}
    with pytest.raises(CodecError, match=r"the codec int8 encodes it: tensor 'embed.weight' has"):
        codec.decode(encoded("int8", other), source.layout)
    with pytest.raises(CodecError, match=r"'embed.weight' has dtype U32 instead of F32|shape"):
        lossy("int8", "embed").decode(encoded("int8", model()), source.layout)
    part = {name: model()[name] for name in ("half", "odd", "steps", "embed.weight")}
    coded = encoded("int8", part)
    layout = source.layout.subset(coded.layout.by_name, coded.layout.aliases)
    found = tensors_of(codec.decode(coded, layout))
    assert_same_tensors(found, tensors_of(rounded(codec, MemoryBody.of(part))))


@pytest.mark.parametrize(
    ("method", "result", "flaw"),
    [
        ("encode", b"12", "returned 2 bytes .* return 200 bytes"),
        ("encode", [1], "returned list"),
        ("encode", ZeroDivisionError("zero"), "raised ZeroDivisionError at tensor 'w': zero"),
        ("decode", np.zeros(3), r"returned ndarray of shape \[3\]"),
        ("decode", np.zeros(100, int), "return 100 floats"),
        ("decode", KeyError("x"), "raised KeyError at tensor 'w'"),
        ("nbytes", -1, "returned -1 for 100 numbers of tensor 'w'"),
        ("nbytes", KeyError("x"), "raised KeyError for tensor 'w'"),
    ],
)
def test_a_codec_of_the_user_that_fails_is_named(method, result, flaw):
    def broken(*_):
        if isinstance(result, Exception):
            raise result
        return result

    own = Narrow()
    setattr(own, method, broken)
    codec = LossyCodec(own, "mine.py:Narrow")
    source = MemoryBody.of({"w": torch.ones(100)})
    with pytest.raises(CodecError, match=flaw):
        body_of(rounded(codec, source))


def test_a_codec_cannot_write_into_the_model():
    class Writing(Narrow):
        def encode(self, numbers, place):
            numbers *= 2
            return super().encode(numbers, place)

    codec = LossyCodec(Writing(), "mine.py:Writing")
    for kind in (torch.float32, torch.bfloat16):
        source = codec.encode(MemoryBody.of({"w": torch.ones(100_000).to(kind)}))
        if source.layout.nbytes < 200_000 or kind == torch.float32:
            with pytest.raises(CodecError, match="read-only"):
                body_of(source)


@pytest.mark.parametrize("name", NAMES)
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
    coded = Bytes(encoded.layout, body_of(encoded, 4 * KIB))
    due = body_of(codec.decode(coded, new.layout, base=old))
    remote = FrontToBack(coded)
    assert body_of(codec.decode(remote, new.layout, old), 48 * KIB) == due
    found = tensors_of(codec.decode(coded, new.layout, base=old))
    passed = ("norm.weight", "complex", "steps", "empty", "scalar")
    assert_same_tensors({n: found[n] for n in passed}, {n: trained[n] for n in passed})
    for each in ("embed.weight", "double"):
        change = trained[each].double() - base[each].double()
        error = (found[each].double() - trained[each].double()).norm() / change.norm()
        assert error < (0.2 if name in ("int4", "cast bf16") else 0.01) or name[:2] in ("to", "te")
        assert error < 1
    # What has not changed is decoded to the same bits.
    same = tensors_of(codec.decode(codec.encode(old, old), old.layout, base=old))
    assert_same_tensors(same, base)
    signed = MemoryBody.of({"w": torch.tensor([0.0, -0.0] * 100)})
    assert body_of(codec.decode(codec.encode(signed, signed), signed.layout, base=signed)) == (
        body_of(signed)
    )


def test_a_base_without_a_tensor_of_the_update_is_refused():
    codec = lossy("int8", "^kept")
    update = MemoryBody.of({"w": torch.zeros(100), "kept": torch.zeros(100)})
    for base in ({"v": torch.zeros(100)}, {"w": torch.zeros(101)}, {"w": torch.zeros(100).half()}):
        with pytest.raises(CodecError, match=r"'w' has no tensor .* dtype F32 and shape \[100\]"):
            codec.encode(update, MemoryBody.of(base))
    whole = {"w": torch.ones(100), "more": torch.ones(3)}
    assert codec.encode(update, MemoryBody.of(whole)).layout == codec.encoded(update.layout)


def test_a_change_of_the_model_is_one_of_what_is_made_of_it():
    class Changed(Bytes):
        def changed(self):
            return "tensor 'w' was written to"

    source = Changed(Layout.of([("w", "F32", (100,))]), bytes(400))
    for made in (lossy("int8").encode(source), rounded(lossy("int8"), source)):
        assert change_of(made) == "tensor 'w' was written to"
