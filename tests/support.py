"""Tensors of every kind, and what the tests of several rooms do with them."""

import json
import os
import tracemalloc
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
import torch
from hypothesis import strategies as st
from safetensors.torch import save_file

from flstream.model.dtypes import BY_CODE, torch_dtype
from flstream.model.layout import Layout
from flstream.model.source import Scratch, Source, views_of

FLOATS = ("F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ")
COMPLEX = ("C64",)
INTEGERS = ("I64", "I32", "I16", "I8", "U64", "U32", "U16", "U8")
FOLDED = tuple(code for code in BY_CODE if code != "F8_E8M0")
"""Types that have a mean."""


def tensor(code: str, shape: tuple[int, ...], seed: int = 0) -> torch.Tensor:
    """A tensor of any dtype with plain values: no NaN, no infinity."""
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randint(0, 100, shape, generator=generator).double() / 8
    dtype = torch_dtype(code)
    return numbers > 6 if dtype == torch.bool else numbers.to(dtype)


def every_kind(codes: Iterable[str] = BY_CODE) -> dict[str, torch.Tensor]:
    """A state dict with every dtype, each as a matrix, a scalar and an empty tensor."""
    tensors = {}
    for seed, code in enumerate(codes):
        tensors[f"{code}.matrix"] = tensor(code, (7, 5), seed)
        tensors[f"{code}.scalar"] = tensor(code, (), seed)
        tensors[f"{code}.empty"] = tensor(code, (0, 3), seed)
    return tensors


def as_bytes(value: torch.Tensor) -> bytes:
    return (
        value.detach()
        .clone(memory_format=torch.contiguous_format)
        .reshape(-1)
        .view(torch.uint8)
        .numpy()
        .tobytes()
    )


def assert_same_tensors(
    tensors: Mapping[str, torch.Tensor], expected: Mapping[str, torch.Tensor]
) -> None:
    """Same names, dtypes, shapes and bits."""
    assert set(tensors) == set(expected)
    for name, value in expected.items():
        assert (tensors[name].dtype, tensors[name].shape) == (value.dtype, value.shape), name
        assert as_bytes(tensors[name]) == as_bytes(value), name


def body_of(source: Source, step: int = 1 << 30) -> bytes:
    """The body of a source that is read in ranges of ``step`` bytes."""
    scratch, data = Scratch(), bytearray()
    for start, stop in source.layout.ranges(step):
        for view in views_of(source, start, stop, scratch):
            data += view
    return bytes(data)


class FrontToBack:
    """A body that can be read once, as one that comes from another process."""

    def __init__(self, source: Source) -> None:
        self.layout = source.layout
        self._source, self.reached = source, 0

    def read(self, start: int, stop: int, into: memoryview) -> None:
        assert start == self.reached < stop
        self.reached = stop
        self._source.read(start, stop, into)


def tensors_of(source: Source, step: int = 4096) -> dict[str, torch.Tensor]:
    """The tensors of a source that is read in ranges of ``step`` bytes."""
    data, tensors = bytearray(body_of(source, step)), {}
    for spec in source.layout.tensors:
        own = data[spec.start : spec.stop]
        flat = torch.frombuffer(own, dtype=torch_dtype(spec.dtype)) if own else torch.empty(0)
        tensors[spec.name] = flat.to(torch_dtype(spec.dtype)).reshape(spec.shape)
    return tensors


def write_shards(folder: Path, state: Mapping[str, torch.Tensor], count: int = 3) -> Path:
    """Write a checkpoint in several files; return their index, which gives a wrong size."""
    where: dict[str, str] = {}
    for number in range(count):
        name = f"model-{number}.safetensors"
        if part := {tensor: state[tensor] for tensor in sorted(state)[number::count]}:
            save_file(part, folder / name, {"format": "pt"})
            where |= dict.fromkeys(part, name)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": where}))
    return index


def open_files() -> int:
    """How many descriptors this process has."""
    return len(os.listdir("/proc/self/fd"))


def peak_of(call: Callable[..., object], *args: object) -> int:
    """The most bytes that Python and NumPy allocate during a call."""
    np.zeros(1) + 1  # whatever NumPy sets up at first use is not the call's
    tracemalloc.start()
    try:
        call(*args)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@st.composite
def entries(
    draw: st.DrawFn, codes: tuple[str, ...] = tuple(BY_CODE)
) -> list[tuple[str, str, tuple[int, ...]]]:
    """Names, dtypes and shapes of a state dict, scalars and empty tensors among them."""
    names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12).filter(
        lambda name: name != "__metadata__"
    )
    shapes = st.lists(st.integers(0, 9), max_size=3).map(tuple)
    chosen = draw(st.lists(names, unique=True, max_size=8))
    return [(name, draw(st.sampled_from(codes)), draw(shapes)) for name in chosen]


def layouts() -> st.SearchStrategy[Layout]:
    return entries().map(Layout.of)


def cuts(nbytes: int) -> st.SearchStrategy[int]:
    """Sizes to cut a body into: multiples of 16, from one to more than all of it."""
    return st.integers(1, nbytes // 16 + 2).map(lambda count: count * 16)
