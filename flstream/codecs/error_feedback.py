"""Error feedback: what a codec leaves out of an update is added to the site's next one.

Seide et al. 2014, "1-bit stochastic gradient descent and its application to data-parallel
distributed training of speech DNNs"; Stich et al. 2018, "Sparsified SGD with memory",
arXiv:1809.07599. So nothing is lost: all that was decoded, and the last residual, sum up to all
updates, but for rounding.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from flstream.codecs.block_codec import BlockPlace, decode_block, encode_block
from flstream.codecs.coded_layout import CodedLayout
from flstream.codecs.coded_sources import difference
from flstream.codecs.floats import LARGEST, load, number_type, quietly, stored
from flstream.codecs.lossy import LossyCodec
from flstream.codecs.read_ahead import BaseNumbers, joined
from flstream.errors import CodecError
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.layout import Layout
from flstream.model.source import Scratch, Source, views_of

# Bytes of a tensor that passes which are copied at a time.
_STEP = 1 << 20


def residual_layout(coded: CodedLayout) -> Layout:
    """Return the layout of a residual: float32 for each encoded tensor, or float64.

    Args:
        coded: Layouts of an update and of its encoded form.
    """
    return Layout.of(
        (name, "F64" if tensor.spec.dtype == "F64" else "F32", tensor.spec.shape)
        for name, tensor in coded.coded.items()
    )


def encode_with_feedback(
    update: Source,
    codec: LossyCodec,
    path: Path,
    *,
    before: Source | None,
    after: Path,
    base: Source | None = None,
    durable: bool = False,
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
        durable: Whether to wait until the disk has the files.

    Returns:
        The encoded form.

    Raises:
        CodecError: The codec cannot encode a number, or the residual is that of another model.
        CheckpointError: A file cannot be written.
    """
    coded = codec.coded(update.layout)
    layout = residual_layout(coded)
    numbers = None if base is None else BaseNumbers(base, coded)
    if before is not None and (flaw := layout.difference(before.layout)):
        raise CodecError(
            f"what the codec {codec.name} has left out before is of other tensors than this "
            f"update: {flaw}; send the same tensors each time, or take a codec that leaves out "
            "nothing"
        )
    with (
        FileSink(path, coded.encoded, durable=durable) as sink,
        FileSink(after, layout, durable=durable) as residuals,
    ):
        feedback = _Feedback(codec, numbers, before, residuals)
        scratch = Scratch()
        for spec in coded.encoded.tensors:
            tensor = coded.coded.get(spec.name)
            if tensor is not None:
                for index in range(tensor.blocks):
                    data = joined(views_of(update, *tensor.model_range(index), scratch))
                    start, stop = tensor.encoded_range(index)
                    made = feedback.encode(tensor.place(index), data)
                    sink.write(start, memoryview(made.ljust(stop - start, b"\0")))
                continue
            moved = coded.model.by_name[spec.name].start - spec.start
            for start in range(spec.start, spec.stop, _STEP):
                stop = min(start + _STEP, spec.stop)
                views = views_of(update, start + moved, stop + moved, scratch)
                sink.write(start, joined(views))
        residuals.finish()
        return sink.finish()


class _Feedback:
    """The encoding of blocks with what was left out of those before them.

    Args:
        codec: The codec.
        base: Numbers to take the differences from; None for none.
        before: The last residual; None for none.
        after: Sink of the next one, of the same layout.
    """

    def __init__(
        self, codec: LossyCodec, base: BaseNumbers | None, before: Source | None, after: FileSink
    ) -> None:
        self._codec = codec
        self._base = base
        self._before = before
        self._after = after
        self._scratch = Scratch()

    @quietly
    def encode(self, place: BlockPlace, data: memoryview) -> bytes:
        """Encode a block of the update and its residual, and write the next residual."""
        codec, name = self._codec.codec, self._codec.name
        kind = number_type(place.dtype)
        start = self._after.layout.by_name[place.tensor].start + place.offset * kind.itemsize
        stop = start + place.count * kind.itemsize
        numbers = difference(load(place.dtype, data), self._base, place)
        if self._before is not None:
            rest = np.frombuffer(joined(views_of(self._before, start, stop, self._scratch)), kind)
            numbers = numbers + rest  # what is infinite then, the codec refuses
        given, most = numbers, LARGEST[place.dtype]
        if place.dtype not in ("F32", "F64") and np.abs(numbers).max() > most:
            # With the residual it may be more than the tensor's type can hold.
            given = np.where(np.isinf(numbers), numbers, np.clip(numbers, -most, most))
        made = encode_block(codec, name, given, place)
        due = decode_block(codec, name, memoryview(made), place)
        received = load(place.dtype, memoryview(stored(place.dtype, due)))
        left = np.subtract(numbers, received, dtype=kind)
        finite = np.isfinite(left)
        if not finite.all():  # it would be in all residuals from now on
            index = int(np.argmin(finite))
            raise place.refused(index, numbers[index], f"{name} with error feedback")
        self._after.write(start, left.view(np.uint8).data)
        return made
