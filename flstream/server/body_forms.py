"""The forms in which models and updates have travelled, for the journal."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from flstream.codecs.frame_codec import FrameCodec
from flstream.model.joined import MAIN, body_of
from flstream.server.collected_updates import CollectedUpdate
from flstream.server.stream_settings import way_of
from flstream.server.tasks import ModelArrived, TaskSpec
from flstream.server.training import SiteTraining
from flstream.telemetry.events import (
    SERVER,
    ModelReceived,
    SentUpdate,
    Transfer,
    UpdatesReceived,
)


def model_received(
    spec: TaskSpec, arrived: ModelArrived, codec: FrameCodec | None
) -> ModelReceived:
    """The event of a model that has arrived at a worker.

    Args:
        spec: The task.
        arrived: What has arrived.
        codec: What encodes frames of models; None for nothing.
    """
    cost = arrived.cost
    way = "mapped" if arrived.is_mapped else way_of(spec.settings)
    tags: list[str] = [way]
    # Those that sites send each other, and those that are mapped, are not encoded.
    if arrived.origin == SERVER and not arrived.is_mapped and spec.loses_bits:
        assert spec.lossy is not None
        tags.append(spec.lossy.name)
    tags += _frame_tags(codec, cost)
    # Of a model that is mapped all is here, and nothing was looked for.
    if cost.reused and not arrived.is_mapped:
        tags.append("reused")
    return ModelReceived(
        round=spec.round,
        effect=spec.effect,
        task="train" if spec.kind == "train" else "evaluate",
        sites=list(arrived.sites),
        digest=spec.form.name,
        made=spec.made,
        origin=arrived.origin,
        tags=tags,
        size=spec.model.layout.nbytes,
        cost=cost,
        bodies=list(spec.bodies),
    )


def trained_updates(
    updates: Iterable[tuple[SiteTraining, CollectedUpdate]],
    receiver: str,
    bodies: Collection[str] = (),
) -> list[UpdatesReceived]:
    """The events of updates that were folded, one for all those in the same form.

    Args:
        updates: The updates, each with the training that it came of.
        receiver: Who has folded them: the server, or a site.
        bodies: Names of the bodies that travel with the model.
    """
    found: dict[tuple[int, tuple[str, ...], str], dict[str, SentUpdate]] = {}
    trainings: dict[int, SiteTraining] = {}
    for training, update in updates:
        trainings[training.number] = training
        form = training.number, tuple(_tags_of(update)), _part_of(update, bodies)
        found.setdefault(form, {})[update.answer.site] = _sent(update)
    return [
        UpdatesReceived(
            round=trainings[number].effect.round,
            effect=number,
            task="train",
            base=trainings[number].base.digest,
            receiver=receiver,
            tags=list(tags),
            updates=sent,
            part=part,
        )
        for (number, tags, part), sent in found.items()
    ]


def submitted_model(spec: TaskSpec, update: CollectedUpdate) -> UpdatesReceived:
    """The event of a model of a site's own, which the server has asked for.

    Args:
        spec: The task.
        update: The model, once it was read.
    """
    return UpdatesReceived(
        round=spec.round,
        effect=spec.effect,
        task="submit_model",
        base=spec.form.name,
        receiver=SERVER,
        tags=_tags_of(update),
        updates={update.answer.site: _sent(update)},
        part=_part_of(update, ()),
    )


def _sent(update: CollectedUpdate) -> SentUpdate:
    cost, part = update.cost, update.part
    if part is not None:
        size = part.nbytes
    elif not update.answer.partial:
        size = update.form.model.layout.nbytes
    else:  # a peer has fetched it, and knows alone what it is
        size = 0 if update.form.codec is not None else cost.bytes + cost.reused
    return SentUpdate(size, cost.bytes, cost.reused, cost.encoded, cost.with_base)


def _tags_of(update: CollectedUpdate) -> list[str]:
    answer, form, cost = update.answer, update.form, update.cost
    tags = [update.way, answer.params_type]
    if answer.partial:
        tags.append("partial")
    if form.codec is not None and form.encodes(update.part):
        tags.append(form.codec.name)
    tags += _frame_tags(form.codecs.frames, cost)
    if cost.reused:
        tags.append("reused")
    return tags


def _part_of(update: CollectedUpdate, bodies: Collection[str]) -> str:
    """Which of the model's tensors a partial update has, as the event says it."""
    if not update.answer.partial or update.part is None:
        return ""
    model, there = update.form.model.layout, update.part.by_name
    own = [spec.name for spec in model.tensors if body_of(spec.name, bodies) == MAIN]
    return f"{sum(1 << place for place, name in enumerate(own) if name in there):x}"


def _frame_tags(codec: FrameCodec | None, cost: Transfer) -> Sequence[str]:
    """Names of the codecs that have made any frame smaller."""
    if codec is None or not cost.encoded:
        return ()
    return codec.names(has_base=cost.with_base > 0)
