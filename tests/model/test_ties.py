"""Tied weights: one tensor under several names, sent once and tied again on arrival."""

import numpy as np
import pytest
import torch
from support import as_bytes, body_of, tensor
from torch import nn

from flstream.errors import LayoutError
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.copy import copy
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody


class Tied(nn.Module):
    """What GPT-2 does: the embedding of the words is also the head."""

    def __init__(self) -> None:
        super().__init__()
        self.wte = nn.Embedding(11, 4)
        self.body = nn.Linear(4, 4)
        self.lm_head = nn.Linear(4, 11, bias=False)
        self.lm_head.weight = self.wte.weight


TIES = {"wte.weight": "lm_head.weight"}


def test_a_modules_tied_weights_are_found_and_take_their_bytes_once():
    body = MemoryBody.of(Tied().state_dict())
    assert body.layout.aliases == TIES
    assert body.layout.nbytes == 4 * (11 * 4 + 4 * 4 + 4)
    assert [spec.name for spec in body.layout.tensors] == [
        "body.bias",
        "body.weight",
        "lm_head.weight",
    ]


def test_the_first_name_is_kept_whatever_the_order_and_only_what_is_one_tensor_is_tied():
    value, array = torch.ones(3), np.arange(6.0).reshape(2, 3)
    for names in ("cab", "bac"):
        assert MemoryBody.of(dict.fromkeys(names, value)).layout.aliases == {"b": "a", "c": "a"}
    arrays = {"a": array, "b": array, "turned": array.T, "also": array.T}
    assert MemoryBody.of(arrays).layout.aliases == {"b": "a", "turned": "also"}
    storage = torch.arange(12.0)
    matrix, bits = storage.reshape(3, 4), storage.view(torch.int32)
    views = {"whole": storage, "front": storage[:6], "matrix": matrix, "bits": bits}
    assert MemoryBody.of(views).layout.aliases == {}
    number = torch.tensor([1 + 2j])
    empty = {"c": torch.zeros(0), "d": torch.zeros(0)}
    assert MemoryBody.of({"a": number, "b": number.conj(), **empty}).layout.aliases == {}
    assert MemoryBody.of({"a": value, "b": value}, tied={}).layout.nbytes == 24


def test_a_module_and_a_checkpoint_keep_the_ties(tmp_path):
    body, module = MemoryBody.of(Tied().state_dict()), Tied()
    sink = MemoryBody.of(module.state_dict(), writable=True)
    copy(body, sink)
    assert module.lm_head.weight is module.wte.weight
    assert as_bytes(module.wte.weight) == as_bytes(body.tensors["wte.weight"])
    write_checkpoint(tmp_path / "model", body, {"format": "pt"})
    source = FileSource(tmp_path / "model")
    assert source.layout == sink.layout == body.layout
    assert (source.metadata, body_of(source)) == ({"format": "pt"}, body_of(body))


class TestAnUpdateOfAModelWithTies:
    def test_may_list_a_tensor_under_one_of_its_names_only(self):
        module = Tied()
        named = dict(module.named_parameters())
        assert "lm_head.weight" not in named
        body = MemoryBody.of(named, tied=TIES)
        assert body_of(body) == body_of(MemoryBody.of(module.state_dict()))
        assert body.layout == MemoryBody.of(module.state_dict()).layout

    def test_may_hold_clones_that_lie_otherwise_in_memory(self):
        value = tensor("F64", (600, 300))
        clone = value.t().contiguous().t()
        assert MemoryBody.of({"a": value, "b": clone}, tied={"b": "a"}).layout.nbytes == 1440000
        clone[599, 299] += 1
        with pytest.raises(LayoutError, match="different values"):
            MemoryBody.of({"a": value, "b": clone}, tied={"b": "a"})

    @pytest.mark.parametrize(
        "other",
        [torch.tensor([0.0, 1.0]), torch.tensor([[-0.0, 1.0]]), torch.tensor([0, 1]), np.zeros(2)],
        ids=["the sign of zero", "shape", "dtype", "framework"],
    )
    def test_may_not_hold_other_values(self, other):
        value = torch.tensor([-0.0, 1.0])
        sentence = (
            "tensor 'b' is tied to 'a' in the model, but the update holds different values; "
            "tie them again or untie them in the model"
        )
        with pytest.raises(LayoutError, match=sentence):
            MemoryBody.of({"a": value, "b": other}, tied={"b": "a"})

    def test_that_lacks_a_tied_tensor_altogether_lacks_it_in_its_layout(self):
        layout = MemoryBody.of({"other": torch.zeros(1)}, tied={"b": "a"}).layout
        model = Layout.of([("a", "F32", (1,)), ("other", "F32", (1,))], {"b": "a"})
        assert model.difference(layout) == "tensor 'a' is missing"
