"""A payload: any nested structure with tensors in it, as a small message and tensors.

The tensors are taken out of the structure and streamed as all tensors are; the rest is one message
of :mod:`flstream.streaming.nodes`. Nothing in it is unpickled, or imported by its name.

There are two ways to send one, and the value that arrives is the same bit by bit:

- **Streamed**, as :func:`pack` splits it. ``add_payload`` and ``download_payload`` of
  :mod:`flstream.streaming.api` need one ref for it: the message is one more tensor of the body. The
  bytes come from the tensors' own storage, and go to where the receiver wants them.
- **In one piece**, as :func:`pack_native` makes it, for when streaming is off (chunk size 0). Each
  tensor is serialised by the safetensors library, at the price of two more models in memory on
  either side. ``add_payload`` with ``native=True`` offers such a piece, which ``download_payload``
  recognises. Without a ref, the piece can be sent as any other bytes.

A receiver's own chunk size of 0 has another meaning: the body, of either kind, comes in one frame.

After NVFlare's FOBS and its ``TensorDecomposer``, with its ``native_decompose`` for the piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from flstream.errors import PayloadError
from flstream.model.dtypes import code_of, torch_dtype
from flstream.streaming import nodes
from flstream.streaming.decomposers import Registry, default_registry
from flstream.streaming.packer import Packer
from flstream.streaming.unpacker import Unpacker, to_torch
from flstream.transport.messages import UNREADABLE

if TYPE_CHECKING:
    import torch

    Tensor = torch.Tensor | np.ndarray[Any, Any]

RecordT = TypeVar("RecordT")
# Types that the library cannot save, or not load. A tensor of one is saved as the bytes of its
# elements, under the type's name.
_AS_BYTES = {"C128", "F8_E8M0"}
_message_decoder = msgspec.msgpack.Decoder(nodes.Message)
_native_decoder = msgspec.msgpack.Decoder(nodes.Native)


class Packed(NamedTuple):
    """A payload, ready to be sent.

    Attributes:
        message: Everything but the tensors; at most ``nodes.MAX_MESSAGE_BYTES``.
        tensors: Tensors and arrays themselves, in the order of the walk. A name is the path to the
        tensor's first place, such as ``payload["a"][3].optimizer``: a key of text in JSON's quotes,
        the number of an int key or an index, ``.name`` for a dataclass' field. Whatever the keys
        are, no two tensors have the same name.
    """

    message: bytes
    tensors: dict[str, Tensor]


def pack(value: object, *, registry: Registry = default_registry) -> Packed:
    """Split a value into a message and tensors, which are not copied.

    It may hold None, bool, int, float, complex, str, bytes, list, tuple, set, frozenset, dict (with
    keys of str, or of int up to 64 bits), ``OrderedDict``, ``torch.Size``, NumPy scalars and
    arrays, torch tensors, and registered types, such as enums, dataclasses and namedtuples; each
    arrives as the same type. Elements of a set must be hashable when they arrive, too, and at most
    64 of them may have one hash. A tensor that occurs twice is sent once and is one object on
    arrival; a container that occurs twice arrives as two. Gradients are not sent, and a
    ``Parameter`` arrives as a tensor.

    Raises:
        PayloadError: A part cannot be sent, or there is too much for a small message; the error
            names
        the path to it and what to do.
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
    """Rebuild a value.

    Args:
        message: Message of :func:`pack`, which is not trusted.
        tensors: Tensors and arrays that arrived, by the names of ``Packed.tensors``. A tensor
            becomes
        an array, and an array a tensor, if that is what was sent; only read-only memory is copied
        for it.
        registry: Types that may arrive.

    Raises:
        PayloadError: The message is malformed or too large, refers to a missing type or tensor,
            does
        not refer to a tensor that is there, or has content that a type cannot be made of.
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
    """Serialise a value in one piece, for when streaming is off.

    Each tensor is serialised by the safetensors library, as ``native_decompose`` of NVFlare's
    ``TensorDecomposer`` does it. That takes the memory of two more models.

    Raises:
        PayloadError: See :func:`pack`; or a tensor takes 4 GiB, which is more than one piece holds.
    """
    import safetensors.torch

    packed = pack(value, registry=registry)
    saved = {}
    for name, tensor in packed.tensors.items():
        saved[name] = safetensors.torch.save(_named(_contiguous(tensor)))
        if len(saved[name]) >= 2**32:
            raise PayloadError(f"{name} takes 4 GiB or more; stream it (chunk size above 0)")
    return msgspec.msgpack.encode(nodes.Native(packed.message, saved))


def unpack_native(
    data: bytes | bytearray | memoryview, *, registry: Registry = default_registry
) -> Any:
    """Rebuild the value that :func:`pack_native` serialised, after NVFlare's ``native_recompose``.

    Args:
        data: The piece. Its length bounds what is allocated.
        registry: Types that may arrive.

    Raises:
        PayloadError: See :func:`unpack`; or a tensor is not one of the safetensors library.
    """
    packed = load_native(data)
    return unpack(packed.message, packed.tensors, registry=registry)


def load_native(data: bytes | bytearray | memoryview) -> Packed:
    """Return the message and the tensors of a piece, each in memory of its own.

    Raises:
        PayloadError: The piece cannot be read, or a tensor is not one of the safetensors library.
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


def _named(tensor: torch.Tensor) -> dict[str, torch.Tensor]:
    import torch

    code = code_of(tensor, "t")
    return {code: tensor.unsqueeze(-1).view(torch.uint8)} if code in _AS_BYTES else {"t": tensor}


def _loaded(name: str, saved: bytes) -> torch.Tensor:
    import safetensors.torch

    try:
        # Bytes of a safetensors file: a header and numbers. Nothing in them is unpickled or run.
        tensors = safetensors.torch.load(saved)
        if tensors.keys() <= _AS_BYTES:
            [(code, elements)] = tensors.items()
            return elements.view(torch_dtype(code)).squeeze(-1)
    except Exception as error:  # the library lets torch's own errors through, of any type
        raise PayloadError(f"tensor {name!r} of a payload cannot be loaded: {error}") from error
    if list(tensors) != ["t"]:
        raise PayloadError(f"tensor {name!r} of a payload is not one tensor named 't'")
    return tensors["t"]
