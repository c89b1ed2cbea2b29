"""Tensors in memory as one body: their own storage, any range of them, and refusals by name."""

import gc
import resource
import weakref
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support import as_bytes, assert_same_tensors, body_of, peak_of
from torch import nn

from flstream.errors import LayoutError
from flstream.model.dtypes import BY_CODE, torch_dtype
from flstream.model.header import parse_header
from flstream.model.layout import Layout, TensorInfo
from flstream.model.memory import MemoryBody
from flstream.model.reuse import ModelMemory
from flstream.model.source import Scratch, views_of
from flstream.model.tensor_view import TensorView


def test_the_storage_is_each_tensors_own_and_those_that_share_it_untied_overlap():
    flat = torch.rand(100)
    halves = {"a": flat[:50], "b": flat[50:], "tied": flat[:50], "none": flat[10:10]}
    assert not MemoryBody.over(halves).overlaps
    assert MemoryBody.over({**halves, "c": flat[49:51]}).overlaps
    array = np.zeros(8, np.uint8)
    assert MemoryBody.over({"a": array, "b": array[4:]}).overlaps
    layout = MemoryBody.of({"a": torch.zeros(4), "b": torch.zeros(4)}).layout
    tensors = MemoryBody.allocate(layout).tensors
    a, kept = weakref.ref(tensors["a"].untyped_storage()), tensors["b"]
    assert tensors["a"].untyped_storage().data_ptr() != kept.untyped_storage().data_ptr()
    del tensors
    gc.collect()
    assert a() is None


def test_lazily_conjugated_and_negated_tensors_are_sent_as_they_show():
    value = torch.tensor([1 + 2j, 3 - 4j])
    due = torch.view_as_real(value.conj().resolve_conj())
    assert body_of(MemoryBody.of({"a": value.conj()})) == as_bytes(due)
    imaginary = value.conj().imag
    assert imaginary.is_neg()
    assert body_of(MemoryBody.of({"a": imaginary})) == as_bytes(imaginary.resolve_neg().clone())
    for lazy in (value.conj(), imaginary):
        with pytest.raises(LayoutError, match=r"'a' is lazily conjugated .*resolve_conj"):
            MemoryBody.over({"a": lazy})


class Anew(nn.Linear):
    def state_dict(self, **how):
        return {name: value.clone() for name, value in super().state_dict(**how).items()}


ONE = torch.zeros(1)


class Elsewhere(torch.Tensor):
    """Like a DTensor: its values lie in another tensor."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError("a tensor that cannot be sent was computed with")


def freed():
    value = torch.ones(3)
    value.untyped_storage().resize_(0)
    return value


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        # Names that no header can carry.
        ({"half \ud800 one": ONE}, r"'half \\ud800 one' is not a text of Unicode"),
        ({3: ONE}, "3 cannot name a tensor"),
        ({("a", "b"): ONE}, r"\('a', 'b'\) cannot name a tensor"),
        ({"__metadata__": ONE}, "__metadata__"),
        ("text", "'w' is a str, not a tensor"),
        (np.zeros(2, "M8[s]"), "'w' has dtype datetime64"),
        (torch.zeros(2, dtype=torch.float4_e2m1fn_x2), "'w' has dtype torch.float4_e2m1fn_x2"),
        (torch.zeros(2, 2).to_sparse(), r"'w' is torch.sparse_coo.*\.to_dense\(\)"),
        (torch.zeros(2, 2).to_mkldnn(), r"'w' is torch._mkldnn.*\.to_dense\(\)"),
        (torch.zeros(2, device="meta"), "'w' is torch.strided on meta; it has no values; load"),
        (nn.LazyLinear(2).weight, "'w' has no shape yet; run a batch"),
        (np.zeros(2, ">f4"), r"this machine's order: \.astype\('float32'\)"),
        (np.zeros(2, "f4,i4"), "'w' has dtype .* each of its fields"),
        (np.array([None]), "'w' has dtype object.* other values in meta"),
        (np.zeros(2, np.longdouble), "'w' has dtype float128.*convert it to one of float64"),
        (torch.zeros(2, dtype=torch.complex128), r"'w' has .*\.to\(torch\.complex64\)"),
        (np.ma.masked_array([1.0], [True]), r"'w' is masked.*\.filled"),
        (freed(), "'w'"),
        (Elsewhere(torch.ones(3)), "'w' is a Elsewhere, whose values do not lie in one"),
        (
            lambda: torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8),
            r"'w' has dtype torch.qint8.*\.dequantize\(\)",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore")  # torch warns that quantised types will go
def test_what_cannot_be_streamed_is_refused_by_name(value, sentence):
    value = value() if callable(value) and not isinstance(value, torch.Tensor) else value
    tensors = value if isinstance(value, dict) else {"w": value}
    with pytest.raises(LayoutError, match=sentence):
        MemoryBody.of({"fine": ONE, **tensors})


class Named(torch.Tensor):
    """Plain but for a method, and for meddling with every function called on it."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        raise AssertionError("a tensor that can be sent as it is was computed with")


