"""One update becomes the next model as it is: every bit of it, or none."""

import pytest
import torch
from folding import MemorySink, update
from support import as_bytes, assert_same_tensors, every_kind, tensor

from flstream.aggregation.adoption import adopt_update
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.steps import Steps
from flstream.errors import UpdateRefusedError
from flstream.model.digests import body_digest
from flstream.model.memory import MemoryBody


def adopt(base, updates, rule=None, step=1 << 20):
    """The next model, and its digest."""
    body = MemoryBody.of(base)
    sink, done = MemorySink(body.layout), []
    digest = adopt_update(
        body, updates, rule or AggregationRule(), sink, Steps(step, 16), done.append
    )
    assert done[-1] == body.layout.nbytes
    return sink.tensors(), digest


def shifted(state, seed):
    return {name: tensor(name.split(".")[0], tuple(t.shape), seed) for name, t in state.items()}


@pytest.mark.parametrize("step", [16, 1 << 20])
def test_a_whole_update_is_copied_bit_by_bit(step):
    sent = shifted(every_kind(), 5)
    model, digest = adopt(every_kind(), [update("site-1", sent, 18.0)], step=step)
    assert_same_tensors(model, sent)
    assert digest == body_digest(MemoryBody.of(sent))


def test_a_float64_keeps_the_bits_that_a_weighted_mean_may_lose():
    sent = {"w": torch.tensor([0.1, 1 / 3, 1e-320], dtype=torch.float64)}
    model, _ = adopt({"w": torch.zeros(3, dtype=torch.float64)}, [update("site-1", sent, 7.0)])
    assert as_bytes(model["w"]) == as_bytes(sent["w"])


def test_a_difference_is_added_and_a_partial_update_leaves_the_rest():
    base = {"a": torch.ones(4), "b": torch.ones(4)}
    sent = {"a": torch.full((4,), 2.0), "b": torch.full((4,), 3.0)}
    model, _ = adopt(base, [update("site-1", sent, 1.0, "DIFF")])
    assert_same_tensors(model, {"a": torch.full((4,), 3.0), "b": torch.full((4,), 4.0)})
    part = update("site-1", {"a": torch.full((4,), 2.0)}, 1.0, partial=True)
    model, _ = adopt(base, [part])
    assert_same_tensors(model, {"a": torch.full((4,), 2.0), "b": torch.ones(4)})


def test_tensors_that_are_not_aggregated_keep_their_values():
    base, sent = (
        {"a": torch.ones(4), "b": torch.ones(4)},
        {"a": torch.zeros(4), "b": torch.zeros(4)},
    )
    model, _ = adopt(base, [update("site-1", sent)], AggregationRule(exclude=["^b$"]))
    assert_same_tensors(model, {"a": torch.zeros(4), "b": torch.ones(4)})


@pytest.mark.parametrize("step", [16, 1 << 20])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_not_finite_is_refused_with_its_place_unless_it_is_allowed(step, value):
    base = {"n": torch.ones(7, dtype=torch.int32), "w": torch.ones(5, 10)}
    sent = {name: each.clone() for name, each in base.items()}
    sent["w"][3, 4] = value
    with pytest.raises(UpdateRefusedError, match=rf"'w' at \[3, 4\] is {value}; lower"):
        adopt(base, [update("site-1", sent)], step=step)
    model, _ = adopt(base, [update("site-1", sent)], AggregationRule(on_nonfinite="allow"))
    assert as_bytes(model["w"]) == as_bytes(sent["w"])


def test_scales_that_are_not_finite_are_refused_too():
    base = {"w": torch.ones(5).to(torch.float8_e8m0fnu)}
    sent = {"w": torch.tensor([1.0, 2.0, float("nan"), 4.0, 0.5]).to(torch.float8_e8m0fnu)}
    with pytest.raises(UpdateRefusedError, match=r"'w' at \[2\] is nan"):
        adopt(base, [update("site-1", sent)])


def test_an_update_of_another_shape_is_refused():
    with pytest.raises(UpdateRefusedError, match="does not fit the model: tensor 'w' has shape"):
        adopt({"w": torch.ones(4)}, [update("site-1", {"w": torch.ones(2, 2)})])


def test_no_update_leaves_the_model_as_it_is():
    assert_same_tensors(adopt(every_kind(), [])[0], every_kind())
