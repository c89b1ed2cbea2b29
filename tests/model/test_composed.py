"""Tensors of other sources as a body: selected by name, or fitted to a model, exact or refused.

Tied weights are one tensor under several names, sent once and tied again on arrival.
"""

import numpy as np
import pytest
import torch
from support import as_bytes, assert_same_tensors, body_of, tensor, tensors_of
from torch import nn

from flstream.errors import CheckpointError, LayoutError
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.composed import composed
from flstream.model.copy import copy
from flstream.model.fitted import Differences, fitted
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody


def parts_of(source, names):
    return {name: (source, source.layout.by_name[name]) for name in names}


def test_what_lies_in_memory_is_not_copied():
    tensors = {name: torch.arange(100.0) + len(name) for name in ("a", "bb", "ccc")}
    source = composed(parts_of(MemoryBody.of(tensors), ["ccc", "a"]))
    views = source.in_place(0, 800)
    assert len(views) == 2
    tensors["a"][3] = -1
    assert b"".join(views) == as_bytes(tensors["a"]) + as_bytes(tensors["ccc"])
    assert "tensor 'a' was changed" in source.changed()
    with torch.inference_mode():
        body = MemoryBody.of({"uncounted": torch.ones(10), **tensors})
    tensors["bb"].add_(1)
    assert "'bb'" in body.changed()


def test_neighbours_in_a_file_are_read_at_once_and_a_change_of_it_is_told_of(tmp_path):
    tensors = {f"{number:03}": torch.full((5,), float(number)) for number in range(100)}
    write_checkpoint(tmp_path / "m", MemoryBody.of(tensors))
    file, reads, names = FileSource(tmp_path / "m"), [], list(tensors)
    source = composed(parts_of(file, [*names[:40], *names[60:]]))
    read = file.read
    file.read = lambda *where: (reads.append(where), read(*where))
    assert_same_tensors(tensors_of(source), {name: tensors[name] for name in source.layout.names})
    assert len(reads) == 2
    assert source.changed() is None
    with (tmp_path / "m").open("r+b") as file:
        file.write(b"junk")
    assert "was changed after it was opened" in source.changed()


def fit(model, given, *, keeps=False):
    made, source = MemoryBody.of(model), MemoryBody.of(given)
    return fitted(made.layout, source, "the file", made if keeps else None)


def test_values_come_in_the_models_order_and_dtypes_and_integers_have_to_fit():
    given = {
        "a": torch.arange(50, dtype=torch.float32) / 4,
        "b": torch.arange(30, dtype=torch.int32).reshape(5, 6),
        "c": torch.tensor(2.5, dtype=torch.float64),
        "d": torch.zeros(0),
    }
    model = {
        "a": torch.empty(50, dtype=torch.bfloat16),
        "b": torch.empty(5, 6, dtype=torch.int64),
        "c": torch.empty((), dtype=torch.float32),
        "d": torch.empty(0),
    }
    due = {name: value.to(model[name].dtype) for name, value in given.items()}
    assert_same_tensors(tensors_of(fit(model, given), 32), due)
    with pytest.raises(CheckpointError, match="'w'"):
        tensors_of(fit({"w": torch.empty(2, dtype=torch.int8)}, {"w": torch.tensor([1, 300])}))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn])
def test_a_value_that_a_dtype_does_not_have_is_refused_unless_it_may_be_rounded(dtype):
    given, model = {"w": torch.tensor([1.0, 1 / 3, float("nan")])}, {"w": torch.empty(3).to(dtype)}
    with pytest.raises(CheckpointError, match=r"tensor 'w' of the file is F32, .* model.strict"):
        tensors_of(fit(model, given))
    rounded = tensors_of(fit(model, given, keeps=True))
    assert_same_tensors(rounded, {"w": given["w"].to(dtype)})
    given["w"] = torch.tensor([1.0, -0.0, float("nan")])
    assert_same_tensors(tensors_of(fit(model, given)), {"w": given["w"].to(dtype)})


@pytest.mark.parametrize("names", [["wte"], ["head"], ["wte", "head"]])
def test_a_tied_tensor_may_be_under_any_of_its_names_with_one_value(names):
    weight = torch.empty(4, 3)
    model = {"wte": weight, "head": weight, "bias": torch.empty(2)}
    value = torch.arange(12.0).reshape(4, 3)
    # Under both names, the file has two copies.
    given = {"bias": torch.ones(2), **{name: value.clone() for name in names}}
    source = fit(model, given)
    assert_same_tensors(tensors_of(source), {"bias": given["bias"], "head": value})
    assert source.layout.aliases == {"wte": "head"}
    given |= {"wte": torch.zeros(4, 3), "head": torch.ones(4, 3)}
    with pytest.raises(CheckpointError, match="different values for 'head' and 'wte'"):
        tensors_of(fit(model, given))


def test_what_differs_is_listed_by_kind_and_a_prefix_is_pointed_out():
    model = {"a": torch.empty(2), "b": torch.empty(2), "c": torch.empty(2)}
    more = {f"x{n}": torch.zeros(1) for n in range(9)}
    given = {"a": torch.zeros(2), "b": torch.zeros(3), **more}
    differences = Differences.between(MemoryBody.of(model).layout, MemoryBody.of(given).layout)
    assert differences.sentence("the file") == (
        "the file lacks 1 tensor ('c') of the model; it has 9 tensors ('x0', 'x1', 'x2', 'x3', "
        "'x4' and 4 more) that the model lacks; it has 1 tensor ('b') in another shape"
    )
    inner = MemoryBody.of({"wte": torch.empty(2), "h.0.w": torch.empty(2)}).layout
    outer = MemoryBody.of({"m.wte": torch.empty(2), "m.h.0.w": torch.empty(2)}).layout
    assert "seem to lack the prefix 'm.'" in Differences.between(outer, inner).sentence("x")
    assert "seem to have the prefix 'm.'" in Differences.between(inner, outer).sentence("x")


def test_what_a_file_lacks_may_be_kept_from_the_model():
    model = {"body": torch.ones(40), "head": torch.full((3, 2), 7.0), "new": torch.tensor(5)}
    given = {"body": torch.arange(40.0), "head": torch.zeros(9, 2), "gone": torch.zeros(1)}
    found = tensors_of(fit(model, given, keeps=True))
    assert_same_tensors(found, {**model, "body": given["body"]})


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
    names = ["body.bias", "body.weight", "lm_head.weight"]
    assert [spec.name for spec in body.layout.tensors] == names


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
