"""What becomes of single updates: adopted, partial, not finite, selected by rules, or refused."""

import pickle
from functools import partial

import pytest
import safetensors.torch
import torch
from folding import MemorySink, fold, opening, sent, shifted, update
from support import FOLDED, as_bytes, assert_same_tensors, every_kind, tensor

from flstream.aggregation.adoption import adopt_update
from flstream.aggregation.partial_sum import PartialSum
from flstream.aggregation.rules import AggregationRule, rule_for
from flstream.aggregation.walk import fold_updates
from flstream.errors import AggregationError, UpdateRefusedError, UsageError
from flstream.job.aggregation_section import AggregationSection
from flstream.model.checkpoint import FileSink, FileSource, write_checkpoint
from flstream.model.digests import body_digest
from flstream.model.dtypes import BY_CODE, first_not_finite, numbers_in, torch_dtype
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource, MemoryBody


def adopt(base, updates, rule=None, step=1 << 20):
    body = MemoryBody.of(base)
    sink, done = MemorySink(body.layout), []
    digest = adopt_update(body, updates, rule or AggregationRule(), sink, step, done.append)
    assert done[-1] == body.layout.nbytes
    return sink.tensors, digest


@pytest.mark.parametrize("step", [16, 1 << 20])
def test_a_whole_update_is_copied_bit_by_bit(step):
    state = shifted(every_kind(), 5)
    # What a weighted mean may lose.
    state["F64.scalar"] = torch.tensor(1e-320, dtype=torch.float64)
    assert_same_tensors(adopt(every_kind(), [])[0], every_kind())
    model, digest = adopt(every_kind(), sent([state], [18.0]), step=step)
    assert_same_tensors(model, state)
    assert digest == body_digest(MemoryBody.of(state))


def test_a_difference_is_added_and_a_partial_update_leaves_the_rest():
    def of(a, b):
        return {"a": torch.full((4,), a), "b": torch.full((4,), b)}

    state = of(2.0, 3.0)
    for updates, exclude, due in (
        (sent([state], params_type="DIFF"), [], of(3.0, 4.0)),
        (sent([{"a": state["a"]}], partial=True), [], of(2.0, 1.0)),
        (sent([state]), ["^b$"], of(2.0, 1.0)),
    ):
        model, _ = adopt(of(1.0, 1.0), updates, AggregationRule(exclude=exclude))
        assert_same_tensors(model, due)
    scales = {"w": torch.tensor([1.0, 2.0, float("nan")]).to(torch.float8_e8m0fnu)}
    with pytest.raises(UpdateRefusedError, match=r"'w' at \[2\] is nan"):
        adopt(scales, sent([scales]))


@pytest.mark.parametrize("step", [16, 1 << 20])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused_with_its_place_unless_it_is_allowed(step, value):
    base = {"n": torch.ones(7, dtype=torch.int32), "w": torch.ones(5, 10)}
    state = {name: each.clone() for name, each in base.items()}
    state["w"][3, 4] = value
    with pytest.raises(UpdateRefusedError, match=rf"'w' at \[3, 4\] is {value}; lower"):
        adopt(base, sent([state]), step=step)
    model, _ = adopt(base, sent([state]), AggregationRule(on_nonfinite="allow"))
    assert_same_tensors(model, state)


@pytest.mark.parametrize(
    ("state", "partial", "sentence"),
    [
        ({"q": torch.zeros(1)}, True, "site-1 does not fit the model: tensor 'q' is not part of"),
        ({"a": torch.zeros(3)}, True, r"tensor 'a' has shape \[3\] instead of \[2\]"),
        ({"a": torch.zeros(2).half()}, True, "tensor 'a' has dtype F16 instead of F32"),
        ({"a": torch.zeros(2)}, False, "tensor 'b' is missing"),
    ],
)
def test_a_tensor_that_is_not_the_models_is_refused_by_name(state, partial, sentence):
    base = {"a": torch.zeros(2), "b": torch.zeros(2)}
    with pytest.raises(UpdateRefusedError, match=sentence) as caught:
        fold(base, [update("site-1", state, partial=partial)])
    assert caught.value.site == "site-1"


