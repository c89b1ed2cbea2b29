"""The walk through the nodes of a message that arrived, which rebuilds the value."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from flstream.errors import LayoutError, PayloadError
from flstream.model.dense import dense
from flstream.model.dtypes import BY_CODE, numpy_dtype
from flstream.model.memory import Framework
from flstream.streaming import nodes
from flstream.streaming.decomposers import Registry, predictable

if TYPE_CHECKING:
    import torch

    Tensor = torch.Tensor | np.ndarray[Any, Any]


class Unpacker:
    """Rebuilds a value from the nodes of a message, in their order."""

    def __init__(
        self, message: list[nodes.Node], tensors: Mapping[str, Tensor], registry: Registry
    ) -> None:
        self._nodes = message
        self._at = 0
        self._tensors = tensors
        self._restored: dict[tuple[str, Framework], Tensor] = {}
        self._registry = registry
        self._int_keys = 0

    def take(self, depth: int = 0) -> Any:
        """Build the next value, which has ``depth`` others around it."""
        node = self._next()
        match node:
            case nodes.Container() | nodes.Decomposed() if depth == nodes.MAX_DEPTH:
                self._refuse(f"is nested more than {nodes.MAX_DEPTH} deep")
            case nodes.Container(kind="list", size=size):
                return [self.take(depth + 1) for _ in range(size)]
            case nodes.Container(kind="tuple", size=size):
                return tuple([self.take(depth + 1) for _ in range(size)])
            case nodes.Container(kind=kind, size=size):
                return self._dict(OrderedDict() if kind == "odict" else {}, size, depth)
            case nodes.Decomposed(name=name):
                return self._recomposed(name, depth)
            case nodes.TensorRef(name=name, framework=framework):
                return self._tensor(name, framework)
            case nodes.Scalar(dtype=code, data=data):
                return self._scalar(code, data)
            case nodes.BigInt(digits=digits):
                return int.from_bytes(digits, "little", signed=True)
            case nodes.Blob(data=data):
                return data
        return node

    def expect_end(self) -> None:
        """Refuse nodes and tensors that have no place in the value."""
        if self._at < len(self._nodes):
            self._refuse("is the end of the value, yet others follow")
        over = self._tensors.keys() - {name for name, _ in self._restored}
        if over:
            raise PayloadError(
                f"{len(over)} tensors came that the payload's message does not mention, "
                f"such as {min(over)!r}; send the message together with its own tensors"
            )

    def _next(self) -> nodes.Node:
        if self._at == len(self._nodes):
            self._refuse("is the last, but the value goes on")
        self._at += 1
        return self._nodes[self._at - 1]

    def _dict(self, built: dict[str | int, Any], size: int, depth: int) -> dict[str | int, Any]:
        for _ in range(size):
            key = self._next()
            if not isinstance(key, str | int) or isinstance(key, bool):
                self._refuse("is no key; one is a str or an int of 64 bits")
            if key in built:
                self._refuse("is a key that its dict has already")
            self._count_keys(isinstance(key, int))
            built[key] = self.take(depth + 1)
        return built

    def _count_keys(self, count: int) -> None:
        self._int_keys += count
        if self._int_keys > nodes.MAX_INT_KEYS:
            self._refuse(
                f"is an int key too many, or an element of a set; {nodes.MAX_INT_KEYS} is most"
            )

    def _recomposed(self, name: str, depth: int) -> object:
        decomposer = self._registry.named(name)
        if decomposer is None:
            self._refuse(f"has the type {name!r}, which is not registered here; register it")
        plain = self.take(depth + 1)
        if decomposer.supported_type in (set, frozenset) and isinstance(plain, list):
            self._count_keys(predictable(plain))
        try:
            return decomposer.recompose(plain)
        except Exception as error:  # a decomposer is the user's code, and its input not trusted
            raise PayloadError(f"a {name} of a payload cannot be made: {error}") from error

    def _tensor(self, name: str, framework: Framework) -> Tensor:
        value = self._restored.get((name, framework))
        if value is None:
            if name not in self._tensors:
                self._refuse(f"is the tensor {name!r}, which did not arrive")
            try:
                value = _restored(name, self._tensors[name], framework)
            except LayoutError as error:
                raise PayloadError(
                    f"a tensor of a payload is not what was sent: {error}"
                ) from error
            self._restored[name, framework] = value
        return value

    def _scalar(self, code: str, data: bytes) -> np.generic[Any]:
        dtype = BY_CODE.get(code)
        if dtype is None or dtype.numpy_name is None or len(data) != dtype.itemsize:
            self._refuse(f"is no NumPy scalar: {len(data)} bytes of dtype {code!r}")
        scalar: np.generic[Any] = np.frombuffer(data, dtype.numpy_name)[0]
        return scalar

    def _refuse(self, flaw: str) -> NoReturn:
        raise PayloadError(f"a payload's message is malformed: value {self._at} {flaw}")


def _restored(name: str, value: Tensor, framework: Framework) -> Tensor:
    """Return the tensor as the framework's own, over the same memory if that is writable."""
    if framework == "numpy":
        found = dense(name, value)
        numpy_dtype(found.code, name)  # refuses types that NumPy lacks
        return found.array
    return to_torch(value) if isinstance(value, np.ndarray) else value


def to_torch(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """Return the array as a tensor, over the same memory if that is writable."""
    import torch

    # Torch supports neither negative strides nor read-only memory.
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))
