"""Memory that one model after another is received into."""

import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch

from flstream.model.layout import Layout
from flstream.model.memory import Framework
from flstream.model.reuse import ModelMemory

MIB = 1 << 20
PLAIN = Layout.of([("large", "F32", (512, 1024)), ("small", "I64", (7,))])


def address(value: torch.Tensor | np.ndarray) -> int:
    return value.data_ptr() if isinstance(value, torch.Tensor) else value.ctypes.data


@pytest.mark.parametrize("framework", ["pytorch", "numpy"])
def test_what_is_let_go_of_after_an_answer_holds_the_next_model(framework: Framework) -> None:
    memory = ModelMemory()
    params = dict(memory.allocate(PLAIN, framework).tensors)
    params["large"][:] = 1
    was = address(params["large"])
    memory.keep()
    params.clear()
    assert address(memory.allocate(PLAIN, framework).tensors["large"]) == was


@pytest.mark.parametrize("framework", ["pytorch", "numpy"])
def test_what_a_script_still_refers_to_is_never_written_over(framework: Framework) -> None:
    memory = ModelMemory()
    params = dict(memory.allocate(PLAIN, framework).tensors)
    params["large"][:] = 1
    view = params["large"][3:5]  # not the tensor itself, but of its memory
    memory.keep()
    params.clear()
    gc.collect()
    memory.allocate(PLAIN, framework).tensors["large"][:] = 2
    assert (view == 1).all()


def held_back(memory: ModelMemory) -> weakref.ref[Any]:
    """Have a model's memory held back that nobody uses any more; tells whether it is there."""
    params = dict(memory.allocate(PLAIN, "numpy").tensors)
    alive = weakref.ref(params["large"].base.base.obj)
    memory.keep()
    params.clear()
    assert alive() is not None
    return alive


def test_before_the_answer_and_after_a_release_memory_is_free_at_once() -> None:
    memory = ModelMemory()
    params = dict(memory.allocate(PLAIN, "numpy").tensors)
    alive = weakref.ref(params["large"].base.base.obj)
    params.clear()
    assert alive() is None
    alive = held_back(memory)
    memory.release()
    assert alive() is None


def test_memory_of_another_size_is_given_back() -> None:
    memory = ModelMemory()
    alive = held_back(memory)
    other = memory.allocate(Layout.of([("large", "F32", (512, 1025))]), "numpy")
    assert alive() is None
    assert other.tensors["large"].shape == (512, 1025)


def test_tensors_of_the_same_size_get_back_what_they_held() -> None:
    layout = Layout.of(
        [("half", "BF16", (3, MIB)), *((f"{i}", "F32", (512, 1024)) for i in range(5))]
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