def test_tensors_in_another_order_are_refused():
    base = {"a": torch.zeros(2), "b": torch.zeros(2)}
    a, b = MemoryBody.of(base).layout.tensors
    layout = Layout([b._replace(start=0, stop=8), a._replace(start=8, stop=16)])
    body = BufferSource(layout, memoryview(bytes(16)))
    with pytest.raises(UpdateRefusedError, match="another order"):
        fold(base, [opening("site-1", lambda: body, 1.0, partial=True)])


def test_tied_weights_are_sent_under_any_of_their_names():
    shared = tensor("F32", (3,))
    base = {"a": shared, "b": shared, "c": torch.zeros(2)}
    ties = MemoryBody.of(base).layout.aliases
    assert ties == {"b": "a"}
    for names in (["a"], ["b"], ["a", "b"]):
        body = MemoryBody.of({name: torch.ones(3) for name in names}, tied=ties)
        named = opening("site-1", lambda body=body: body, 1.0, partial=True)
        assert fold(base, [named])["a"].tolist() == [1, 1, 1]


def test_the_first_of_two_infinities_that_cancel_is_found_unless_nobody_aggregates_it():
    base = {"F32.w": tensor("F32", (40_000,), 9), "F32.z": tensor("F32", (4, 5), 9)}
    states = [shifted(base, seed) for seed in range(3)]
    states[1]["F32.w"][5], states[2]["F32.w"][5] = float("inf"), float("-inf")
    updates = sent(states)
    with pytest.raises(UpdateRefusedError, match="site-1") as caught:
        fold(base, updates)
    error = pickle.loads(pickle.dumps(caught.value))
    assert (error.site, str(error)) == ("site-1", str(caught.value))
    found = fold(base, updates, AggregationRule(exclude=[r"\.w$"]))
    assert torch.equal(found["F32.w"], base["F32.w"])


def test_a_number_that_its_weight_takes_beyond_float64_is_its_sites_alone():
    base = {"w": torch.zeros(5000, dtype=torch.float64)}
    large = {"w": base["w"].clone()}
    large["w"][4321] = -1e300
    message = r"site-1 .*'w' at \[4321\], times the weight 1e\+15"
    with pytest.raises(UpdateRefusedError, match=message):
        fold(base, sent([base, large], [1e15, 1e15]))
    assert fold(base, sent([large], [1e3]))["w"][4321] == -1e300


