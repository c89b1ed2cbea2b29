"""Error feedback: what a codec leaves out of an update is added to the site's next one.

Seide et al. 2014, "1-bit stochastic gradient descent and its application to data-parallel
distributed training of speech DNNs"; Stich et al. 2018, "Sparsified SGD with memory",
arXiv:1809.07599. So nothing is lost: all that was decoded, and the last residual, sum up to all
updates, but for rounding.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flstream.codecs.blocks import Blockwise
from flstream.codecs.lossy import CodedTensors, LossyCodec, block_bytes, differences, read_numbers
from flstream.errors import CodecError
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.copy import copy
from flstream.model.dtypes import (
    LARGEST,
    Numbers,
    first_not_finite,
    loaded,
    number_type,
    quietly,
    stored,
)
from flstream.model.header import TensorInfo
from flstream.model.layout import Layout
from flstream.model.source import Scratch, Source


def residual_layout(coded: CodedTensors) -> Layout:
    """Return the layout of a residual: float32 for each encoded tensor, or float64.

    Args:
        coded: The tensors of an update that are encoded.
    """
    return Layout.of(
        (name, "F64" if tensor.spec.dtype == "F64" else "F32", tensor.spec.shape)
        for name, tensor in coded.items()
    )


def encode_with_feedback(
    update: Source,
    codec: LossyCodec,
    path: Path,
    *,
    before: Source | None,
    after: Path,
    base: Source | None = None,
) -> FileSource:
    """Encode an update and the residual before it into a file, and write the next residual.

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
    encoded, coded = codec.coded(update.layout)
    layout = residual_layout(coded)
    numbers_at = differences(update, base, coded)
    if before is not None and (flaw := layout.difference(before.layout)):
        raise CodecError(
            f"what the codec {codec.name} has left out before is of other tensors than this "
            f"update: {flaw}; send the same tensors each time, or take a codec that leaves out "
            "nothing"
        )
    scratch = Scratch()
    with (
        FileSink(path, encoded, durable=False) as sink,
        FileSink(after, layout, durable=False) as residuals,
    ):

        @quietly
        def fill(spec: TensorInfo, index: int, out: memoryview) -> None:
            place = coded[spec.name].place(index)
            kind = number_type(place.dtype)
            numbers = numbers_at(place)
            if before is not None:
                rest = read_numbers(before, place, scratch)
                numbers = numbers + rest  # what is infinite then, the codec refuses
            made = codec.encode_block(_within(numbers, place.dtype), place)
            due = codec.decode_block(memoryview(made), place)
            received = loaded(place.dtype, memoryview(stored(place.dtype, due)))
            left = np.subtract(numbers, received, dtype=kind)
            wrong = first_not_finite(left)
            if wrong is not None:  # it would be in all residuals from now on
                raise place.refused(wrong, numbers[wrong], f"{codec.name} with error feedback")
            start = layout.by_name[place.tensor].start + place.offset * kind.itemsize
            residuals.write(start, left.view(np.uint8).data)
            out[:] = made.ljust(len(out), b"\0")

        copy(Blockwise(update, encoded, block_bytes(coded), fill), sink)
        residuals.finish()
        return sink.finish()


def _within(numbers: Numbers, dtype: str) -> Numbers:
    """Bound numbers that are with a residual more than their tensor's type can hold."""
    most = LARGEST[dtype]
    if dtype in ("F32", "F64") or np.abs(numbers).max() <= most:
        return numbers
    return np.where(np.isinf(numbers), numbers, np.clip(numbers, -most, most))