def test_a_subclass_that_is_a_plain_tensor_is_sent():
    value = torch.tensor([1.0, 2.0])
    for same in (value.as_subclass(Named), nn.Parameter(value), nn.Buffer(value)):
        assert body_of(MemoryBody.of({"w": same})) == as_bytes(value)
    matrix = np.arange(6.0).reshape(2, 3).view(np.matrix)
    assert body_of(MemoryBody.of({"w": matrix})) == matrix.tobytes()
    scalar = MemoryBody.of({"w": np.zeros(3, np.float32).sum() + np.float32(1.5)})
    assert scalar.layout.by_name["w"].shape == ()
    assert body_of(scalar) == np.float32(1.5).tobytes()


def test_what_cannot_be_received_into_is_refused_by_name():
    for value, sentence in (
        (torch.zeros(2, 3).t(), "'w' is not contiguous"),
        (torch.zeros(1).expand(4), "'w' is not contiguous"),
        (np.zeros((2, 3)).T, "'w' is not contiguous"),
        (np.broadcast_to(np.zeros(1), (4,)), "'w' is read-only"),
    ):
        with pytest.raises(LayoutError, match=sentence):
            MemoryBody.of({"w": value}, writable=True)
    with pytest.raises(LayoutError, match="Anew is made anew when it is asked for"):
        MemoryBody.over(Anew(2, 2))
    layout = MemoryBody.of({"w": torch.zeros(2, dtype=torch.bfloat16)}).layout
    with pytest.raises(LayoutError, match=r"'w' has dtype bfloat16.*exchange_format = pytorch"):
        MemoryBody.allocate(layout, "numpy")


def test_a_tensor_under_vmap_is_refused_by_name():
    def send(value):
        with pytest.raises(LayoutError, match="tensor 'w' has no values in memory"):
            MemoryBody.of({"w": value})
        return value

    torch.func.vmap(send)(torch.zeros(2, 2))


def machine_memory():
    return psutil.virtual_memory().total + psutil.swap_memory().total


