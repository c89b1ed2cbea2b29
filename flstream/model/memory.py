"""Body in the storage of tensors: source and sink, without a copy of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import psutil

from flstream.errors import LayoutError
from flstream.model.composed import ComposedSource, Segments
from flstream.model.dtypes import numpy_dtype, torch_dtype
from flstream.model.layout import Layout, TensorInfo
from flstream.model.tensor_view import TensorView, distinct_views
from flstream.units import format_bytes

if TYPE_CHECKING:
    import torch

Framework = Literal["pytorch", "numpy"]
Params = Mapping[str, "torch.Tensor | np.ndarray[Any, Any]"]
_ALWAYS_FITS = 16 << 20

Empty = Callable[[TensorInfo, Framework], "torch.Tensor | np.ndarray[Any, Any]"]
"""Function that makes an uninitialised tensor or array."""


class MemoryBody(ComposedSource):
    """Body of tensors in memory, over their own storage.

    Attributes:
        layout: Names, dtypes, shapes, offsets and aliases of the tensors.
        tensors: Tensors by name; an alias has the same tensor as its name. Writing into the body's
            views writes into them.
        is_used: Whether the tensors have held a model before, much of which may be in the one that
            they are to receive.

    Args:
        layout: Layout of the body.
        tensors: Tensors by name, with all aliases.
        views: Each tensor of the layout as bytes, by name; None for tensors to be written to.
    """

    def __init__(
        self, layout: Layout, tensors: Params, views: Mapping[str, TensorView] | None = None
    ) -> None:
        self.layout = layout
        self.tensors = dict(tensors)
        self.is_used = False
        if views is None:
            names = [spec.name for spec in layout.tensors]
            views = {name: TensorView(name, tensors[name], writable=True) for name in names}
        self._segments = Segments((spec, views[spec.name], 0) for spec in layout.tensors)
        # Ranges of tensors on other devices that are being written: where they go, and their bytes.
        self._incoming: dict[tuple[int, int], list[tuple[TensorView, int, memoryview]]] = {}

    @classmethod
    def of(
        cls, tensors: Params, *, writable: bool = False, tied: Mapping[str, str] | None = None
    ) -> MemoryBody:
        """Make the body of existing torch tensors or NumPy arrays, over their own storage.

        Args:
            tensors: Dense tensors by name, contiguous or not, on any device.
            writable: Whether the body is to be written to; its tensors must then be contiguous.
            tied: Aliases in the layout of the model that these tensors are an update of. By
                default, two names are tied if they show the same elements of one storage.

        Raises:
            LayoutError: A value cannot be streamed, or names that are tied hold different values;
                the message names them and says what to do.
        """
        views, tied = distinct_views(tensors, tied, writable=writable)
        layout = Layout.of(
            ((name, view.code, view.shape) for name, view in views.items()),
            {alias: name for alias, name in tied.items() if name in views},
        )
        return cls(layout, tensors, views)

    @classmethod
    def over(cls, into: torch.nn.Module | Params) -> MemoryBody:
        """Make the writable body of a module's parameters and buffers, or of tensors.

        Of a PEFT model, it is the body of its adapter.

        Raises:
            LayoutError: A tensor cannot be written to; the message names it.
        """
        if not isinstance(into, Mapping) and not hasattr(into, "state_dict"):
            raise LayoutError(
                f"tensors cannot be received into a {type(into).__name__}; give a module, or a "
                "mapping of its tensors by name"
            )
        if isinstance(into, Mapping):
            return cls.of(into, writable=True)
        from flstream.model.modules import exchanged_state, is_own_memory

        tensors = exchanged_state(into)
        body = cls.of(tensors, writable=True)
        if not is_own_memory(into, tensors):
            raise LayoutError(
                f"the state of a {type(into).__name__} is made anew when it is asked for, so it "
                "cannot be received into; receive without into, and load what was received"
            )
        return body

    @classmethod
    def allocate(
        cls, layout: Layout, framework: Framework = "pytorch", empty: Empty | None = None
    ) -> MemoryBody:
        """Allocate uninitialised memory for a layout, in the order of its tensors.

        Each tensor has a storage of its own: in a single block, one tensor that a script still
        refers to would keep the whole model in memory.

        Args:
            layout: Layout of the body.
            framework: Kind of the tensors: torch tensors or NumPy arrays.
            empty: Function that makes each tensor; by default of new memory.

        Raises:
            LayoutError: There is not enough memory, or NumPy lacks one of the dtypes.
        """
        _refuse_oversize(layout)
        tensors = {
            spec.name: _allocated(empty or empty_tensor, spec, framework) for spec in layout.tensors
        }
        tensors |= {alias: tensors[name] for alias, name in layout.aliases.items()}
        return cls(layout, tensors)

    @property
    def overlaps(self) -> bool:
        """Whether tensors of a writable body share memory without being tied.

        Such memory keeps what is written last.
        """
        places = sorted((*view.address, view.nbytes) for view in self._segments.parts)
        return any(
            device == other and start + size > place
            for (device, start, size), (other, place, _) in pairwise(places)
        )

    def part(self, layout: Layout) -> MemoryBody:
        """Return the writable body of a layout's tensors, in their own storage."""
        tensors = {name: self.tensors[name] for name in layout.names}
        return MemoryBody.of(tensors, writable=True, tied=layout.aliases)

    def in_place(self, start: int, stop: int) -> list[memoryview] | None:
        """Return the bytes ``[start, stop)`` in the tensors' storage, one view each.

        Returns:
            The views; None if a tensor among them is not contiguous, or on another device.
        """
        views: list[memoryview] = []
        for at in self._segments.cut(start, stop):  # of which there are hundreds in a chunk
            data = at.part.data
            if data is None:
                return None
            views.append(data[at.offset : at.offset + at.stop - at.start])
        return views

    def views(self, start: int, stop: int) -> list[memoryview]:
        """Return writable views of the bytes ``[start, stop)``, one a tensor.

        Those of tensors on other devices are new memory until :meth:`commit`.
        """
        views: list[memoryview] = []
        incoming: list[tuple[TensorView, int, memoryview]] = []
        for at in self._segments.cut(start, stop):
            size = at.stop - at.start
            if (data := at.part.data) is not None:
                views.append(data[at.offset : at.offset + size])
            else:
                views.append(memoryview(bytearray(size)))
                incoming.append((at.part, at.offset, views[-1]))
        if incoming:
            self._incoming[start, stop] = incoming
        return views

    def commit(self, start: int, stop: int) -> None:
        """Copy the bytes for tensors on other devices to them."""
        for tensor, first, view in self._incoming.pop((start, stop), ()):
            tensor.write(first, view)