@pytest.mark.parametrize("code", ["F32", "F16", "BF16", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ"])
def test_differences_that_leave_the_range_of_the_type_fail_by_tensor(code):
    top = torch.finfo(torch_dtype(code)).max
    base = {"w": torch.tensor([1.0, top]).to(torch_dtype(code))}
    with pytest.raises(AggregationError, match=r"tensor 'w' at \[1\] would not be finite"):
        fold(base, sent([base], params_type="DIFF"))


def test_the_bytes_that_are_not_finite_are_those_that_torch_says_so_of():
    for code in (code for code in BY_CODE if code.startswith("F8")):
        every = torch.arange(256).to(torch.uint8)
        wide = every.view(torch_dtype(code)).double()
        for byte, value in zip(every, wide, strict=True):
            found = first_not_finite(numbers_in(code, memoryview(bytearray([byte]))))
            assert (found is None) == bool(value.isfinite()), (code, byte)


def test_scales_without_sign_or_zero_are_not_averaged_and_may_be_left_out():
    base = {"F32.w": torch.ones(3), "F8_E8M0.scale": torch.ones(3).to(torch.float8_e8m0fnu)}
    updates = sent([shifted(base, seed) for seed in range(2)])
    with pytest.raises(AggregationError, match=r"'F8_E8M0.scale' is .* aggregation\.exclude"):
        fold(base, updates)
    found = fold(base, updates, AggregationRule(exclude=["scale"]))
    assert as_bytes(found["F8_E8M0.scale"]) == as_bytes(base["F8_E8M0.scale"])


def test_a_base_that_is_not_finite_is_no_fault_of_a_site_and_stays_where_nobody_sends_more():
    base = {"w": torch.tensor([float("nan"), -0.0]), "v": torch.zeros(2)}
    ones = {"w": torch.ones(2), "v": torch.ones(2)}
    with pytest.raises(AggregationError, match=r"'w' at \[0\]"):
        fold(base, sent([ones], params_type="DIFF"))
    assert_same_tensors(fold(base, sent([ones])), ones)
    found = fold(base, sent([{"v": ones["v"]}], partial=True))
    assert_same_tensors(found, {"w": base["w"], "v": ones["v"]})


NAMES = ("head.weight", "head.bias", "body.weight", "body.bias")


@pytest.mark.parametrize(
    ("keys", "due"),
    [
        ({}, NAMES),
        ({"include": ["^head"]}, NAMES[:2]),
        ({"exclude": ["bias"]}, NAMES[::2]),
        ({"include": ["^head", "weight"], "exclude": [r"^body\."]}, NAMES[:2]),
        ({"include": ["^tied"]}, NAMES[1:2]),
        ({"exclude": ["^tied"]}, (NAMES[0], *NAMES[2:])),
    ],
)
def test_a_pattern_is_looked_for_anywhere_in_any_name_of_a_tensor(keys, due):
    tensors = {name: torch.zeros(2) for name in NAMES}
    layout = MemoryBody.of({**tensors, "tied": tensors["head.bias"]}).layout
    assert AggregationRule(**keys).selected(layout) == set(due)
    for key in ("include", "exclude"):
        with pytest.raises(UsageError, match=f"aggregation.{key}: the pattern 'haed' is found in"):
            AggregationRule(**{key: ["weight", "haed"]}).selected(layout)


def test_the_job_file_says_which_rule():
    assert rule_for(AggregationSection()) == AggregationRule(include=[".*"], exclude=[])
    given = {"clip_norm": 3.0, "include": ["a"], "exclude": ["b"], "on_nonfinite": "allow"}
    section = AggregationSection(method="multi_krum", args={"byzantine": 1, "selected": 2}, **given)
    assert rule_for(section) == AggregationRule(
        "multi_krum", {"byzantine": 1, "selected": 2}, **given
    )
    bounded = AggregationSection(method="norm_bounded_mean", clip_norm="median")
    assert rule_for(bounded) == rule_for(AggregationSection(clip_norm="median"))


def test_a_walk_into_a_file_tells_its_digest_and_each_range(tmp_path):
    base = MemoryBody.of(every_kind(FOLDED))
    updates, seen = sent([shifted(base.tensors, 1)]), []
    with FileSink(tmp_path / "next", base.layout) as sink:
        digest = fold_updates(base, updates, AggregationRule(), sink, 48, seen.append)
        sink.finish()
    assert seen == [stop for _, stop in base.layout.ranges(48)]
    assert digest == write_checkpoint(tmp_path / "copy", FileSource(tmp_path / "next"))
    assert_same_tensors(safetensors.torch.load_file(tmp_path / "next"), shifted(base.tensors, 1))


@pytest.mark.parametrize(
    "rule", [AggregationRule(), AggregationRule(clip_norm=1.0), AggregationRule(method="median")]
)
def test_a_walk_ends_with_whatever_is_raised_after_any_range(tmp_path, rule):
    base = MemoryBody.of({"w": torch.zeros(100)})
    with pytest.raises(ZeroDivisionError), FileSink(tmp_path / "next", base.layout) as sink:
        fold_updates(base, sent([base.tensors]), rule, sink, 16, lambda done: 1 / 0)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("how", ["walk", "adoption", "sum"])
def test_an_update_that_was_changed_while_it_was_read_counts_for_nothing(tmp_path, how):
    base, read = MemoryBody.of({"w": torch.zeros(100)}), []

    def confirm():
        assert read[-1] == base.layout.nbytes  # not before all of it was read
        raise UpdateRefusedError("site-1", "w was changed")

    changed = update("site-1", {"w": torch.ones(100)})
    changed.body.confirm = confirm
    rule, sink = AggregationRule(), MemorySink(base.layout)
    ways = {
        "walk": partial(fold_updates, base, rule=rule, sink=sink),
        "adoption": partial(adopt_update, base, rule=rule, sink=sink),
        "sum": PartialSum(tmp_path / "sum", base, rule).add,
    }
    with pytest.raises(UpdateRefusedError, match="w was changed"):
        ways[how](updates=[changed], step=64, on_range=read.append)
    assert list(tmp_path.iterdir()) == []
