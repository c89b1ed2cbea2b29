"""Groups of whole tensors: what the code that combines them is given, and what it may return."""

from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from folding import MemorySink, documented, fold, sent

from flstream.aggregation import tensor_groups
from flstream.aggregation.fold_rule import TensorFold
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.tensor_groups import combined_groups, own_tensor_fold
from flstream.aggregation.update_body import LocalBody
from flstream.aggregation.walk import fold_updates
from flstream.errors import AggregationError, MisfitError, UpdateRefusedError, WorkflowError
from flstream.model.digests import body_digest
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody


def state(seed):
    """Tensors of several dtypes, some of them empty or no real floats."""
    generator = torch.Generator().manual_seed(seed)
    return {
        "a.A": torch.randn(2, 3, generator=generator),
        "a.B": torch.randn(5, 2, generator=generator),
        "b.A": torch.randn(4, 2, generator=generator, dtype=torch.float64),
        "b.B": torch.randn(3, 4, generator=generator).bfloat16(),
        "rest": torch.randn(7, generator=generator),
        "none": torch.zeros(0),
        "count": torch.randint(0, 50, (3,), generator=generator),
        "phase": torch.randn(3, generator=generator, dtype=torch.complex64),
    }


def whole(states, weights=(1.0, 2.0, 3.0), **how):
    """Updates that are read in any order."""
    updates = sent(states, list(weights)[: len(states)], **how)
    for update, tensors in zip(updates, states, strict=True):
        update.body = LocalBody(MemoryBody.of(tensors))
    return updates


def fold_groups(tmp_path, base, updates, tensors, rule=None, step=1 << 20, budget=1 << 20):
    """The next model, its digest, and the numbers that were logged."""
    rule = rule or AggregationRule()
    code = tensors if isinstance(tensors, TensorFold) else TensorFold.of(tensors)
    sink, path = MemorySink(MemoryBody.of(base).layout), tmp_path / "groups.safetensors"
    how = (code, path, step, budget, lambda _: None)
    with combined_groups(MemoryBody.of(base), updates, rule, *how) as groups:
        digest = fold_updates(groups.base, groups.updates, groups.rule, sink, step, lambda _: None)
    assert not list(tmp_path.glob("groups*"))
    assert digest == body_digest(sink)
    return sink.tensors, dict(groups.numbers)


@dataclass(frozen=True)
class Products:
    """Pairs by their prefix; the first factor takes a mean, the second what is asked for."""

    scale: float = 1.0
    seen: list = field(default_factory=list, compare=False)

    def groups(self, names):
        self.seen.append(list(names))
        return {prefix: [f"{prefix}.A", f"{prefix}.B"] for prefix in "ab"}

    def combine(self, group, updates):
        self.seen.append((group, updates))
        group.log("groups", 1)
        total = sum(update.weight for update in updates)
        return {
            name: self.scale * sum(u.weight * u.tensors[name] for u in updates) / total
            for name in group.base
        }


STATES = [state(seed) for seed in (1, 2, 3)]


@pytest.mark.parametrize("step", [16, 48, 1 << 20])
@pytest.mark.parametrize("kind", ["FULL", "DIFF"])
def test_groups_are_combined_whole_and_the_rest_takes_the_mean(tmp_path, step, kind):
    base, code = state(0), Products(2.0)
    updates = whole(STATES, params_type=kind)
    found, numbers = fold_groups(tmp_path, base, updates, code, step=step)
    mean = fold(base, updates, step=step)
    assert numbers == {"groups": 2.0}
    for name, value in base.items():
        factor = 2 if name[:2] in ("a.", "b.") else 1
        assert found[name].dtype == value.dtype
        if factor == 1:
            assert torch.equal(found[name], mean[name])
        else:
            torch.testing.assert_close(found[name], mean[name] * factor)
    names, (group, members), _ = code.seen
    assert names == ["b.A", "a.A", "a.B", "rest", "b.B"]  # in the layout's order, real floats alone
    assert (group.name, [member.site for member in members]) == (
        "a",
        ["site-0", "site-1", "site-2"],
    )
    assert [member.weight for member in members] == [1, 2, 3]
    start = base["a.A"].double() if kind == "DIFF" else 0
    np.testing.assert_array_equal(members[1].tensors["a.A"], STATES[1]["a.A"].double() + start)
    assert group.base["a.A"].dtype == np.float64
    assert group.base["a.B"].shape == (5, 2)


def test_a_function_combines_each_tensor_by_itself_and_groups_may_be_iterators(tmp_path):
    def largest(group, updates):
        return max((update.tensors[group.name] for update in updates), key=np.linalg.norm)

    found, _ = fold_groups(tmp_path, state(0), whole(STATES), largest)
    for name in ("a.A", "b.B", "rest"):
        assert torch.equal(found[name], max((s[name] for s in STATES), key=torch.linalg.norm))
    layout = Layout.of([("a", "F32", (2,)), ("b", "F32", (2,))])
    code = TensorFold("mine", "mine.py", lambda names: {"all": iter(names)}, lambda *_: {})
    groups = tensor_groups.named_groups(code, layout, AggregationRule())
    assert {name: [s.name for s in specs] for name, specs in groups.items()} == {"all": ["a", "b"]}


