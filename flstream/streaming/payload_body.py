"""A payload as a body, so that one ref names all of it.

Streamed, the body is the payload's tensors under their paths and, as one more tensor, the bytes of
its ``message``. In one piece, it is a single tensor of bytes, the ``piece``. The path of a tensor
begins with ``payload``, so that none has one of these names.

The message lies in the body, not beside it: so it is cut into chunks, checked, fetched again where
it broke and written to a file as everything else is, and nobody but the two ends knows of payloads.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from flstream.errors import LayoutError, PayloadError
from flstream.model.body import Source
from flstream.model.dense import dense
from flstream.model.layout import MAX_HEADER_BYTES, Layout, TensorSpec
from flstream.model.memory import Framework, MemoryBody, Params
from flstream.model.staging import piece_of
from flstream.streaming import nodes
from flstream.streaming.decomposers import Registry
from flstream.streaming.payload import load_native, pack, pack_native, unpack

_MESSAGE = "message"
_PIECE = "piece"
# What the answer to an open takes beside the header: a receiver's limit is for both.
_ANSWER_BYTES = 64
# How much of a name that is too long for a header is told.
_TOLD_CHARACTERS = 200
# How much of a tensor that came in a piece is copied at a time.
_COPY_STEP = 4 << 20


def streamed_body(value: object, registry: Registry) -> Source:
    """The body of a payload's tensors, over their own storage, and of its message.

    Raises:
        PayloadError: something cannot be sent, or there is too much of it for a message or for a
            header; the error names the path.
    """
    packed = pack(value, registry=registry)
    message = np.frombuffer(packed.message, np.uint8)
    body = MemoryBody.of({**packed.tensors, _MESSAGE: message})
    size = len(body.layout.plain_header) + _ANSWER_BYTES
    if size > MAX_HEADER_BYTES:
        longest = max(packed.tensors, key=len)
        raise PayloadError(
            f"the names and shapes of {len(packed.tensors)} tensors take {size} bytes, and "
            f"{MAX_HEADER_BYTES} is most; the longest name is {longest[:_TOLD_CHARACTERS]}: "
            "shorten the keys, or stack the tensors"
        )
    return body


def native_body(value: object, registry: Registry) -> Source:
    """The body of a payload in one piece.

    Raises:
        PayloadError: as :func:`~flstream.streaming.payload.pack_native`.
    """
    return MemoryBody.of({_PIECE: np.frombuffer(pack_native(value, registry=registry), np.uint8)})


class PayloadSink:
    """Takes the bytes of a payload, and puts the value together with the last of them.

    So a value that cannot be put together is a download that failed, of which the sender hears.

    Args:
        layout: as the sender told it.
        peer: who is the sender, for messages.
        into: tensors and arrays that are to receive the bytes, by the paths of those that are sent.
        framework: what allocates the others.
        registry: the types that may arrive.

    Attributes:
        layout: of the body.
        tensors: those of the payload, by path: without their bytes at first, and none before its
            end if it comes in one piece.
        in_one_piece: whether it does.
        value: the payload, once every byte is there.

    Raises:
        PayloadError: what is offered is no payload.
        LayoutError: it does not fit ``into``, or there is no memory for it.
    """

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

    def views(self, start: int, stop: int) -> list[memoryview]:
        """Where the bytes ``[start, stop)`` belong."""
        return self._body.views(start, stop)

    def commit(self, start: int, stop: int) -> None:
        """Note that they are there, and put the value together if they are the last.

        Raises:
            PayloadError: the message is malformed, or does not go with the tensors.
            LayoutError: what came in one piece does not fit ``into``.
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
            for start, stop in loaded.layout.ranges(_COPY_STEP):
                _copy(loaded.views(start, stop), memory.views(start, stop))
            self.tensors.update(memory.tensors)
        return memoryview(packed.message)


def _held(layout: Layout, peer: str) -> TensorSpec:
    """The message in a body, or the piece that is all of it."""
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
    """Memory for a layout: ``into`` where it has a tensor of that name, and new elsewhere."""
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
        spec.name: piece_of(dense(spec.name, tensors[spec.name], writable=True).array)
        for spec in layout.tensors
    }
    return MemoryBody(layout, tensors, pieces)


def _copy(source: list[memoryview], sink: list[memoryview]) -> None:
    # Both have one view a tensor, and their layouts are the same.
    for here, there in zip(source, sink, strict=True):
        there[:] = here
