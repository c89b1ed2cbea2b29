"""Tensors in memory as one body: their own storage, and refusals that name the tensor."""

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import as_bytes, assert_same_tensors, body_of, every_kind

from flstream.errors import LayoutError
from flstream.model.body import Scratch
from flstream.model.layout import Layout, TensorSpec
from flstream.model.memory import BufferSource, MemoryBody


@given(st.data())
def test_the_views_of_any_range_are_the_bytes_of_that_range(data):
    body = MemoryBody.of(every_kind())
    whole = b"".join(as_bytes(body.tensors[spec.name]) for spec in body.layout.tensors)
    start = data.draw(st.integers(0, len(whole)))
    stop = data.draw(st.integers(start, len(whole)))
    assert b"".join(body.views(start, stop)) == whole[start:stop]
    buffer = BufferSource(body.layout, memoryview(whole))
    assert b"".join(buffer.views(start, stop)) == whole[start:stop]


def test_writing_into_the_views_writes_into_the_tensors():
    due = every_kind()
    body = MemoryBody.allocate(MemoryBody.of(due).layout)
    source = memoryview(body_of(MemoryBody.of(due)))
    for view in body.views(0, body.layout.nbytes):
        view[:] = source[: len(view)]
        source = source[len(view) :]
    assert_same_tensors(body.tensors, due)


def test_the_storage_is_the_tensors_own_and_is_not_kept_alive_by_another():
    layout = MemoryBody.of({"a": torch.zeros(4), "b": torch.zeros(4)}).layout
    tensors = MemoryBody.allocate(layout).tensors
    a, kept = weakref.ref(tensors["a"].untyped_storage()), tensors["b"]
    assert tensors["a"].untyped_storage().data_ptr() != kept.untyped_storage().data_ptr()
    del tensors
    gc.collect()
    assert a() is None


def test_a_modules_parameters_are_written_in_place():
    module = torch.nn.Linear(3, 2)
    body = MemoryBody.of(module.state_dict(), writable=True)
    for view in body.views(0, body.layout.nbytes):
        view[:] = bytes(len(view))
    assert not module.weight.any()
    assert module.weight.requires_grad


def test_arrays_that_were_allocated_are_writable():
    body = MemoryBody.allocate(MemoryBody.of({"a": np.zeros((2, 3))}).layout, "numpy")
    (view,) = body.views(0, 48)
    view[:] = np.ones(6).tobytes()
    assert (body.tensors["a"] == 1).all()


def test_a_tensor_that_is_not_contiguous_is_sent_in_the_order_of_its_elements():
    value = torch.arange(6).reshape(2, 3)
    assert body_of(MemoryBody.of({"a": value.t()})) == as_bytes(value.t().contiguous())
    array = np.arange(6).reshape(2, 3)
    assert body_of(MemoryBody.of({"a": array.T})) == np.ascontiguousarray(array.T).tobytes()


def test_lazily_conjugated_and_negated_tensors_are_sent_as_they_show():
    value = torch.tensor([1 + 2j, 3 - 4j])
    due = torch.view_as_real(value.conj().resolve_conj())
    assert body_of(MemoryBody.of({"a": value.conj()})) == as_bytes(due)
    imaginary = value.conj().imag
    assert imaginary.is_neg()
    assert body_of(MemoryBody.of({"a": imaginary})) == as_bytes(imaginary.resolve_neg().clone())


def test_a_numpy_scalar_is_sent_as_the_array_without_dimensions_that_it_was():
    body = MemoryBody.of({"w": np.zeros(3, np.float32).sum() + np.float32(1.5)})
    assert body.layout.by_name["w"].shape == ()
    assert body_of(body) == np.float32(1.5).tobytes()


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ("text", "'w' is a str, not a tensor"),
        (1.5, "'w' is a float, not a tensor"),
        (np.array([None]), "'w' has dtype object"),
        (np.zeros(2, ">f4"), "'w' has dtype >f4"),
        (np.zeros(2, "M8[s]"), "'w' has dtype datetime64"),
        (torch.zeros(2, dtype=torch.complex128), "'w' has dtype torch.complex128"),
        (torch.zeros(2, 2).to_sparse(), "'w' is torch.sparse_coo"),
        (torch.zeros(2, device="meta"), "'w' is torch.strided on meta"),
    ],
)
def test_what_cannot_be_streamed_is_refused_by_name(value, sentence):
    with pytest.raises(LayoutError, match=sentence):
        MemoryBody.of({"fine": torch.zeros(1), "w": value})


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        (torch.zeros(2, 3).t(), "'w' is not contiguous"),
        (torch.zeros(1).expand(4), "'w' is not contiguous"),
        (np.zeros((2, 3)).T, "'w' is not contiguous"),
        (np.broadcast_to(np.zeros(1), (4,)), "'w' is read-only"),
    ],
)
def test_what_cannot_be_received_into_is_refused_by_name(value, sentence):
    with pytest.raises(LayoutError, match=sentence):
        MemoryBody.of({"w": value}, writable=True)


def test_numpy_has_no_bfloat16_and_the_refusal_says_what_to_do():
    layout = MemoryBody.of({"w": torch.zeros(2, dtype=torch.bfloat16)}).layout
    with pytest.raises(LayoutError, match=r"'w' has dtype bfloat16.*exchange_format = pytorch"):
        MemoryBody.allocate(layout, "numpy")


def test_a_scratch_buffer_is_reused_unless_it_is_of_a_whole_model():
    scratch = Scratch()
    first = scratch.take(100)
    assert scratch.take(50).obj is first.obj
    assert scratch.take(200).obj is not first.obj
    large = scratch.take(33 << 20)
    assert scratch.take(33 << 20).obj is not large.obj
    assert len(scratch.take(10)) == 10


def test_new_memory_keeps_the_order_that_a_file_of_another_tool_has():
    tensors = {"a": torch.tensor([1], dtype=torch.int32), "b": torch.tensor([2.0])}
    layout = Layout([TensorSpec("b", "F32", (1,), 0, 4), TensorSpec("a", "I32", (1,), 4, 8)])
    body = MemoryBody.allocate(layout)
    assert body.layout == layout
    (first, second) = body.views(0, 8)
    first[:], second[:] = as_bytes(tensors["b"]), as_bytes(tensors["a"])
    assert_same_tensors(body.tensors, tensors)
