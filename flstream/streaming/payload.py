"""A payload: any nested structure with tensors in it, as a small message and a byte range.

The tensors leave the structure and travel as every tensor does; the rest is one message of
:mod:`flstream.streaming.nodes`. Nothing in it is ever unpickled, or imported by its name.

After NVFlare's FOBS and its ``TensorDecomposer``; but here no tensor is serialised unless
streaming is off (:func:`pack_native`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import msgspec
import numpy as np

from flstream.errors import LayoutError, PayloadError
from flstream.model.dense import dense
from flstream.model.dtypes import BY_CODE, numpy_dtype
from flstream.model.memory import Framework
from flstream.streaming import nodes
from flstream.streaming.decomposers import Registry, default_registry
from flstream.streaming.packer import Packer
from flstream.transport.messages import UNREADABLE

if TYPE_CHECKING:
    import torch

    Tensor = torch.Tensor | np.ndarray[Any, Any]

RecordT = TypeVar("RecordT")
_message_decoder = msgspec.msgpack.Decoder(nodes.Message)
_native_decoder = msgspec.msgpack.Decoder(nodes.Native)


class Packed(NamedTuple):
    """A payload, ready to be sent.

    Attributes:
        message: everything but the tensors; at most ``nodes.MAX_MESSAGE_BYTES``.
        tensors: the tensors and arrays themselves, in the order of the walk. A name is the path to
            where the tensor was met first, such as ``payload["a"][3].optimizer``: a key of text in
            JSON's quotes, the number of an int key or an index, ``.name`` for a dataclass' field.
            Whatever the keys are, two tensors never get one name.
    """

    message: bytes
    tensors: dict[str, Tensor]


def pack(value: object, *, registry: Registry = default_registry) -> Packed:
    """Part a value into a message and tensors, which are not copied.

    It may hold None, bool, int, float, str, bytes, list, tuple, dict (with keys of str, or of int
    up to 64 bits), ``OrderedDict``, NumPy scalars and arrays, torch tensors, and registered types;
    each arrives as what it was. A tensor that is met twice travels once and is one on arrival; a
    container that is met twice arrives as two. Gradients do not travel, and a ``Parameter``
    arrives as a tensor.

    Raises:
        PayloadError: something cannot be sent, or there is too much of it for a small message; the
            error names the path to it and what to do.
    """
    packer = Packer(registry)
    packer.add(value)
    message = msgspec.msgpack.encode(nodes.Message(nodes.VERSION, packer.nodes))
    if len(message) > nodes.MAX_MESSAGE_BYTES:
        packer.refuse_size()
    return Packed(message, packer.tensors)


def unpack(
    message: bytes | bytearray | memoryview,
    tensors: Mapping[str, Tensor],
    *,
    registry: Registry = default_registry,
) -> Any:
    """Put a value together again.

    Args:
        message: as :func:`pack` made it, or a stranger.
        tensors: what arrived under the names of ``Packed.tensors``. A tensor becomes an array, and
            an array a tensor, if that is what was sent; only memory that cannot be written to is
            copied for it.
        registry: the types that may arrive.

    Raises:
        PayloadError: the message is malformed or too large, asks for a type or a tensor that is
            not there, leaves a tensor over, or holds what a type cannot be made of.
    """
    if len(message) > nodes.MAX_MESSAGE_BYTES:
        raise PayloadError(
            f"a payload's message takes {len(message)} bytes; {nodes.MAX_MESSAGE_BYTES} is most"
        )
    unpacker = _Unpacker(_decoded(_message_decoder, message).nodes, tensors, registry)
    value = unpacker.take()
    unpacker.expect_end()
    return value


def pack_native(value: object, *, registry: Registry = default_registry) -> bytes:
    """A value in one piece, for when streaming is off; takes the memory of two more models.

    Each tensor is serialised by the safetensors library, as ``native_decompose`` of NVFlare's
    ``TensorDecomposer`` does it.

    Raises:
        PayloadError: as :func:`pack`; or a tensor takes 4 GiB, which is more than one piece holds.
    """
    import safetensors.torch

    packed = pack(value, registry=registry)
    saved = {}
    for name, tensor in packed.tensors.items():
        saved[name] = safetensors.torch.save({"t": _contiguous(tensor)})
        if len(saved[name]) >= 2**32:
            raise PayloadError(f"{name} takes 4 GiB or more; stream it (chunk size above 0)")
    return msgspec.msgpack.encode(nodes.Native(packed.message, saved))


def unpack_native(
    data: bytes | bytearray | memoryview, *, registry: Registry = default_registry
) -> Any:
    """The value that :func:`pack_native` was given, after NVFlare's ``native_recompose``.

    Args:
        data: the piece. It bounds what is allocated, and whoever received it has bounded it.
        registry: the types that may arrive.

    Raises:
        PayloadError: as :func:`unpack`; or a tensor is not one of the safetensors library.
    """
    native = _decoded(_native_decoder, data)
    tensors = {name: _loaded(name, saved) for name, saved in native.tensors.items()}
    return unpack(native.message, tensors, registry=registry)


def _decoded(
    decoder: msgspec.msgpack.Decoder[RecordT], data: bytes | bytearray | memoryview
) -> RecordT:
    try:
        return decoder.decode(data)
    except UNREADABLE as error:
        raise PayloadError(f"a payload's message cannot be read: {error}") from error


def _contiguous(tensor: Tensor) -> torch.Tensor:
    if isinstance(tensor, np.ndarray):
        return _to_torch(tensor)
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _to_torch(array: np.ndarray[Any, Any]) -> torch.Tensor:
    import torch

    # Torch has neither negative strides nor memory that cannot be written to.
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))


def _loaded(name: str, saved: bytes) -> torch.Tensor:
    import safetensors.torch

    try:
        tensors = safetensors.torch.load(saved)
    except Exception as error:  # the library lets torch's own errors through, of any type
        raise PayloadError(f"tensor {name!r} of a payload cannot be loaded: {error}") from error
    if list(tensors) != ["t"]:
        raise PayloadError(f"tensor {name!r} of a payload is not one tensor named 't'")
    return tensors["t"]


def _restored(name: str, value: Tensor, framework: Framework) -> Tensor:
    """The tensor as the framework's own, over the same memory if that can be written to."""
    code, array = dense(name, value)
    if framework == "numpy":
        numpy_dtype(code, name)  # refuses what NumPy does not have
        return array
    return _to_torch(value) if isinstance(value, np.ndarray) else value


class _Unpacker:
    """Walks the nodes of a message as they were written, and builds what they describe."""

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
        """Refuse what was sent and has no place in the value."""
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
            self._int_keys += isinstance(key, int)
            if self._int_keys > nodes.MAX_INT_KEYS:
                self._refuse(f"is an int key too many; {nodes.MAX_INT_KEYS} is most")
            built[key] = self.take(depth + 1)
        return built

    def _recomposed(self, name: str, depth: int) -> object:
        decomposer = self._registry.named(name)
        if decomposer is None:
            self._refuse(f"has the type {name!r}, which is not registered here; register it")
        plain = self.take(depth + 1)
        try:
            return decomposer.recompose(plain)
        except Exception as error:  # a decomposer is anybody's code, and its input a stranger's
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
