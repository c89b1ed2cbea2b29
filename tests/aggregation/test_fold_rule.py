"""Rules of a workflow's own: bodies beside the model, and the model itself."""

import pytest
import torch
from folding import MemorySink, fold, fold_into, update
from hypothesis import given, settings
from hypothesis import strategies as st

from flstream.aggregation.fold_rule import FoldRule
from flstream.aggregation.optimizers import Optimization, ServerOptimizer
from flstream.aggregation.partial_sum import PartialSum
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.steps import Steps
from flstream.errors import LayoutError, WorkflowError
from flstream.model.digests import body_digest
from flstream.model.joined import SplitWriter, ZeroSource, joint_layout
from flstream.model.memory import MemoryBody

WIDTHS = {"a": torch.float64, "b": torch.float32, "c": torch.float16}


def joint(seed):
    """A model of floats and integers, with a body ``control`` that has a number for each float."""
    generator = torch.Generator().manual_seed(seed)
    values = {
        name: torch.randn(7, 5, generator=generator).to(kind) for name, kind in WIDTHS.items()
    }
    state = {**values, "count": torch.randint(0, 100, (3,), generator=generator)}
    for name, value in values.items():
        state[f"control::{name}"] = torch.randn(value.shape, generator=generator).to(value.dtype)
    return state


UPDATES = [update(f"site-{i}", joint(i), weight=float(i)) for i in (1, 2, 3)]
RULE = AggregationRule(
    bodies=["control"],
    fold_rules={"control": FoldRule(weights=1.0, scale=0.25, base="zero")},
)


def test_a_body_is_summed_by_its_own_rule_and_the_model_as_ever():
    base = joint(0)
    found = fold(base, UPDATES, RULE)
    alone = fold(base, UPDATES, AggregationRule())
    for name in (*WIDTHS, "count"):
        assert torch.equal(found[name], alone[name])
    for name in WIDTHS:
        own = f"control::{name}"
        total = sum(joint(i)[own].double() for i in (1, 2, 3))
        due = (base[own].double() + 0.25 * total).to(base[own].dtype)
        assert torch.equal(found[own], due)


@pytest.mark.parametrize("base", ["own", "zero"])
@pytest.mark.parametrize("normalise", [False, True])
@pytest.mark.parametrize("weights", [None, 2.0, {"site-1": 1.0, "site-2": 0.5, "site-3": 4.0}])
def test_a_rule_is_the_formula_of_its_docstring(weights, normalise, base):
    old = joint(0)
    rule = FoldRule(weights=weights, normalise=normalise, scale=0.5, base=base)
    found = fold(old, UPDATES, AggregationRule(bodies=["control"], fold_rules={"control": rule}))
    by_site = {f"site-{i}": float(i) for i in (1, 2, 3)}
    if isinstance(weights, dict):
        by_site = weights
    elif weights is not None:
        by_site = dict.fromkeys(by_site, weights)
    start = old["control::a"] if base == "own" else torch.zeros(())
    total = sum(by_site[f"site-{i}"] * (joint(i)["control::a"] - start) for i in (1, 2, 3))
    if normalise:
        total = total / sum(by_site.values())
    torch.testing.assert_close(found["control::a"], old["control::a"] + 0.5 * total)


def test_the_model_may_have_a_rule_too():
    base = joint(0)
    rule = FoldRule(weights=[0.5, 0.25, 1.0], scale=2.0).by_site(["site-1", "site-2", "site-3"])
    found = fold(base, UPDATES, AggregationRule(fold_rules={"": rule}))
    steps = [w * (joint(i)["a"] - base["a"]) for i, w in ((1, 0.5), (2, 0.25), (3, 1.0))]
    torch.testing.assert_close(found["a"], base["a"] + 2.0 * sum(steps))
    assert torch.equal(found["count"], fold(base, UPDATES)["count"])


@settings(deadline=None, max_examples=20)
@given(step=st.sampled_from([16, 32, 48, 160, 4096]), frame=st.sampled_from([16]))
def test_the_cut_of_the_body_changes_no_bit(step, frame):
    base = joint(0)
    whole, _ = fold_into(base, UPDATES, RULE)
    cut, _ = fold_into(base, UPDATES, RULE, step=step, frame=frame)
    assert cut.body == whole.body