class BufferSource:
    """Body in one buffer, such as a model that came as one message.

    Attributes:
        layout: Tensors of the body.

    Args:
        layout: Tensors of the body.
        body: Bytes of the body.
    """

    def __init__(self, layout: Layout, body: memoryview) -> None:
        self.layout = layout
        self._body = body

    def in_place(self, start: int, stop: int) -> list[memoryview]:
        """Return the bytes ``[start, stop)``."""
        return [self._body[start:stop]]

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Copy the bytes ``[start, stop)``."""
        into[:] = self._body[start:stop]


def _refuse_oversize(layout: Layout) -> None:
    # The kernel grants memory that it does not have, tensor by tensor, and kills the process when
    # bytes are written to it. A layout from a peer may state any size.
    if layout.nbytes < _ALWAYS_FITS:
        return  # to ask takes as long as to receive a small body
    there_is = psutil.virtual_memory().total + psutil.swap_memory().total
    if layout.nbytes > there_is:
        largest = max(layout.tensors, key=lambda spec: spec.nbytes)
        raise LayoutError(
            f"a model of {format_bytes(layout.nbytes)} does not fit into the machine's "
            f"{format_bytes(there_is)} of memory (its largest tensor {largest.name!r} takes "
            f"{format_bytes(largest.nbytes)}); receive it into a file"
        )


def empty_tensor(spec: TensorInfo, framework: Framework) -> torch.Tensor | np.ndarray[Any, Any]:
    """Make a tensor or an array of new, uninitialised memory."""
    if framework == "numpy":
        return np.empty(spec.shape, numpy_dtype(spec.dtype, spec.name))
    import torch

    return torch.empty(spec.shape, dtype=torch_dtype(spec.dtype))


def over_bytes(array: np.ndarray[Any, Any], spec: TensorInfo, framework: Framework) -> Any:
    """Return a tensor or an array over an array of its bytes."""
    if framework == "numpy":
        return array.view(numpy_dtype(spec.dtype, spec.name)).reshape(spec.shape)
    import torch

    return torch.from_numpy(array).view(torch_dtype(spec.dtype)).view(spec.shape)


def _allocated(
    empty: Empty, spec: TensorInfo, framework: Framework
) -> torch.Tensor | np.ndarray[Any, Any]:
    try:
        return empty(spec, framework)
    except (MemoryError, OSError, RuntimeError, ValueError) as error:
        raise LayoutError(
            f"there is no memory for tensor {spec.name!r} of shape {list(spec.shape)}, which takes "
            f"{format_bytes(spec.nbytes)}; receive the model into a file, or free memory"
        ) from error
