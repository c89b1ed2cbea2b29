"""Keys of tensors, derived from the record of the body that they travelled in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from flstream.codecs.lossy import LossyCodec
from flstream.model.layout import Layout
from flstream.runs.body_records import BodyRecord

LOSSLESS = "lossless"
"""Tag of the tensors of a body that the codec with a loss has passed over."""


class TensorKey(NamedTuple):
    """What one tensor is, whose, and in which form it travelled.

    After ``TensorKey`` of OpenFL (``openfl.utilities.types``), which has the same five parts.

    Attributes:
        tensor: Name of the tensor, or of a metric.
        origin: Who sent it.
        round: Round that made it; 0 for the initial model.
        report: Whether it is a metric that a site reported, and no tensor of a model.
        tags: What it is (``model``, ``trained``, ``submitted`` or ``metric``), and its form. That
            of its frames is that of the body, whose frames do not end where tensors do.
    """

    tensor: str
    origin: str
    round: int
    report: bool
    tags: tuple[str, ...]


def tensor_keys(
    record: BodyRecord, layout: Layout, codec: LossyCodec | None = None
) -> list[TensorKey]:
    """Return the keys of a body's tensors, in the order of the layout.

    Args:
        record: The record of the body.
        layout: Layout of the model. Those of bodies that travel with it are not looked at.
        codec: What encodes bodies of this direction with a loss in the run; None for nothing. It
            is of account if the record has its name.

    Raises:
        CodecError: The codec, which may be the user's own, gives no length.
    """
    names = [spec.name for spec in layout.tensors]
    if record.part:
        bits = int(record.part, 16)
        names = [name for place, name in enumerate(names) if bits >> place & 1]
    kind = "model" if record.direction == "received" else _SENT[record.task]
    coded: Iterable[str] = ()
    lossy = codec is not None and codec.name in record.tags
    if codec is not None and lossy:
        coded = codec.coded(layout).coded
    keys = []
    for name in names:
        tags = record.tags
        if codec is not None and lossy and name not in coded:
            tags = tuple(LOSSLESS if tag == codec.name else tag for tag in tags)
        keys.append(TensorKey(name, record.origin, record.made, False, (kind, *tags)))
    return keys


def metric_keys(
    site: str, round_number: int, task: str, metrics: Mapping[str, float | None]
) -> list[TensorKey]:
    """Return the keys of metrics that a site reported.

    Args:
        site: Name of the site.
        round_number: Round of the task.
        task: What the site did: ``train`` or ``evaluate``.
        metrics: The metrics, by name.
    """
    return [TensorKey(name, site, round_number, True, ("metric", task)) for name in metrics]


_SENT = {"train": "trained", "submit_model": "submitted"}
