"""A body in the storage of tensors: source and sink in one, without a copy of its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import psutil

from flstream.errors import LayoutError
from flstream.model.device import DeviceTensor, TensorView, viewed
from flstream.model.dtypes import numpy_dtype, torch_dtype
from flstream.model.header import TensorInfo, check_name
from flstream.model.layout import Layout
from flstream.model.modules import exchanged_state, is_own_memory
from flstream.model.ties import find_ties, restore_ties
from flstream.units import format_bytes

if TYPE_CHECKING:
    import torch

Framework = Literal["pytorch", "numpy"]
Params = Mapping[str, "torch.Tensor | np.ndarray[Any, Any]"]
_ALWAYS_FITS = 16 << 20

Empty = Callable[[TensorInfo, Framework], "torch.Tensor | np.ndarray[Any, Any]"]
"""Function that makes an uninitialised tensor or array."""


class MemoryBody:
    """The body of tensors in memory, over their own storage.

    Attributes:
        layout: Names, dtypes, shapes, offsets and aliases of the tensors.
        tensors: Tensors by name; an alias has the same tensor as its name. Writing into the body's
            views writes into them.
        is_used: Whether the tensors have held a model before, much of which may be in the one that
            they are to receive.

    Args:
        layout: Layout of the body.
        tensors: Tensors by name, with all aliases.
        views: Each tensor of the layout as bytes, by name.
        watched: Whether the tensors are to stay as they are, so that :meth:`changed` is meaningful.
    """

    lendable = True

    def __init__(
        self,
        layout: Layout,
        tensors: Params,
        views: Mapping[str, TensorView],
        *,
        watched: bool = False,
    ) -> None:
        self.layout = layout
        self.tensors = dict(tensors)
        self.is_used = False
        # Empty tensors are in no range.
        filled = [spec for spec in layout.tensors if spec.nbytes]
        self._views = [views[spec.name] for spec in filled]
        self._starts = [spec.start for spec in filled]
        # How often torch's operators have changed each tensor in place. What NumPy writes, or what
        # goes through .data, is not counted; nor are tensors made in inference mode.
        self._versions = [
            (spec.name, tensor, tensor._version)
            for spec, view in zip(filled if watched else (), self._views, strict=False)
            if (tensor := view.tensor) is not None and not tensor.is_inference()
        ]
        # Ranges of tensors on other devices that are being written: where they go, and their bytes.
        self._incoming: dict[tuple[int, int], list[tuple[DeviceTensor, int, memoryview]]] = {}

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
        for name in tensors:
            check_name(name)
        known = {name: viewed(name, value, writable=writable) for name, value in tensors.items()}
        if tied is None:
            tied = find_ties(known)
        views = restore_ties(known, tied)
        layout = Layout.of(
            ((name, view.code, view.shape) for name, view in views.items()),
            {alias: name for alias, name in tied.items() if name in views},
        )
        return cls(layout, tensors, views, watched=not writable)

    @classmethod
    def over(cls, into: torch.nn.Module | Params) -> MemoryBody:
        """Make the writable body of a module's own parameters and buffers, or of given tensors.

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
        views = {name: viewed(name, value, writable=True) for name, value in tensors.items()}
        tensors |= {alias: tensors[name] for alias, name in layout.aliases.items()}
        return cls(layout, tensors, views)

    @property
    def overlaps(self) -> bool:
        """Whether tensors of a writable body share memory, but are not tied.

        Such memory keeps what is written last.
        """
        places = sorted((*view.address, view.nbytes) for view in self._views)
        return any(
            device == other and start + size > place
            for (device, start, size), (other, place, _) in pairwise(places)
        )

    def part(self, layout: Layout) -> MemoryBody:
        """Return the writable body of some of the tensors, in their own storage.

        Args:
            layout: Layout of those tensors.
        """
        names = layout.names
        tensors = {name: self.tensors[name] for name in names}
        return MemoryBody.of(tensors, writable=True, tied=layout.aliases)

    def in_place(self, start: int, stop: int) -> list[memoryview] | None:
        """Return the bytes ``[start, stop)`` in the tensors' own storage, one view a tensor.

        Returns:
            The views; None if a tensor among them is not contiguous, or on another device.
        """
        views: list[memoryview] = []
        for view, first, last in self._parts(start, stop):
            own = view.in_place(first, last)
            if own is None:
                return None
            views.append(own)
        return views

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Copy the bytes ``[start, stop)``, gathered from wherever they are."""
        for view, first, last in self._parts(start, stop):
            view.read(first, last, into[: last - first])
            into = into[last - first :]

    def _parts(self, start: int, stop: int) -> Iterator[tuple[TensorView, int, int]]:
        """Yield each tensor with bytes in ``[start, stop)``, and where they are in the tensor."""
        index = bisect_right(self._starts, start) - 1
        while start < stop:
            view = self._views[index]
            first = start - self._starts[index]
            last = min(first + stop - start, view.nbytes)
            yield view, first, last
            start += last - first
            index += 1

    def views(self, start: int, stop: int) -> list[memoryview]:
        """Return writable views of the bytes ``[start, stop)``, one a tensor.

        Those of tensors on other devices are new memory until :meth:`commit`.
        """
        views: list[memoryview] = []
        incoming: list[tuple[DeviceTensor, int, memoryview]] = []
        for view, first, last in self._parts(start, stop):
            if isinstance(view, DeviceTensor):
                views.append(memoryview(bytearray(last - first)))
                incoming.append((view, first, views[-1]))
            else:
                own = view.in_place(first, last)
                assert own is not None  # others are not writable
                views.append(own)
        if incoming:
            self._incoming[start, stop] = incoming
        return views

    def changed(self) -> str | None:
        """Return a sentence on the first tensor that torch has changed since; None if none is."""
        for name, tensor, version in self._versions:
            if tensor._version != version:
                return (
                    f"tensor {name!r} was changed while it was on offer; send a copy of it, or "
                    "change it once the offer has settled"
                )
        return None

    def commit(self, start: int, stop: int) -> None:
        """Copy the bytes for tensors on other devices to them."""
        for tensor, first, view in self._incoming.pop((start, stop), ()):
            tensor.write(first, view)


class BufferSource:
    """A body in one buffer, such as a model that came as one message.

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
    """Make a tensor or an array of new, uninitialised memory.

    Raises:
        MemoryError, RuntimeError, ValueError: There is not enough memory.
        LayoutError: NumPy lacks the dtype.
    """
    if framework == "numpy":
        return np.empty(spec.shape, numpy_dtype(spec.dtype, spec.name))
    import torch

    return torch.empty(spec.shape, dtype=torch_dtype(spec.dtype))


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