def test_a_partial_sum_comes_to_the_same_bits(tmp_path):
    base = MemoryBody.of(joint(0))
    steps = Steps(160, 16)
    sums = PartialSum(tmp_path / "sum.safetensors", base, RULE, "round 1")
    sums.add(UPDATES[:2], steps, lambda _: None)
    sums.add(UPDATES[2:], steps, lambda _: None)
    sink = MemorySink(base.layout)
    sums.finish(sink, steps, lambda _: None)
    assert sink.body == fold_into(joint(0), UPDATES, RULE)[0].body


def test_clipping_and_the_server_optimizer_are_for_the_model_alone():
    base = joint(0)
    clipped = AggregationRule(clip_norm=0.1, bodies=RULE.bodies, fold_rules=RULE.fold_rules)
    found = fold(base, UPDATES, clipped)
    assert torch.equal(found["control::a"], fold(base, UPDATES, RULE)["control::a"])
    assert not torch.equal(found["a"], fold(base, UPDATES, RULE)["a"])
    optimizer = ServerOptimizer("fedavgm", 0.5, 0.9, 0.99, 1e-3)
    body = MemoryBody.of({name: base[name] for name in (*WIDTHS, "count")})
    state = MemorySink(optimizer.state_layout(body.layout, AggregationRule()))
    moved = fold(base, UPDATES, RULE, optimization=Optimization(optimizer, None, state))
    assert torch.equal(moved["control::a"], found["control::a"])
    step = fold(base, UPDATES)["a"] - base["a"]
    torch.testing.assert_close(moved["a"], base["a"] + 0.5 * step)


def test_patterns_are_looked_for_in_the_models_names():
    base = joint(0)
    chosen = AggregationRule(include=["^a$"], bodies=RULE.bodies, fold_rules=RULE.fold_rules)
    found = fold(base, UPDATES, chosen)
    for name in ("b", "control::b", "c", "control::c"):
        assert torch.equal(found[name], base[name])
    assert not torch.equal(found["control::a"], base["control::a"])


def test_a_joint_body_is_written_to_its_parts_with_their_digests(tmp_path):
    state = joint(3)
    model = MemoryBody.of({name: each for name, each in state.items() if "::" not in name})
    control = MemoryBody.of({name[9:]: each for name, each in state.items() if "::" in name})
    whole = MemoryBody.of(state)
    parts = {"": MemorySink(model.layout), "control": MemorySink(control.layout)}

    class Into:
        def __init__(self, sink):
            self.layout, self._sink = sink.layout, sink

        def write(self, start, view):
            self._sink.body[start : start + len(view)] = view

    writer = SplitWriter({name: Into(sink) for name, sink in parts.items()})
    assert writer.layout == whole.layout
    writer.write(0, memoryview(b"".join(whole.views(0, 48))))  # a walk that is begun again
    for start, stop in whole.layout.ranges(48):
        data = b"".join(whole.views(start, stop))
        writer.write(start, memoryview(data))
    assert writer.digests() == {"": body_digest(model), "control": body_digest(control)}
    assert parts["control"].body == b"".join(control.views(0, control.layout.nbytes))


def test_a_tensor_that_is_named_like_one_of_another_body_is_refused():
    model = MemoryBody.of({"control::a": torch.zeros(2)}).layout
    with pytest.raises(LayoutError, match=r"tensor 'control::a' of the model is named like"):
        joint_layout({"": model, "control": ZeroSource(model).layout})


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"base": "mine"}, "a base is own or zero"),
        ({"scale": float("nan")}, "a scale is a finite number"),
        ({"weights": [1.0, 0.0]}, "has 0.0; a weight is a finite number above 0"),
        ({"weights": "all"}, "has 'all'; a weight is a finite number above 0"),
    ],
)
def test_what_is_no_rule_is_refused(wrong, why):
    with pytest.raises(WorkflowError, match=why):
        FoldRule(**wrong)


def test_there_is_a_weight_for_each_update():
    with pytest.raises(WorkflowError, match="has 2 weights for 3 updates"):
        FoldRule(weights=[1.0, 2.0]).by_site(["a", "b", "c"])
