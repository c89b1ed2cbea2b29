"""Codecs with a loss, which encode the numbers of a tensor a block at a time.

A block is always the same piece of a tensor, whatever the chunks in which a body is read or sent.
So the loss is the same, too. An encoded block has a length that is known beforehand and needs no
other to be decoded: any range of an encoded body can be made from the blocks in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from flstream.errors import CodecError, FlstreamError
from flstream.model.dtypes import Numbers

BLOCK = 65_536
"""Numbers of a block; the last one of a tensor may have fewer. 16 bits count its numbers, and what
is computed from it (256 KiB in float32) stays in the L2 cache."""


@dataclass(frozen=True)
class BlockPlace:
    """The place of a block.

    Attributes:
        tensor: Name of the tensor.
        dtype: Type of its elements as a safetensors code, such as ``BF16``.
        offset: Place of the block's first number in the tensor, counted in C order.
        count: How many numbers it has, at least 1.
    """

    tensor: str
    dtype: str
    offset: int
    count: int

    def refused(self, index: int, value: object, codec: str) -> CodecError:
        """Return the error for a number that a codec cannot encode."""
        return CodecError(
            f"tensor {self.tensor!r} has {value} as element {self.offset + index}, which the codec "
            f"{codec} cannot encode; mend the number, or name the tensor in require_lossless"
        )

    def damaged(self, flaw: str, codec: str) -> CodecError:
        """Return the error for bytes that a codec has not encoded."""
        last = self.offset + self.count - 1
        return CodecError(
            f"the encoded elements {self.offset} to {last} of tensor {self.tensor!r} have {flaw}, "
            f"which the codec {codec} never writes"
        )


class BlockCodec(Protocol):
    """A codec of blocks, a built-in or the user's own.

    Its functions depend on their arguments alone, so that they give the same bits whenever and
    wherever they are called. One with an attribute ``for_updates`` that is true is for differences
    from a model, and what it leaves out of one is added to the next (error feedback).
    """

    def nbytes(self, dtype: str, count: int) -> int:
        """Return the length in bytes of an encoded block.

        Args:
            dtype: Type of the tensor's elements.
            count: Numbers of the block.
        """
        ...

    def encode(self, numbers: Numbers, place: BlockPlace) -> bytes:
        """Encode a block.

        Args:
            numbers: Its numbers, read-only: float64 of a tensor of that type, else float32.
            place: Place of the block.

        Raises:
            CodecError: It cannot encode one of them.
        """
        ...

    def decode(self, data: memoryview, place: BlockPlace) -> Numbers:
        """Return an encoded block's numbers, which are rounded to the tensor's type after.

        Args:
            data: Bytes of the length that :meth:`nbytes` gives, from a peer that may be anyone.
            place: Place of the block.

        Raises:
            CodecError: :meth:`encode` gives no such bytes.
        """
        ...


@contextmanager
def codec_code(what: str, where: str) -> Iterator[None]:
    """Raise a CodecError for an error of a codec's function, with name and place."""
    try:
        yield
    except FlstreamError:
        raise
    except (Exception, SystemExit) as error:
        raise CodecError(
            f"{what} raised {type(error).__name__} {where}: {error}; mend the codec"
        ) from error
