"""A payload as a body, so that one ref stands for all of it.

Streamed, the body is the payload's tensors under their paths and, as one more tensor, the bytes of
its ``message``. In one piece, it is a single tensor of bytes, the ``piece``. Paths begin with
``payload``, so that no tensor has one of these names.

The message is in the body, not beside it. So it is cut into chunks, checked, repaired and written
to a file as all tensors are, and only the two ends need to know of payloads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flstream.errors import LayoutError, PayloadError
from flstream.model.copy import copy
from flstream.model.device import viewed
from flstream.model.layout import MAX_HEADER_BYTES, Layout, TensorInfo
from flstream.model.memory import Framework, MemoryBody, Params
from flstream.model.source import Source
from flstream.streaming import nodes
from flstream.streaming.decomposers import Registry
from flstream.streaming.payload import load_native, pack, pack_native, unpack

_MESSAGE = "message"
_PIECE = "piece"
# Bytes of the answer to an open beside the header: a receiver's limit is for both.
_ANSWER_BYTES = 64
# Characters of a name that is too long for a header that its error shows.
_SHOWN_CHARACTERS = 200


def streamed_body(value: object, registry: Registry) -> Source:
    """Make the body of a payload's tensors, over their own storage, and of its message.

    Raises:
        PayloadError: A part cannot be sent, or there is too much for a message or for a header; the
        error names the path.
    """
    packed = pack(value, registry=registry)
    message = np.frombuffer(packed.message, np.uint8)
    body = MemoryBody.of({**packed.tensors, _MESSAGE: message})
    size = len(body.layout.plain_header) + _ANSWER_BYTES
    if size > MAX_HEADER_BYTES:
        longest = max(packed.tensors, key=len)
        raise PayloadError(
            f"the names and shapes of {len(packed.tensors)} tensors take {size} bytes, and "
            f"{MAX_HEADER_BYTES} is most; the longest name is {longest[:_SHOWN_CHARACTERS]}: "
            "shorten the keys, or stack the tensors"
        )
    return body


def native_body(value: object, registry: Registry) -> Source:
    """Make the body of a payload in one piece.

    Raises:
        PayloadError: See :func:`~flstream.streaming.payload.pack_native`.
    """
    return MemoryBody.of({_PIECE: np.frombuffer(pack_native(value, registry=registry), np.uint8)})


class PayloadSink:
    """Takes the bytes of a payload, and rebuilds the value when the last of them has arrived.

    So a value that cannot be rebuilt is a failed download, of which the sender is informed.

    Args:
        layout: Layout of the sender.
        peer: Name of the sender, for messages.
        into: Tensors and arrays that receive the bytes, by the paths of those that are sent.
        framework: Kind of the tensors that are allocated for the others.
        registry: Types that may arrive.

    Attributes:
        layout: Layout of the body.
        tensors: Tensors of the payload by path: allocated at first, and filled when all has
            arrived.
        In one piece, there are none before its end.
        in_one_piece: Whether the payload comes in one piece.
        value: The payload, once every byte has arrived.

    Raises:
        PayloadError: The offer is not a payload.
        LayoutError: It does not fit ``into``, or there is not enough memory for it.
    """

    random_access = True
    resumed = False

    def __init__(
        self, layout: Layout, peer: str, into: Params, framework: Framework, registry: Registry
    ) -> None:
        self.layout = layout
        self.value: Any = None
        self._peer = peer
        self._into = into
        self._registry = registry
        self._held = _held(layout, peer)
        self.in_one_piece = self._held.name == _PIECE
        if self.in_one_piece:
            self._body = MemoryBody.allocate(layout, "numpy")
            self.tensors = {}
        else:
            self._body = _memory(layout, into, framework, peer)
            self.tensors = dict(self._body.tensors)
            del self.tensors[_MESSAGE]
        self._left = layout.nbytes

    def written(self, start: int, stop: int) -> list[memoryview]:
        """Return the bytes ``[start, stop)``, in place."""
        return self._body.views(start, stop)

    def views(self, start: int, stop: int) -> list[memoryview]:
        """Return the memory of the bytes ``[start, stop)``."""
        return self._body.views(start, stop)

    def commit(self, start: int, stop: int) -> None:
        """Count the bytes, and rebuild the value if they are the last ones.

        Raises:
            PayloadError: The message is malformed, or does not match the tensors.
            LayoutError: What came in one piece does not fit ``into``.
        """
        self._left -= stop - start
        if self._left:
            return
        (content,) = self._body.views(self._held.start, self._held.stop)
        if self.in_one_piece:
            content = self._take_apart(content)
        self.value = unpack(content, self.tensors, registry=self._registry)

    def _take_apart(self, piece: memoryview) -> memoryview:
        packed = load_native(piece)
        self.tensors.update(packed.tensors)
        if self._into:
            known = {name: packed.tensors[name] for name in self._into if name in packed.tensors}
            loaded = MemoryBody.of(known)
            memory = _memory(loaded.layout, self._into, "pytorch", self._peer)
            copy(loaded, memory)
            self.tensors.update(memory.tensors)
        return memoryview(packed.message)


def _held(layout: Layout, peer: str) -> TensorInfo:
    """Return the tensor that has the message in a body, or the piece that is all of it."""
    spec = layout.by_name.get(_MESSAGE) or layout.by_name.get(_PIECE)
    if spec is None or (spec.dtype, len(spec.shape)) != ("U8", 1) or not spec.nbytes:
        raise PayloadError(
            f"what {peer} offers is no payload: it lacks the bytes of a message; "
            "download it as tensors"
        )
    if spec.name == _MESSAGE and spec.nbytes > nodes.MAX_MESSAGE_BYTES:
        raise PayloadError(
            f"the message of the payload that {peer} offers takes {spec.nbytes} bytes; "
            f"{nodes.MAX_MESSAGE_BYTES} is most"
        )
    if spec.name == _PIECE and (len(layout.tensors) > 1 or layout.aliases):
        raise PayloadError(f"what {peer} offers is no payload: there are tensors beside its piece")
    return spec


def _memory(layout: Layout, into: Params, framework: Framework, peer: str) -> MemoryBody:
    """Return memory for a layout: ``into`` where it has a tensor of that name, else new."""
    given = MemoryBody.over(into)
    aliases = {
        alias: name for alias, name in layout.aliases.items() if alias in into and name in into
    }
    wanted = Layout.of(
        ((spec.name, spec.dtype, spec.shape) for spec in layout.tensors if spec.name in into),
        aliases,
    )
    difference = wanted.difference(given.layout)
    if difference:
        raise LayoutError(f"the payload that {peer} offers does not fit: {difference}")
    others = Layout.of(
        (spec.name, spec.dtype, spec.shape) for spec in layout.tensors if spec.name not in into
    )
    tensors = {**MemoryBody.allocate(others, framework).tensors, **given.tensors}
    for alias, name in layout.aliases.items():
        tensors.setdefault(alias, tensors[name])
    pieces = {
        spec.name: viewed(spec.name, tensors[spec.name], writable=True).piece()
        for spec in layout.tensors
    }
    return MemoryBody(layout, tensors, pieces)