@pytest.mark.parametrize("framework", ["pytorch", "numpy"])
@pytest.mark.parametrize(
    ("shapes", "sentence"),
    [
        (
            {f"w{i}": (machine_memory() // 2,) for i in range(3)},
            r"does not fit into the machine's .* into a file",
        ),
        ({"w": (2**40, 2**20)}, "a model of 1 EiB does not fit .* largest tensor 'w' takes"),
        ({"small": (1,), "w": (0, 2**62, 2**62)}, r"no memory for tensor 'w' of shape \[0, "),
    ],
)
def test_a_layout_that_no_memory_can_hold_is_refused_by_name(shapes, sentence, framework):
    layout = Layout.of((name, "U8", shape) for name, shape in shapes.items())
    parse_header(layout.plain_header[8:], "a peer may say this")
    with pytest.raises(LayoutError, match=sentence):
        MemoryBody.allocate(layout, framework)


def test_what_the_kernel_refuses_is_refused_by_name():
    limits = resource.getrlimit(resource.RLIMIT_AS)
    room = psutil.Process().memory_info().vms + (256 << 20)
    layout = Layout.of([("a", "F32", (1,)), ("w", "U8", (machine_memory() // 2,))])
    resource.setrlimit(resource.RLIMIT_AS, (room, limits[1]))
    try:
        for framework in ("pytorch", "numpy"):
            with pytest.raises(LayoutError, match=r"no memory for tensor 'w' .* into a file"):
                MemoryBody.allocate(layout, framework)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def test_new_memory_keeps_the_order_that_a_file_of_another_tool_has():
    tensors = {"a": torch.tensor([1], dtype=torch.int32), "b": torch.tensor([2.0])}
    layout = Layout([TensorInfo("b", "F32", (1,), 0, 4), TensorInfo("a", "I32", (1,), 4, 8)])
    body = MemoryBody.allocate(layout)
    assert body.layout == layout
    (first, second) = body.views(0, 8)
    first[:], second[:] = as_bytes(tensors["b"]), as_bytes(tensors["a"])
    assert_same_tensors(body.tensors, tensors)


SHAPES = st.lists(st.integers(1, 40), min_size=1, max_size=4).filter(lambda s: np.prod(s) <= 20_000)


@st.composite
def strided(draw: st.DrawFn) -> np.ndarray:
    """An array of any shape, seen in any order, with steps of any sign, and expanded."""
    dtype = draw(st.sampled_from(["u1", "i2", "f4", "f8", "c8", "?"]))
    shape = draw(SHAPES)
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


@given(strided(), st.data())
def test_any_range_of_any_strided_array_is_that_range_of_its_elements_in_order(array, data):
    due = np.ascontiguousarray(array).tobytes()
    view = TensorView("w", array)
    assert view.nbytes == len(due)
    start = data.draw(st.integers(0, len(due) - 1))
    stop = data.draw(st.integers(start + 1, len(due)))
    room = bytearray(stop - start)
    view.read(start, stop, memoryview(room))
    assert room == due[start:stop]


@pytest.mark.parametrize("code", BY_CODE)
def test_every_dtype_keeps_every_bit_when_it_is_gathered(code):
    size = BY_CODE[code].itemsize
    # All patterns of bytes, signalling NaNs and negative zeros among them.
    raw = torch.arange(256 * 6 * size, dtype=torch.int64).mul(2654435761).div(997).to(torch.uint8)
    if code == "BOOL":
        raw &= 1
    if code == "C64":
        value = raw.view(torch.float32).view(torch_dtype(code))
    else:
        value = raw.view(torch_dtype(code))
    value = value.reshape(-1, 6)
    due = b"".join(as_bytes(value[:, column].clone()) for column in range(6))
    assert body_of(MemoryBody.of({"w": value.t()})) == due
    assert body_of(MemoryBody.of({"w": value})) == raw.numpy().tobytes()


def test_a_tensor_that_is_not_contiguous_is_never_copied_whole_and_may_have_5_gib():
    value = np.zeros((2048, 2048), np.float32)  # 16 MiB

    def read():
        body = MemoryBody.of({"w": value.T, "x": value[::-1], "y": value[:, ::2]})
        scratch = Scratch()
        for start, stop in body.layout.ranges(1 << 18):
            views_of(body, start, stop, scratch)

    assert peak_of(read) < 1 << 20
    value = torch.arange(16, dtype=torch.int16).expand((5 << 30) // 32, 16)
    views = views_of(MemoryBody.of({"w": value}), (9 << 29) + 6, (9 << 29) + 70, Scratch())
    assert b"".join(views) == as_bytes(value[:3])[6:70]


# Memory that one model after another is received into.
PLAIN = Layout.of([("large", "F32", (512, 1024)), ("small", "I64", (7,))])


def address(value: torch.Tensor | np.ndarray) -> int:
    return value.data_ptr() if isinstance(value, torch.Tensor) else value.ctypes.data


@pytest.mark.parametrize("framework", ["pytorch", "numpy"])
@pytest.mark.parametrize("is_held", [False, True], ids=["let go of", "referred to"])
def test_memory_holds_the_next_model_unless_a_script_refers_to_it(framework, is_held):
    memory = ModelMemory()
    params = dict(memory.allocate(PLAIN, framework).tensors)
    params["large"][:] = 1
    was = address(params["large"])
    view = params["large"][3:5] if is_held else None  # not the tensor itself, but of its memory
    memory.keep()
    params.clear()
    gc.collect()
    following = memory.allocate(PLAIN, framework).tensors["large"]
    following[:] = 2
    assert (address(following) == was) != is_held
    assert view is None or (view == 1).all()


def held_back(memory: ModelMemory) -> weakref.ref[Any]:
    """Have a model's memory held back that nobody uses any more; tells whether it is there."""
    params = dict(memory.allocate(PLAIN, "numpy").tensors)
    alive = weakref.ref(params["large"].base.base.obj)
    memory.keep()
    params.clear()
    assert alive() is not None
    return alive


def test_before_the_answer_after_a_release_and_of_another_size_memory_is_free_at_once():
    memory = ModelMemory()
    params = dict(memory.allocate(PLAIN, "numpy").tensors)
    alive = weakref.ref(params["large"].base.base.obj)
    params.clear()
    assert alive() is None
    alive = held_back(memory)
    memory.release()
    assert alive() is None
    # That of another size is given back.
    alive = held_back(memory)
    other = memory.allocate(Layout.of([("large", "F32", (512, 1025))]), "numpy")
    assert alive() is None
    assert other.tensors["large"].shape == (512, 1025)


def test_tensors_of_the_same_size_get_back_what_they_held() -> None:
    layout = Layout.of(
        [("half", "BF16", (3, 1 << 20)), *((f"{i}", "F32", (512, 1024)) for i in range(5))]
    )
    memory = ModelMemory()
    first = memory.allocate(layout, "pytorch")
    assert not first.is_used
    assert first.layout == layout
    for number, tensor in enumerate(first.tensors.values()):
        tensor[:] = number
    memory.keep()
    del first, tensor
    second = memory.allocate(layout, "pytorch")
    assert second.is_used
    assert [tensor[0, 0].item() for tensor in second.tensors.values()] == [0, 1, 2, 3, 4, 5]
