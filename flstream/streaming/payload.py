"""A payload: any nested structure with tensors in it, as a small message and a byte range.

The tensors leave the structure and travel as every tensor does; the rest is one message of
:mod:`flstream.streaming.nodes`. Nothing in it is ever unpickled, or imported by its name.

There are two ways to send one, and the value that arrives is the same bit by bit:

- **Streamed**, as :func:`pack` parts it. ``add_payload`` and ``download_payload`` of
  :mod:`flstream.streaming.api` need one ref for it: the message is one more tensor of the body. The
  bytes come from the tensors' own storage, and go to where the receiver wants them.
- **In one piece**, as :func:`pack_native` makes it, for when streaming is off (chunk size 0). Each
  tensor is serialised by the safetensors library, at the price of two more models in memory on
  either side. ``add_payload`` with ``native=True`` offers such a piece, which ``download_payload``
  tells from the other; whoever has no ref sends it as he sends any bytes.

What a receiver's own chunk size of 0 means is another thing: that the body, whichever it is, comes
in one frame.

After NVFlare's FOBS and its ``TensorDecomposer``, with its ``native_decompose`` for the piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from flstream.errors import PayloadError
from flstream.streaming import nodes
from flstream.streaming.decomposers import Registry, default_registry
from flstream.streaming.packer import Packer
from flstream.streaming.unpacker import Unpacker, to_torch
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
    unpacker = Unpacker(_decoded(_message_decoder, message).nodes, tensors, registry)
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
    packed = load_native(data)
    return unpack(packed.message, packed.tensors, registry=registry)


def load_native(data: bytes | bytearray | memoryview) -> Packed:
    """The message and the tensors that a piece holds, each in memory of its own.

    Raises:
        PayloadError: the piece cannot be read, or a tensor is not one of the safetensors library.
    """
    native = _decoded(_native_decoder, data)
    loaded: dict[str, Tensor] = {
        name: _loaded(name, saved) for name, saved in native.tensors.items()
    }
    return Packed(native.message, loaded)


def _decoded(
    decoder: msgspec.msgpack.Decoder[RecordT], data: bytes | bytearray | memoryview
) -> RecordT:
    try:
        return decoder.decode(data)
    except UNREADABLE as error:
        raise PayloadError(f"a payload's message cannot be read: {error}") from error


def _contiguous(tensor: Tensor) -> torch.Tensor:
    if isinstance(tensor, np.ndarray):
        return to_torch(tensor)
    return tensor.detach().resolve_conj().resolve_neg().contiguous()


def _loaded(name: str, saved: bytes) -> torch.Tensor:
    import safetensors.torch

    try:
        # Bytes of a safetensors file: a header and numbers. Nothing in them is unpickled or run.
        tensors = safetensors.torch.load(saved)
    except Exception as error:  # the library lets torch's own errors through, of any type
        raise PayloadError(f"tensor {name!r} of a payload cannot be loaded: {error}") from error
    if list(tensors) != ["t"]:
        raise PayloadError(f"tensor {name!r} of a payload is not one tensor named 't'")
    return tensors["t"]
