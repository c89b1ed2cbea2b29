"""The model that a site has sent, written range by range into a file of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from flstream.aggregation.adoption import adopt_update, adopting
from flstream.aggregation.ahead import WriteBehind
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.steps import Steps
from flstream.aggregation.update import UpdateSource
from flstream.model.body import Source
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.joined import MAIN, DiscardWriter, SplitWriter, part_layout

TRAINING = "flstream.training"
"""Key of the file's header that has the training which the model came of."""


def write_site_model(
    path: Path,
    base: Source,
    update: UpdateSource,
    rule: AggregationRule,
    steps: Steps,
    check: Callable[[], None],
    metadata: Mapping[str, str],
) -> str:
    """Write the model that a site has sent, range by range, and return its digest.

    It is what adopting the update would give: an update with all tensors as it is, a partial one or
    a difference made full against the model that it was trained from. The file that was there is
    replaced in one step.

    Args:
        path: The file.
        base: The model that the site started from, with the bodies that travel with it.
        update: What it has sent.
        rule: Which tensors count, and whether what is not finite is refused.
        steps: How finely to cut the work.
        check: Called now and then; raises to end the work.
        metadata: Strings for the file's header.

    Raises:
        UpdateRefusedError: The update does not fit the model, or is not finite.
        CheckpointError: The disk does not take it.
    """
    # Not durable: a power cut shows in the digest, and then it is made again.
    header = {"format": "pt", **metadata}
    # Multiplied by a weight and divided by it again, a float64 need not be what it was.
    model = replace(update, weight=1.0)
    if not rule.bodies:
        with FileSink(path, base.layout, header, durable=False) as sink:
            digest = adopt_update(base, [model], adopting(rule), sink, steps, lambda _: check())
            sink.finish()
        return digest
    # What travels with the model is no part of it.
    layouts = {body: part_layout(base.layout, body, rule.bodies) for body in (MAIN, *rule.bodies)}
    with FileSink(path, layouts[MAIN], header, durable=False) as sink:
        others = {body: DiscardWriter(layouts[body]) for body in rule.bodies}
        writer = SplitWriter({MAIN: sink, **others})
        with closing(WriteBehind(base.layout, writer.write)) as target:
            adopt_update(base, [model], adopting(rule), target, steps, lambda _: check())
        sink.finish()
    return writer.digests()[MAIN]


def kept_update(path: Path, update: UpdateSource, rule: AggregationRule) -> UpdateSource:
    """An update whose model was written, as it is to be folded.

    It is read from the file where that has the same bytes, so that a worker has to send it once.

    Args:
        path: The file.
        update: The update.
        rule: How updates are combined.
    """
    is_same = update.params_type == "FULL" and not update.partial and not rule.bodies
    return replace(update, open=lambda: FileSource(path, immutable=True)) if is_same else update