def test_an_update_may_lack_tensors_what_nobody_sent_stays_and_a_change_is_noticed(tmp_path):
    base, code = state(0), Products()
    parts = [{"a.A": s["a.A"], "a.B": s["a.B"], "rest": s["rest"]} for s in STATES[:2]]
    found, numbers = fold_groups(tmp_path, base, whole(parts, partial=True), code)
    assert torch.equal(found["b.A"], base["b.A"])
    assert torch.equal(found["b.B"], base["b.B"])
    assert not torch.equal(found["a.A"], base["a.A"])
    assert numbers == {"groups": 1.0}
    base = state(0)
    updates = whole([base, {**base, "a.A": base["a.A"] + 1}])
    fold_groups(tmp_path, base, updates, Products())
    assert [update.has_changed for update in updates] == [False, True]


def test_what_is_not_finite_is_refused_by_site_and_by_code(tmp_path):
    bad = {**STATES[0], "a.B": STATES[0]["a.B"].clone()}
    bad["a.B"][3, 1] = float("nan")
    with pytest.raises(UpdateRefusedError, match=r"tensor 'a.B' at \[3, 1\] is nan") as caught:
        fold_groups(tmp_path, state(0), whole([STATES[1], bad]), Products())
    assert caught.value.site == "site-1"
    allowed = AggregationRule(on_nonfinite="allow")
    found, _ = fold_groups(tmp_path, state(0), whole([bad]), Products(), allowed)
    assert found["a.B"].isnan().sum() == 1
    with pytest.raises(AggregationError, match=r"returned inf for tensor .* at \[0, 0\]"):
        fold_groups(tmp_path, state(0), whole(STATES), Products(float("inf")))
    with pytest.raises(
        AggregationError, match=r"returned .*e\+\d+ for .*not finite in the tensor's type"
    ):
        fold_groups(tmp_path, state(0), whole(STATES), Products(1e300))


def test_a_group_that_is_larger_than_the_budget_is_refused(tmp_path):
    # 8 bytes of (2 x 3 + 5 x 2) numbers, for three updates, the model and the result.
    message = r"the group 'a' of Products takes 640 bytes .*aggregation.memory_budget is 639 B"
    with pytest.raises(MisfitError, match=message):
        fold_groups(tmp_path, state(0), whole(STATES), Products(), budget=639)
    fold_groups(tmp_path, state(0), whole(STATES), Products(), budget=1 << 20)


@dataclass(frozen=True)
class Returns:
    groups_value: object = None
    value: object = None

    def groups(self, names):
        return self.groups_value

    def combine(self, group, updates):
        if self.value is None:
            raise KeyError("oops")
        return self.value


PAIR = {"a": ["a.A", "a.B"]}
ZEROS = np.zeros((2, 3)), np.zeros((5, 2))


@pytest.mark.parametrize(
    ("groups", "value", "message"),
    [
        (["a.A"], None, r"Returns.groups returned a list; return a dict of lists"),
        ({"a": "a.A"}, None, r"returned 'a.A' for the group 'a'; return a list"),
        ({"a": []}, None, r"returned \[\] for the group 'a'"),
        ({"a": ["c.A"]}, None, r"put the tensor 'c.A' into the group 'a', and there is no such"),
        ({"a": [["a.A"]]}, None, r"put the tensor \['a.A'\] into the group 'a', and there is no"),
        ({"a": ["count"]}, None, r"'count' into the group 'a', .* take names of those that it was"),
        ({"a": ["phase"]}, None, r"there is no such tensor of real floats"),
        ({**PAIR, "b": ["a.B"]}, None, r"'a.B' into the groups 'a' and 'b'; put each tensor into"),
        ({"a": ["a.A", "a.A"]}, None, r"'a.A' into the groups 'a' and 'a'"),
        (PAIR, None, r"Returns.combine \(group a\) raised KeyError in line \d+: 'oops'"),
        (PAIR, 3, r"Returns.combine returned a int for the group 'a'; return a dict with arrays"),
        (PAIR, {"a.A": ZEROS[0]}, r"returned tensors a.A for the group 'a'"),
        (PAIR, {"a.A": ZEROS[0], "a.B": ZEROS[0]}, r"shape \(2, 3\) for tensor 'a.B'; .*\(5, 2\)"),
        (PAIR, {"a.A": ZEROS[0] * 1j, "a.B": ZEROS[1]}, r"no array of real numbers: .*complex128"),
        (PAIR, {"a.A": "text", "a.B": ZEROS[1]}, r"returned a str for tensor 'a.A'"),
    ],
)
def test_mistakes_of_the_code_are_sentences(tmp_path, groups, value, message):
    with pytest.raises(AggregationError, match=message):
        fold_groups(tmp_path, state(0), whole(STATES), Returns(groups, value))


def test_what_is_no_code_is_refused_and_its_identity_is_plain():
    for wrong in (3, Products, object(), len):
        with pytest.raises(WorkflowError, match="give it a function of"):
            TensorFold.of(wrong)

    def mean(group, updates):
        return updates[0].tensors[group.name]

    assert TensorFold.of(mean).plain == [mean.__qualname__]
    kind, fields = TensorFold.of(Returns(PAIR)).plain
    assert (kind, fields) == ("Returns", {"groups_value": PAIR, "value": None})


def test_the_documented_class_takes_the_layer_that_is_nearest_to_the_others(tmp_path):
    (tmp_path / "medoid.py").write_text(documented(1))
    rule = AggregationRule(f"{tmp_path}/medoid.py:Medoid")
    assert rule.combines_groups
    code, scales = own_tensor_fold(rule), (1, 1.25, 5)
    states = [{"fc.weight": torch.eye(3, 4) * scale, "fc.bias": torch.ones(3)} for scale in scales]
    found, _ = fold_groups(tmp_path, states[0], whole(states), code, rule, step=64)
    assert torch.equal(found["fc.weight"], states[1]["fc.weight"])
