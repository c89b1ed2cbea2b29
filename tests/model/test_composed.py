"""Tensors of other sources as a body: selected by name, or fitted to a model, exact or refused."""

import pytest
import torch
from support import as_bytes, assert_same_tensors, tensors_of

from flstream.errors import CheckpointError
from flstream.model.checkpoint import FileSource, write_checkpoint
from flstream.model.composed import composed
from flstream.model.fitted import Differences, fitted
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


def test_integers_that_do_not_fit_are_refused():
    with pytest.raises(CheckpointError, match="'w'"):
        tensors_of(fit({"w": torch.empty(2, dtype=torch.int8)}, {"w": torch.tensor([1, 300])}))


def test_values_come_in_the_models_order_and_dtypes():
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
def test_a_tied_tensor_may_be_under_any_of_its_names(names):
    weight = torch.empty(4, 3)
    model = {"wte": weight, "head": weight, "bias": torch.empty(2)}
    value = torch.arange(12.0).reshape(4, 3)
    # Under both names, the file has two copies.
    given = {"bias": torch.ones(2), **{name: value.clone() for name in names}}
    source = fit(model, given)
    assert_same_tensors(tensors_of(source), {"bias": given["bias"], "head": value})
    assert source.layout.aliases == {"wte": "head"}


def test_copies_of_a_tied_tensor_that_differ_are_refused():
    weight = torch.empty(4, 3)
    given = {"wte": torch.zeros(4, 3), "head": torch.ones(4, 3)}
    with pytest.raises(CheckpointError, match="different values for 'head' and 'wte'"):
        tensors_of(fit({"wte": weight, "head": weight}, given))


def test_what_differs_is_listed_by_kind():
    model = {"a": torch.empty(2), "b": torch.empty(2), "c": torch.empty(2)}
    given = {
        "a": torch.zeros(2),
        "b": torch.zeros(3),
        **{f"x{n}": torch.zeros(1) for n in range(9)},
    }
    differences = Differences.between(MemoryBody.of(model).layout, MemoryBody.of(given).layout)
    assert differences.sentence("the file") == (
        "the file lacks 1 tensor ('c') of the model; it has 9 tensors ('x0', 'x1', 'x2', 'x3', "
        "'x4' and 4 more) that the model lacks; it has 1 tensor ('b') in another shape"
    )


def test_names_that_differ_by_a_prefix_are_pointed_out():
    inner = MemoryBody.of({"wte": torch.empty(2), "h.0.w": torch.empty(2)}).layout
    outer = MemoryBody.of({"m.wte": torch.empty(2), "m.h.0.w": torch.empty(2)}).layout
    assert "seem to lack the prefix 'm.'" in Differences.between(outer, inner).sentence("x")
    assert "seem to have the prefix 'm.'" in Differences.between(inner, outer).sentence("x")


def test_what_a_file_lacks_may_be_kept_from_the_model():
    model = {"body": torch.ones(40), "head": torch.full((3, 2), 7.0), "new": torch.tensor(5)}
    given = {"body": torch.arange(40.0), "head": torch.zeros(9, 2), "gone": torch.zeros(1)}
    found = tensors_of(fit(model, given, keeps=True))
    assert_same_tensors(found, {**model, "body": given["body"]})
