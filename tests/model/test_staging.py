"""Tensors that are not contiguous: any range of them, for the memory of that range."""

import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import COMPLEX, as_bytes, body_of, tensor

from flstream.model.body import Scratch
from flstream.model.dtypes import BY_CODE, torch_dtype
from flstream.model.memory import MemoryBody
from flstream.model.staging import Strided


@st.composite
def strided(draw: st.DrawFn) -> np.ndarray:
    """An array of any shape, seen in any order, with steps of any sign, and expanded."""
    dtype = draw(st.sampled_from(["u1", "i2", "f4", "f8", "c8", "c16", "?"]))
    shape = draw(st.lists(st.integers(1, 40), min_size=1, max_size=4).filter(_small))
    count = int(np.prod(shape))
    raw = np.random.default_rng(count).integers(0, 256, count * np.dtype(dtype).itemsize, np.uint8)
    array = (raw & 1 if dtype == "?" else raw).view(dtype).reshape(shape)
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    steps = [draw(st.sampled_from([-3, -2, -1, 1, 1, 2])) for _ in shape]
    array = array[tuple(slice(None, None, step) for step in steps)]
    if draw(st.booleans()):
        axis = draw(st.integers(0, array.ndim))
        array = np.broadcast_to(
            np.expand_dims(array, axis), (*array.shape[:axis], 3, *array.shape[axis:])
        )
    return array


def _small(shape: list[int]) -> bool:
    return np.prod(shape) <= 20_000


@given(strided(), st.data())
def test_any_range_of_any_strided_array_is_that_range_of_its_elements_in_order(array, data):
    due = np.ascontiguousarray(array).tobytes()
    piece = Strided(array)
    assert len(piece) == len(due)
    start = data.draw(st.integers(0, len(due) - 1))
    stop = data.draw(st.integers(start + 1, len(due)))
    room = memoryview(bytearray(piece.room(start, stop)))
    assert bytes(piece.gather(start, stop, room)) == due[start:stop]
    assert len(room) <= stop - start + 2 * (array.itemsize - 1)


@pytest.mark.parametrize("code", BY_CODE)
def test_every_dtype_keeps_every_bit_when_it_is_gathered(code):
    size = BY_CODE[code].itemsize
    # All patterns of bytes, signalling NaNs and negative zeros among them.
    raw = torch.arange(256 * 6 * size, dtype=torch.int64).mul(2654435761).div(997).to(torch.uint8)
    if code == "BOOL":
        raw &= 1
    if code in COMPLEX:
        value = raw.view(torch.float32 if code == "C64" else torch.float64).view(torch_dtype(code))
    else:
        value = raw.view(torch_dtype(code))
    value = value.reshape(-1, 6)
    due = b"".join(as_bytes(value[:, column].clone()) for column in range(6))
    assert body_of(MemoryBody.of({"w": value.t()})) == due
    assert body_of(MemoryBody.of({"w": value})) == raw.numpy().tobytes()


@pytest.mark.parametrize(
    "value",
    [
        torch.arange(300.0 * 200).reshape(300, 200).t(),
        tensor("I16", (2, 64, 9, 9)).to(memory_format=torch.channels_last),
        np.arange(70.0 * 3 * 90).reshape(90, 3, 70).transpose(2, 1, 0)[::-1],
        torch.arange(5000, dtype=torch.uint8).reshape(2, 2500).t(),
        torch.arange(16, dtype=torch.int16).expand((5 << 30) // 32, 16),
    ],
    ids=["turned", "channels last", "three axes reversed", "narrow", "beyond 4 GiB"],
)
def test_tiles_cover_every_element_once(value):
    body = MemoryBody.of({"w": value})
    if body.layout.nbytes > 1 << 30:
        due = as_bytes(value[:3])[6:70]
        assert b"".join(body.views((9 << 29) + 6, (9 << 29) + 70)) == due
        return
    due = np.ascontiguousarray(value).tobytes()
    for step in (16, 4096, 12_000, len(due)):
        scratch, found = Scratch(), b""
        for start, stop in body.layout.ranges(step):
            found += b"".join(body.views(start, stop, scratch))
        assert found == due


def test_a_range_over_many_tensors_gathers_only_those_that_need_it_in_one_room():
    class NotedScratch(Scratch):
        def take(self, size):
            taken.append(size)
            return super().take(size)

    taken = []
    straight, turned = tensor("F32", (9, 7), 1), tensor("F32", (9, 7), 2).t()
    body = MemoryBody.of({"a": straight, "b": turned, "c": turned[:, ::2], "d": straight.clone()})
    whole = body_of(body)
    first, *_ = views = body.views(8, len(whole) - 8, NotedScratch())
    assert b"".join(views) == whole[8:-8]
    assert len(taken) == 1
    place = np.frombuffer(first, np.uint8).__array_interface__["data"][0]
    assert place == straight.data_ptr() + 8


def test_a_tensor_that_is_not_contiguous_is_never_copied_whole():
    value = np.zeros((2048, 2048), np.float32)  # 16 MiB
    tracemalloc.start()
    try:
        body = MemoryBody.of({"w": value.T, "x": value[::-1], "y": value[:, ::2]})
        scratch = Scratch()
        for start, stop in body.layout.ranges(1 << 18):
            body.views(start, stop, scratch)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
