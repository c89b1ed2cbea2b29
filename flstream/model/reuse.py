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
from typing import Any, NamedTuple

import numpy as np

from flstream.model.layout import Layout, TensorInfo
from flstream.model.memory import Framework, MemoryBody, empty_tensor, over_bytes

# Smaller tensors come from the allocator: a process may not have many mappings of its own.
_LEAST_BYTES = 1 << 20


class ModelMemory:
    """Allocator of a site's received models, which reuses the last model's memory.

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
        self._kept = [memory for lent in self._lent if (memory := lent.memory()) is not None]

    def release(self) -> None:
        """Hold back no memory: the next model is far off, or goes elsewhere."""
        self._kept, self._lent = [], []

    def allocate(self, layout: Layout, framework: Framework) -> MemoryBody:
        """Allocate uninitialised memory for a model: see :meth:`MemoryBody.allocate`.

        Raises:
            LayoutError: There is not enough memory, or NumPy lacks one of the dtypes.
        """
        free: dict[int, dict[str, mmap.mmap]] = defaultdict(dict)
        for lent in self._lent:
            memory = lent.memory()
            if memory is not None and lent.array() is None:
                free[len(memory)][lent.name] = memory
        self.release()
        is_used = False

        def empty(spec: TensorInfo, framework: Framework) -> Any:
            nonlocal is_used
            if spec.nbytes < _LEAST_BYTES:
                return empty_tensor(spec, framework)
            if memories := free[spec.nbytes]:
                is_used = True
                name = spec.name if spec.name in memories else next(iter(memories))
                memory = memories.pop(name)
            else:
                flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
                memory = mmap.mmap(-1, spec.nbytes, flags=flags)
                with suppress(OSError):  # a hint, which a kernel without huge pages refuses
                    memory.madvise(mmap.MADV_HUGEPAGE)
            # Tensors made of this array keep it alive, and it the memory.
            array = np.frombuffer(memory, np.uint8)
            self._lent.append(_Lent(spec.name, weakref.ref(memory), weakref.ref(array)))
            return over_bytes(array, spec, framework)

        body = MemoryBody.allocate(layout, framework, empty)
        body.is_used = is_used
        return body


class _Lent(NamedTuple):
    """Memory of a tensor of the last model, and the array over it."""

    name: str
    memory: weakref.ref[mmap.mmap]
    array: weakref.ref[np.ndarray[Any, Any]]
