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


class NotedScratch(Scratch):
    """Notes what was taken of it."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[int] = []

    def take(self, size: int) -> memoryview:
        self.taken.append(size)
        return super().take(size)


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


@pytest.mark.parametrize(
    "array",
    [
        np.arange(300 * 200, dtype=np.float32).reshape(300, 200).T,
        np.arange(2 * 64 * 9 * 9, dtype=np.int16).reshape(2, 9, 9, 64).transpose(0, 3, 1, 2),
        np.arange(70 * 3 * 90, dtype=np.float64).reshape(90, 3, 70).transpose(2, 1, 0)[::-1],
        np.arange(5000, dtype=np.uint8).reshape(2, 2500).T,
    ],
    ids=["transposed", "channels last", "three axes reversed", "narrow"],
)
def test_tiles_cover_every_element_once(array):
    due = np.ascontiguousarray(array).tobytes()
    body = MemoryBody.of({"w": array})
    for step in (16, 4096, 12_000, len(due)):
        scratch = Scratch()
        assert due == b"".join(
            bytes(view)
            for start, stop in body.layout.ranges(step)
            for view in body.views(start, stop, scratch)
        )


@given(st.data())
def test_a_range_over_many_tensors_gathers_only_those_that_need_it_in_one_room(data):
    tensors = {
        "a.straight": tensor("F32", (9, 7), 1),
        "b.turned": tensor("F32", (9, 7), 2).t(),
        "c.every other": tensor("F32", (40,), 3)[::2],
        "d.straight": tensor("BF16", (33,), 4),
        "e.expanded": tensor("BF16", (1, 5), 5).expand(6, 5),
        "f.turned": tensor("F8_E5M2", (3, 4, 5), 6).permute(2, 0, 1),
    }
    body = MemoryBody.of(tensors)
    whole = b"".join(as_bytes(tensors[spec.name]) for spec in body.layout.tensors)
    start = data.draw(st.integers(0, len(whole) - 1))
    stop = data.draw(st.integers(start + 1, len(whole)))
    scratch = NotedScratch()
    views = body.views(start, stop, scratch)
    assert b"".join(views) == whole[start:stop]
    assert len(scratch.taken) <= 1
    assert sum(scratch.taken) < stop - start + 3 * 2 * 4
    for spec, view in zip(body.layout.overlapping(start, stop), views, strict=True):
        if spec.name.endswith("straight"):
            value = tensors[spec.name]
            place = np.frombuffer(view, np.uint8).__array_interface__["data"][0]
            assert place == value.data_ptr() + max(start - spec.start, 0)


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


def test_channels_last_is_sent_in_the_order_of_its_indices():
    value = tensor("F32", (2, 5, 4, 3)).to(memory_format=torch.channels_last)
    assert not value.is_contiguous()
    assert body_of(MemoryBody.of({"w": value})) == as_bytes(value)


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
