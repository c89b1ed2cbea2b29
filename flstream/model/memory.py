"""A body in the storage of tensors: source and sink in one, without a copy of its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import psutil

from flstream.errors import LayoutError
from flstream.model.dense import dense, plain_tensor
from flstream.model.device import DeviceTensor, viewed
from flstream.model.dtypes import numpy_dtype, torch_dtype
from flstream.model.header import TensorInfo, check_name
from flstream.model.layout import Layout
from flstream.model.modules import exchanged_state, is_own_memory
from flstream.model.source import Scratch, views_of
from flstream.model.staging import Piece
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
        pieces: Bytes of each tensor of the layout, by name.
        watched: Whether the tensors are to stay as they are, so that :meth:`changed` is meaningful.
    """

    random_access = True
    lendable = True
    resumed = False

    def __init__(
        self,
        layout: Layout,
        tensors: Params,
        pieces: Mapping[str, Piece],
        *,
        watched: bool = False,
    ) -> None:
        self.layout = layout
        self.tensors = dict(tensors)
        self.is_used = False
        # Empty tensors are in no range.
        filled = [spec for spec in layout.tensors if spec.nbytes]
        self._pieces = [pieces[spec.name] for spec in filled]
        self._starts = [spec.start for spec in filled]
        self._versions = _Versions(layout, tensors) if watched else None
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
            tied: Aliases in the layout of the model that these tensors are an update of. By default
                two
            names are tied if they show the same elements of one storage.

        Raises:
            LayoutError: A value cannot be streamed, or names that are tied hold different values;
                the
            message names them and says what to do.
        """
        for name in tensors:
            check_name(name)
        known = {name: viewed(name, value, writable=writable) for name, value in tensors.items()}
        if tied is None:
            tied = find_ties(known)
        kept = restore_ties(known, tied)
        layout = Layout.of(
            ((name, each.code, each.shape) for name, each in kept.items()),
            {alias: name for alias, name in tied.items() if name in kept},
        )
        pieces = {name: each.piece() for name, each in kept.items()}
        return cls(layout, tensors, pieces, watched=not writable)

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
            spec.name: _made(empty or empty_tensor, spec, framework) for spec in layout.tensors
        }
        pieces = {
            name: dense(name, value, writable=True).piece() for name, value in tensors.items()
        }
        tensors |= {alias: tensors[name] for alias, name in layout.aliases.items()}
        return cls(layout, tensors, pieces)

    @property
    def overlaps(self) -> bool:
        """Whether tensors of a writable body share memory, but are not tied.

        Such memory keeps what is written last.
        """
        places = sorted((*_place(piece), len(piece)) for piece in self._pieces)
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
        for piece, first, last in self._parts(start, stop):
            if not isinstance(piece, memoryview):
                return None
            views.append(piece[first:last])
        return views

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Copy the bytes ``[start, stop)``, gathered from wherever they are."""
        for piece, first, last in self._parts(start, stop):
            room, into = into[: last - first], into[last - first :]
            if isinstance(piece, memoryview):
                room[:] = piece[first:last]
            elif piece.room(first, last) == len(room):
                piece.gather(first, last, room)
            else:  # the range cuts elements
                room[:] = piece.gather(first, last, memoryview(bytearray(piece.room(first, last))))

    def _parts(self, start: int, stop: int) -> Iterator[tuple[Piece, int, int]]:
        """Yield each tensor with bytes in ``[start, stop)``, and where they are in the tensor."""
        index = bisect_right(self._starts, start) - 1
        while start < stop:
            piece = self._pieces[index]
            first = start - self._starts[index]
            last = min(first + stop - start, len(piece))
            yield piece, first, last
            start += last - first
            index += 1

    def views(self, start: int, stop: int) -> list[memoryview]:
        """Return writable views of the bytes ``[start, stop)``, one a tensor.

        Those of tensors on other devices are new memory until :meth:`commit`.
        """
        views: list[memoryview] = []
        incoming: list[tuple[DeviceTensor, int, memoryview]] = []
        for piece, first, last in self._parts(start, stop):
            if isinstance(piece, memoryview):
                views.append(piece[first:last])
            else:
                assert isinstance(piece, DeviceTensor)  # others are not writable
                views.append(memoryview(bytearray(last - first)))
                incoming.append((piece, first, views[-1]))
        if incoming:
            self._incoming[start, stop] = incoming
        return views

    def changed(self) -> str | None:
        """Return a sentence on the first tensor that torch has changed since; None if none is."""
        spec = self._versions.changed() if self._versions is not None else None
        if spec is None:
            return None
        return (
            f"tensor {spec.name!r} was changed while it was on offer; send a copy of it, or change "
            "it once the offer has settled"
        )

    def written(self, start: int, stop: int) -> Sequence[memoryview]:
        """Return the bytes ``[start, stop)``."""
        return views_of(self, start, stop, Scratch())

    def commit(self, start: int, stop: int) -> None:
        """Copy what was written to other devices; the rest was written in place."""
        for piece, first, view in self._incoming.pop((start, stop), ()):
            piece.put(first, view)


def _place(piece: Piece) -> tuple[str, int]:
    """Return the device and the address of a tensor's bytes; 0 for one that is not in one place."""
    if isinstance(piece, DeviceTensor):
        return str(piece.place[0]), piece.place[1]
    return "", np.frombuffer(piece, np.uint8).ctypes.data if isinstance(piece, memoryview) else 0


class _Versions:
    """How often torch had changed the tensors of a body in place, when this was made.

    It counts the changes by its operators, for all tensors that share a storage at once. What NumPy
    writes, or what goes through ``.data``, is not counted; nor are tensors made in inference mode.

    Args:
        layout: Layout of the body.
        tensors: Tensors by name, with all aliases.
    """

    def __init__(self, layout: Layout, tensors: Params) -> None:
        # A tensor may be there under one of its further names only.
        named = {name: tensors[alias] for alias, name in layout.aliases.items() if alias in tensors}
        named |= tensors
        self._specs: list[TensorInfo] = []
        self._tensors: list[torch.Tensor] = []
        for spec in layout.tensors:
            tensor = named[spec.name]
            if spec.nbytes and not isinstance(tensor, np.ndarray | np.generic):
                tensor = plain_tensor(tensor)
                if not tensor.is_inference():
                    self._specs.append(spec)
                    self._tensors.append(tensor)
        self._before = self._now()

    def _now(self) -> list[int]:
        return [tensor._version for tensor in self._tensors]

    def changed(self) -> TensorInfo | None:
        """Return the first tensor that has been changed."""
        now = self._now()
        if self._before == now:
            return None
        changes = zip(self._specs, self._before, now, strict=True)
        return next(spec for spec, old, new in changes if old != new)


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


def _made(
    empty: Empty, spec: TensorInfo, framework: Framework
) -> torch.Tensor | np.ndarray[Any, Any]:
    try:
        return empty(spec, framework)
    except (MemoryError, OSError, RuntimeError, ValueError) as error:
        raise LayoutError(
            f"there is no memory for tensor {spec.name!r} of shape {list(spec.shape)}, which takes "
            f"{format_bytes(spec.nbytes)}; receive the model into a file, or free memory"
        ) from error
