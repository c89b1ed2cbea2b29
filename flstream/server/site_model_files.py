"""Files of the models of single sites: how one is written, and verified before use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from flstream.aggregation.adoption import adopt_update
from flstream.aggregation.ahead import WriteBehind
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.steps import Steps
from flstream.aggregation.update import UpdateSource
from flstream.errors import CheckpointError
from flstream.model.body import Source
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.digests import body_digest
from flstream.model.joined import MAIN, DiscardWriter, SplitWriter, part_layout
from flstream.server.folding import adopting
from flstream.server.model_store import UnsoundModelError


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


def verified_site_model(path: Path, digest: str, effect: int) -> FileSource:
    """Open the file of a site's model, which is to have a digest.

    Args:
        path: The file.
        digest: Digest of its body, going by the journal.
        effect: Number of the effect that has it on record.

    Raises:
        UnsoundModelError: It has another one, or cannot be read.
    """
    try:
        source = FileSource(path)
        found = body_digest(source)
    except CheckpointError as error:
        raise UnsoundModelError(effect, str(error)) from error
    if found != digest:
        flaw = f"{path} has the digest {found}, and had {digest} when it was written"
        raise UnsoundModelError(effect, flaw)
    return source
