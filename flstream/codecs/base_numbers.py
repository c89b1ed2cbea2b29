"""The numbers of a base, from which an update is encoded as a difference."""

from __future__ import annotations

from flstream.codecs.block_codec import BlockPlace
from flstream.codecs.coded_layout import CodedLayout
from flstream.codecs.floats import Numbers, load
from flstream.codecs.read_ahead import joined
from flstream.errors import CodecError
from flstream.model.body import Scratch, Source
from flstream.model.dtypes import BY_CODE


class BaseNumbers:
    """Numbers of a model that the sender and the receiver of an update both have.

    Args:
        base: The model, with random access. It may have tensors that the update lacks.
        coded: Layouts of the update and of its encoded form.

    Raises:
        CodecError: It lacks a tensor that is encoded; the message names it.
    """

    def __init__(self, base: Source, coded: CodedLayout) -> None:
        self._base = base
        self._scratch = Scratch()
        for name, tensor in coded.coded.items():
            there = base.layout.by_name.get(name)
            if there is None or there[1:3] != tensor.spec[1:3]:
                kind = f"{tensor.spec.dtype} and shape {list(tensor.spec.shape)}"
                raise CodecError(
                    f"tensor {name!r} has no tensor of its name with dtype {kind} in the base, so "
                    "its change cannot be encoded; name it in require_lossless"
                )

    def block(self, place: BlockPlace) -> Numbers:
        """Return the numbers of a block, valid until the next call."""
        itemsize = BY_CODE[place.dtype].itemsize
        start = self._base.layout.by_name[place.tensor].start + place.offset * itemsize
        data = joined(self._base.views(start, start + place.count * itemsize, self._scratch))
        return load(place.dtype, data)
