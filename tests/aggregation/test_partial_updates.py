"""Partial updates: a tensor's mean is over those who send it."""

import pytest
import torch
from folding import fold, shifted, update
from support import FOLDED, as_bytes, assert_same_tensors, every_kind, tensor

from flstream.errors import UpdateRefusedError
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody


def test_a_partial_update_may_have_everything_or_nothing():
    base = every_kind(FOLDED)
    whole = shifted(base, 1)
    updates = [update("site-1", whole, partial=True), update("site-2", {}, partial=True)]
    assert_same_tensors(fold(base, updates), whole)


def test_bits_that_nobody_sends_stay_even_if_they_are_no_numbers():
    base = {"a": torch.tensor([float("nan"), -0.0]), "b": torch.zeros(2)}
    found = fold(base, [update("site-1", {"b": torch.ones(2)}, partial=True)])
    assert as_bytes(found["a"]) == as_bytes(base["a"])
    assert found["b"].tolist() == [1, 1]


def test_full_and_partial_updates_mix():
    base = {"a": torch.zeros(5), "b": torch.zeros(70_000)}
    full = {"a": torch.full((5,), 2.0), "b": torch.full((70_000,), 2.0)}
    part = {"b": torch.full((70_000,), 8.0)}
    found = fold(base, [update("site-1", full), update("site-2", part, 2.0, partial=True)])
    assert found["a"].tolist() == [2.0] * 5
    assert (found["b"] == 6.0).all()


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ({"q": torch.zeros(1)}, "of site-1 does not fit the model: tensor 'q' is not part of the"),
        ({"a": torch.zeros(3)}, r"tensor 'a' has shape \[3\] instead of \[2\]"),
        ({"a": torch.zeros(2).half()}, "tensor 'a' has dtype F16 instead of F32"),
    ],
)
def test_a_tensor_that_is_not_the_models_is_refused_by_name(state, sentence):
    base = {"a": torch.zeros(2), "b": torch.zeros(2)}
    with pytest.raises(UpdateRefusedError, match=sentence):
        fold(base, [update("site-1", state, partial=True)])


def test_a_forgotten_tensor_is_no_partial_update_unless_that_is_declared():
    base = {"a": torch.zeros(2), "b": torch.zeros(2)}
    with pytest.raises(UpdateRefusedError, match="tensor 'b' is missing"):
        fold(base, [update("site-1", {"a": torch.zeros(2)})])


def test_tensors_in_another_order_are_refused():
    class Reversed:
        def __init__(self):
            b, a = (("b", "F32", (2,)), ("a", "F32", (2,)))
            first, second = Layout.of([b]).tensors[0], Layout.of([a]).tensors[0]
            self.layout = Layout([first, second._replace(start=8, stop=16)])

    base = {"a": torch.zeros(2), "b": torch.zeros(2), "c": torch.zeros(2)}
    sent = update("site-1", {"a": torch.zeros(2)}, partial=True)
    with pytest.raises(UpdateRefusedError, match="another order"):
        fold(base, [sent.__class__("site-1", Reversed, 1.0, partial=True)])


def test_tied_weights_are_sent_under_any_of_their_names():
    shared = tensor("F32", (3,))
    base = {"a": shared, "b": shared, "c": torch.zeros(2)}
    ties = MemoryBody.of(base).layout.aliases
    assert ties == {"b": "a"}
    for names in (["a"], ["b"], ["a", "b"]):
        body = MemoryBody.of({name: torch.ones(3) for name in names}, tied=ties)
        sent = update("site-1", {}, partial=True)
        sent = sent.__class__("site-1", lambda body=body: body, 1.0, partial=True)
        assert fold(base, [sent])["a"].tolist() == [1, 1, 1]
