"""Memory reused from one model to the next.

Fresh pages cost more than the bytes that are copied into them: the kernel clears each first, and a
virtual machine may have to ask its host for it. Measured on one, 1 GiB into fresh pages takes 0.5 s
to 2 s, into pages used before 0.1 s.
"""

from __future__ import annotations

import mmap
import weakref
from collections import defaultdict
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from flstream.model.dtypes import numpy_dtype, torch_dtype
from flstream.model.header import TensorInfo
from flstream.model.layout import Layout
from flstream.model.memory import Framework, MemoryBody, empty_tensor

if TYPE_CHECKING:
    import torch

# Smaller tensors come from the allocator: a process may not have many mappings of its own.
_LEAST_BYTES = 1 << 20


class ModelMemory:
    """Allocator of the models that a site receives, which reuses the memory of the model before.

    A tensor's memory is reused once nothing refers to it or to a view of it. Memory that is
    released between :meth:`keep` and the next :meth:`allocate` or :meth:`release` is held back for
    that purpose: while a site that has answered waits for the next round. At any other time it is
    freed at once.

    Where it can, a tensor gets the memory of the one that had its name, with what that held.
    """

    def __init__(self) -> None:
        self._lent: list[_Lent] = []
        self._kept: list[mmap.mmap] = []

    def keep(self) -> None:
        """Hold back the memory that is released from now on, for the next model."""
        self._kept = [memory for each in self._lent if (memory := each.memory()) is not None]

    def release(self) -> None:
        """Hold back no memory: the next model is not expected soon, or goes elsewhere."""
        self._kept, self._lent = [], []

    def allocate(self, layout: Layout, framework: Framework) -> MemoryBody:
        """Allocate uninitialised memory for a model: see :meth:`MemoryBody.allocate`.

        Raises:
            LayoutError: There is not enough memory, or NumPy lacks one of the dtypes.
        """
        free = _FreeMemory()
        for each in self._lent:
            memory = each.memory()
            if memory is not None and each.array() is None:
                free.add(each.name, memory)
        self.release()
        body = MemoryBody.allocate(layout, framework, partial(self._empty, free))
        body.is_used = free.is_used
        return body

    def _empty(
        self, free: _FreeMemory, spec: TensorInfo, framework: Framework
    ) -> torch.Tensor | np.ndarray[Any, Any]:
        if spec.nbytes < _LEAST_BYTES:
            return empty_tensor(spec, framework)
        memory = free.take(spec.name, spec.nbytes) or _mapped(spec.nbytes)
        # Tensors made of this array keep it alive, and it the memory.
        array = np.frombuffer(memory, np.uint8)
        self._lent.append(_Lent(spec.name, weakref.ref(memory), weakref.ref(array)))
        if framework == "numpy":
            return array.view(numpy_dtype(spec.dtype, spec.name)).reshape(spec.shape)
        import torch

        return torch.from_numpy(array).view(torch_dtype(spec.dtype)).view(spec.shape)


class _Lent(NamedTuple):
    """Memory of a tensor of the last model, and the array over it that the tensor refers to."""

    name: str
    memory: weakref.ref[mmap.mmap]
    array: weakref.ref[np.ndarray[Any, Any]]


class _FreeMemory:
    """Memory that nothing refers to, by the names of tensors that it was for.

    Attributes:
        is_used: Whether some of it was taken.
    """

    def __init__(self) -> None:
        self.is_used = False
        self._by_size: dict[int, dict[str, mmap.mmap]] = defaultdict(dict)

    def add(self, name: str, memory: mmap.mmap) -> None:
        """Add the memory of a tensor."""
        self._by_size[len(memory)][name] = memory

    def take(self, name: str, size: int) -> mmap.mmap | None:
        """Return memory of this size, best that of a name; None if there is none."""
        memories = self._by_size[size]
        if not memories:
            return None
        self.is_used = True
        return memories.pop(name) if name in memories else memories.popitem()[1]


def _mapped(size: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(OSError):  # a hint, which a kernel without huge pages refuses
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
