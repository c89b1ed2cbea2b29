"""Tensors that a site has are those of the models which it received, on each branch of them."""

from types import SimpleNamespace

import torch

from flstream.model.memory import MemoryBody
from flstream.model.selection import ModelParts
from flstream.server.program_view import Model
from flstream.server.received import ReceivedTensors

LAYOUT = MemoryBody.of({"a": torch.zeros(2), "b": torch.zeros(2)}).layout


def training(version, *, receive=None, send=None):
    """One of a site that was sent, and has sent back, tensors of these names."""
    return SimpleNamespace(
        parts=ModelParts(receive, send, None),
        base=Model(1, version, ""),
        late_model=None,
        tasks={"site-1": None},
        whole=(),
        round=1,
    )


def test_a_tensor_that_another_branch_of_models_has_changed_is_another_one():
    received = ReceivedTensors(SimpleNamespace(facts=(LAYOUT, None)))
    received.add_model(1, 0, [training(0, send=("b",))])
    received.add_model(2, 0, [training(0, send=("a",))])  # of the first model, too
    received.add_model(3, 2, [training(2, send=("b",))])
    received.take(training(1, receive=("b",)), {"site-1"})
    assert not received.has_base("site-1", Model(1, 3, ""), ("b",))
    received.take(training(2, receive=("b",)), {"site-1"})
    assert received.has_base("site-1", Model(1, 3, ""), ("b",))
