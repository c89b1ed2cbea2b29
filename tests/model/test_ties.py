"""Tied weights: one tensor under several names, sent once and tied again on arrival."""

import json

import numpy as np
import pytest
import torch
from support import as_bytes, assert_same_tensors, body_of, tensor
from torch import nn

from flstream.errors import LayoutError
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.copy import copy
from flstream.model.layout import Layout, parse_header
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
    number = torch.tensor([1 + 2j])
    empty = {"c": torch.zeros(0), "d": torch.zeros(0)}
    assert MemoryBody.of({"a": number, "b": number.conj(), **empty}).layout.aliases == {}
    assert MemoryBody.of({"a": value, "b": value}, tied={}).layout.nbytes == 24


def test_views_of_one_storage_that_show_other_elements_travel_as_tensors_of_their_own():
    storage = torch.arange(12, dtype=torch.float32)
    tensors = {
        "whole": storage,
        "front": storage[:6],
        "back": storage[6:],
        "matrix": storage.reshape(3, 4),
        "turned": storage.reshape(4, 3).t(),
        "bits": storage.view(torch.int32),
    }
    body = MemoryBody.of(tensors)
    assert body.layout.aliases == {}
    sink = MemoryBody.allocate(body.layout)
    copy(body, sink)
    assert_same_tensors(sink.tensors, tensors)
    assert len({value.untyped_storage().data_ptr() for value in sink.tensors.values()}) == 6


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


def test_ties_are_part_of_what_a_layout_is():
    entries = [("a", "F32", (2,)), ("b", "F32", (2,))]
    plain, tied = Layout.of(entries), Layout.of(entries, {"c": "a"})
    other = Layout.of(entries, {"c": "b"})
    assert len({plain, tied, other, Layout.of(entries, {"c": "a"})}) == 3
    assert len({each.fingerprint for each in (plain, tied, other)}) == 3
    assert tied.is_canonical
    assert not Layout.of([("b", "U8", (1,))], {"a": "b"}).is_canonical


@pytest.mark.parametrize(
    ("entries", "aliases", "sentence"),
    [
        (["a", "b"], {}, "'c' is missing"),
        (["a", "b", "c"], {}, "'c' is not tied to 'a', as it is in the model"),
        (["a"], {"b": "a", "c": "a"}, "'b' is tied to 'a', which it is not in the model"),
        (["a", "b"], {"c": "b"}, "'c' is tied to 'b', which it is not in the model"),
    ],
)
def test_the_first_difference_of_ties_is_named(entries, aliases, sentence):
    model = Layout.of([("a", "F32", (2,)), ("b", "F32", (2,))], {"c": "a"})
    update = Layout.of([(name, "F32", (2,)) for name in entries], aliases)
    assert sentence in str(model.difference(update))
    assert model.difference(model) is None


A, B = ({"dtype": "U8", "shape": [1], "data_offsets": [n, n + 1]} for n in (0, 1))


@pytest.mark.parametrize(
    ("ties", "sentence"),
    [
        ("{", "ties that are not a table of strings: .*truncated"),
        ("[" * 100_000, "not a table of strings"),
        ('{"c": "a", "c": "b"}', "a name stands there twice"),
        ("[]", "not a table of strings"),
        ('{"c": 1}', "not a table of strings: Expected `str`, got `int`"),
        ('{"c": ["a"]}', "not a table of strings: Expected `str`, got `array`"),
        ('{"c": "missing"}', "ties 'c' to 'missing', which is none of its tensors"),
        ('{"c": "d", "d": "a"}', "ties 'c' to 'd', which is none of its tensors"),
        ('{"c": "c"}', "ties 'c' to 'c', which is none of its tensors"),
        ('{"a": "b"}', "ties 'a', which is a tensor of its own"),
        ('{"__metadata__": "a"}', "'__metadata__', which the format keeps"),
        ('{"\\ud800": "a"}', "not a table of strings: .*surrogate"),
    ],
)
def test_a_table_of_ties_that_cannot_be_is_refused(ties, sentence):
    fields = {"__metadata__": {"flstream.tied": ties}, "a": A, "b": B}
    with pytest.raises(LayoutError, match=sentence):
        parse_header(json.dumps(fields).encode(), "peer")


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
