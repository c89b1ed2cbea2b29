"""Error feedback: the rest that a codec leaves out is added to the next update.

Seide et al. 2014, "1-bit stochastic gradient descent and its application to data-parallel
distributed training of speech DNNs"; Stich et al. 2018, "Sparsified SGD with memory",
arXiv:1809.07599. So nothing is lost: all that was decoded, and the last residual, sum up to all
updates, but for rounding.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flstream.codecs.block_codec import BlockPlace
from flstream.codecs.lossy import LossyCodec, read_numbers
from flstream.errors import CodecError
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.copy import copy
from flstream.model.dtypes import LARGEST, Numbers, first_not_finite, loaded, quietly, stored
from flstream.model.layout import Layout
from flstream.model.source import Scratch, Source


def encode_with_feedback(
    update: Source,
    codec: LossyCodec,
    path: Path,
    *,
    before: Source | None,
    after: Path,
    base: Source | None = None,
) -> FileSource:
    """Encode an update and its residual into a file, and write the next residual.

    The update is read once, from front to back, a block at a time. Its encoded form is a file, so
    that it can be fetched again while the site's residual is already the next one.

    Args:
        update: Differences from the model that the site was sent; or new weights, if that model is
            the base.
        codec: The codec.
        path: File of the encoded form, which is replaced.
        before: The site's last residual, with random access; None for none. It is not changed.
        after: File of the next residual, which is replaced; another than that of ``before``.
        base: Model to take the differences from, with random access: see :meth:`LossyCodec.encode`.

    Returns:
        The encoded form.

    Raises:
        CodecError: The codec cannot encode a number, or the residual is that of another model.
        CheckpointError: A file cannot be written.
    """
    _, coded = codec.coded(update.layout)
    layout = Layout.of(
        (name, "F64" if tensor.spec.dtype == "F64" else "F32", tensor.spec.shape)
        for name, tensor in coded.items()
    )
    if before is not None and (flaw := layout.difference(before.layout)):
        raise CodecError(
            f"what the codec {codec.name} has left out before is of other tensors than this "
            f"update: {flaw}; send the same tensors each time, or take a codec that leaves out "
            "nothing"
        )
    scratch = Scratch()

    @quietly
    def block(numbers: Numbers, place: BlockPlace) -> bytes:
        if before is not None:  # what is infinite then, the codec refuses
            numbers = numbers + read_numbers(before, place, scratch)
        held = numbers
        if place.dtype not in ("F32", "F64"):  # a sum may be beyond their range
            most = LARGEST[place.dtype]
            held = np.where(np.isinf(numbers), numbers, np.clip(numbers, -most, most))
        encoded = codec.encode_block(held, place)
        decoded = codec.decode_block(memoryview(encoded), place)
        residual = numbers - loaded(place.dtype, memoryview(stored(place.dtype, decoded)))
        wrong = first_not_finite(residual)
        if wrong is not None:  # it would be in all residuals from now on
            raise place.refused(wrong, numbers[wrong], f"{codec.name} with error feedback")
        start = layout.by_name[place.tensor].start + place.offset * residual.itemsize
        residuals.write(start, residual.view(np.uint8).data)
        return encoded

    encoded = codec.encode(update, base, block)
    with (
        FileSink(path, encoded.layout, durable=False) as sink,
        FileSink(after, layout, durable=False) as residuals,
    ):
        copy(encoded, sink)
        residuals.finish()
        return sink.finish()
