"""A body that lies in the storage of tensors: source and sink in one, with no copy of its own."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flstream.errors import LayoutError
from flstream.model.body import Scratch
from flstream.model.dtypes import code_of, numpy_dtype, torch_dtype
from flstream.model.layout import Layout, TensorSpec

if TYPE_CHECKING:
    import torch

Framework = Literal["pytorch", "numpy"]
Params = Mapping[str, "torch.Tensor | np.ndarray[Any, Any]"]


class MemoryBody:
    """The bytes of tensors in memory.

    Attributes:
        layout: names, dtypes, shapes and offsets.
        tensors: the tensors by name. Writing into the body's views writes into them.
    """

    def __init__(self, layout: Layout, tensors: Params, views: Mapping[str, memoryview]) -> None:
        self.layout = layout
        self.tensors = dict(tensors)
        # Empty tensors have no byte, so no range meets them.
        filled = [spec for spec in layout.tensors if spec.nbytes]
        self._pieces = [views[spec.name] for spec in filled]
        self._starts = [spec.start for spec in filled]

    @classmethod
    def of(cls, tensors: Params, *, writable: bool = False) -> MemoryBody:
        """The body of existing torch tensors or NumPy arrays.

        Args:
            tensors: dense tensors on the CPU by name. Their storage is used as it is; one that is
                not contiguous is copied, since its bytes do not lie in the order of its elements.
            writable: the body is to be written to, so that a copy would be of no use.

        Raises:
            LayoutError: a value cannot be streamed; the message names it and says what to do.
        """
        # NumPy turns a result without dimensions into a scalar; what was meant is an array.
        tensors = {
            name: np.asarray(value) if isinstance(value, np.generic) and not writable else value
            for name, value in tensors.items()
        }
        views = {
            name: memoryview(_flat_bytes(name, value, writable).data)
            for name, value in tensors.items()
        }
        layout = Layout.of(
            (name, code_of(value, name), tuple(value.shape)) for name, value in tensors.items()
        )
        return cls(layout, tensors, views)

    @classmethod
    def allocate(cls, layout: Layout, framework: Framework = "pytorch") -> MemoryBody:
        """New, uninitialised memory for a layout, which keeps the order of its tensors.

        Each tensor has storage of its own: in one block, a single tensor that a script still
        refers to would keep the whole model in memory.

        Raises:
            LayoutError: NumPy arrays are asked for and NumPy lacks one of the dtypes.
        """
        tensors = {spec.name: _empty(spec, framework) for spec in layout.tensors}
        views = {
            name: memoryview(_flat_bytes(name, value, writable=True).data)
            for name, value in tensors.items()
        }
        return cls(layout, tensors, views)

    def views(self, start: int, stop: int, scratch: Scratch | None = None) -> list[memoryview]:
        """The storage behind the bytes ``[start, stop)``, one view a tensor."""
        views = []
        index = bisect_right(self._starts, start) - 1
        while start < stop:
            piece = self._pieces[index]
            offset = start - self._starts[index]
            view = piece[offset : offset + stop - start]
            views.append(view)
            start += len(view)
            index += 1
        return views

    def commit(self, start: int, stop: int) -> None:
        """Nothing to do: the bytes were written where they belong."""


class BufferSource:
    """A body that lies in one buffer, such as a model that came as one message.

    Attributes:
        layout: what the bytes mean.
    """

    def __init__(self, layout: Layout, body: memoryview) -> None:
        self.layout = layout
        self._body = body

    def views(self, start: int, stop: int, scratch: Scratch | None = None) -> list[memoryview]:
        """The bytes ``[start, stop)``, in place."""
        return [self._body[start:stop]]


def _empty(spec: TensorSpec, framework: Framework) -> torch.Tensor | np.ndarray[Any, Any]:
    if framework == "numpy":
        return np.empty(spec.shape, numpy_dtype(spec.dtype, spec.name))
    import torch

    return torch.empty(spec.shape, dtype=torch_dtype(spec.dtype))


def _flat_bytes(
    name: str, value: torch.Tensor | np.ndarray[Any, Any], writable: bool
) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """The bytes of one tensor, as a flat array over its own storage if that is contiguous."""
    if isinstance(value, np.ndarray):
        code_of(value, name)  # refuses object arrays and the like before their bytes are touched
        if writable and not value.flags.writeable:
            raise LayoutError(
                f"array {name!r} is read-only, so it cannot be received into; "
                "copy it first: .copy()"
            )
        contiguous = bool(value.flags.c_contiguous)
        array = value if contiguous else np.ascontiguousarray(value)
        flat: np.ndarray[Any, np.dtype[np.uint8]] = array.reshape(-1).view(np.uint8)
    else:
        import torch

        if not isinstance(value, torch.Tensor):
            raise LayoutError(
                f"{name!r} is a {type(value).__name__}, not a tensor or array; "
                "send only tensors in params, and put other values in meta"
            )
        code_of(value, name)
        if value.layout is not torch.strided or value.device.type != "cpu":
            raise LayoutError(
                f"tensor {name!r} is {value.layout} on {value.device}; "
                "send it as a dense tensor on the CPU: .to_dense().cpu()"
            )
        contiguous = value.is_contiguous()
        # A lazily conjugated or negated tensor keeps other bits in its storage than it shows.
        dense = value.detach().resolve_conj().resolve_neg().contiguous().reshape(-1)
        flat = dense.view(torch.uint8).numpy() if dense.numel() else np.empty(0, np.uint8)
    if writable and not contiguous:
        raise LayoutError(
            f"tensor {name!r} is not contiguous, so it cannot be received into; "
            "make it so first: .contiguous()"
        )
    return flat
