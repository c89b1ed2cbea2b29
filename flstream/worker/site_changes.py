"""Filters and codecs of a worker's sites, for received models and updates."""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from functools import cached_property
from pathlib import Path

from flstream.aggregation.rules import AggregationRule
from flstream.client.fl_model import FLModel, ParamsType, number_of
from flstream.client.learner import SiteContext
from flstream.client.own_files import OWN_FOLDER
from flstream.codecs.chain import CodecChain, chain_of
from flstream.codecs.error_feedback import encode_with_feedback
from flstream.codecs.lossy import LossyCodec
from flstream.errors import ClientError, CodecError
from flstream.filters.block import Passage
from flstream.filters.chain import filtered, remaining
from flstream.job.bodies import NUM_STEPS
from flstream.model.checkpoint import BodyFile, FileSource, unnamed_file
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.model.source import Source
from flstream.worker.messages import TaskKind
from flstream.worker.worker_info import WorkerInfo

# A model up to here is kept in memory: a file would cost more than it saves.
_TINY_BYTES = 1 << 20
_RESIDUAL = "residual.safetensors"


class SiteChanges:
    """Filters and codecs of a worker's sites.

    Training may overwrite the received model. So where a filter or a codec needs the numbers that
    were received, the model is kept in a file without a name, beside the one in memory.

    Attributes:
        up: Filters of updates.
        down: Filters of received models.
        has_base: Whether received models serve later ones as a base.
    """

    def __init__(self, info: WorkerInfo) -> None:
        self.up, self.down = info.job.filters.up, info.job.filters.down
        self._info, codecs = info, info.job.streaming.codecs
        self._codecs_up, self._codecs_down = codecs.of_updates, codecs.of_models
        self.has_base = self._codecs_down.needs_base

    @cached_property
    def update_codecs(self) -> CodecChain:
        """Codecs of updates."""
        return chain_of(self._codecs_up)

    @cached_property
    def model_codecs(self) -> CodecChain:
        """Codecs of received models."""
        return chain_of(self._codecs_down)

    @property
    def flaw_beside(self) -> str | None:
        """Filters or codecs that do not change bodies beside a model; None for none."""
        if self.update_codecs.lossy or self.model_codecs.lossy or self.model_codecs.changes:
            return "codecs with a loss"
        return "filters" if self.up or self.down else None

    def keep_model(self, kind: TaskKind) -> bool:
        """Return whether a worker keeps a task's model as it was received."""
        up, down = self._codecs_up, self._codecs_down
        if self.down or (down.needs_base and kind in ("train", "evaluate")):
            return True
        changes = any(spec.changes_numbers for spec in self.up)
        return kind == "train" and (changes or up.is_lossy or up.needs_base or down.of_changes)

    def selected(self, layout: Layout) -> Collection[str] | None:
        """Return the names of a model's tensors that are aggregated; None for all.

        Filters must find all tensors that they name in the model, too.
        """
        section = self._info.job.aggregation
        include, exclude = section.include, section.exclude
        selected: Collection[str] | None = None
        if include != [".*"] or exclude:
            selected = AggregationRule(include=include, exclude=exclude).selected(layout)
        remaining(layout, self.up, "up")
        remaining(layout, self.down, "down")
        return selected

    def place(self, layout: Layout) -> MemoryBody | BodyFile:
        """Return the path for a kept received model."""
        if layout.nbytes <= _TINY_BYTES:
            return MemoryBody.allocate(layout)
        return unnamed_file(layout, Path(self._info.sites_folder))

    def received(self, model: Source, site: SiteContext) -> Source:
        """Return a received model as the site's code sees it."""
        return filtered(model, self.down, Passage(site.name, site.round, "down", site.seed))

    def sent(
        self, update: Source, model: Source | None, answer: FLModel, site: SiteContext
    ) -> Source:
        """Return an update after the site's filters.

        ``model`` is as it was received; None if the code has not asked for it.
        """
        base = None
        if any(spec.changes_numbers for spec in self.up):
            base = _compared(model, answer, "filters.up compare")
        passage = Passage(site.name, site.round, "up", site.seed, _steps_of(answer))
        return filtered(update, self.up, passage, base)

    def encoded(
        self, update: Source, model: Source | None, answer: FLModel, site: SiteContext
    ) -> Source:
        """Return an update as the codec with a loss encodes it, if any.

        Where the codec leaves numbers out, what it left out before is added, and what it leaves
        out now is kept in the site's state. The arguments are those of :meth:`sent`. The result
        is computed as it is read, or lies in a file without a name.
        """
        codec = self.update_codecs.lossy
        if codec is None:
            return update
        base = _compared(model, answer, f"the codec {codec.name} compares")
        try:
            if not codec.for_updates:
                return codec.encode(update, base)
            return _with_feedback(codec, update, base, site)
        except CodecError as error:
            raise ClientError(f"the update cannot be encoded: {error}") from error


def _compared(model: Source | None, answer: FLModel, what: str) -> Source | None:
    """Return the received model for an answer of weights, None for differences."""
    if answer.params_type != ParamsType.FULL:
        return None
    if model is None:
        raise ClientError(
            f"{what} an update with the received model, which was never asked for; call receive() "
            "first, or send a difference (ParamsType.DIFF)"
        )
    return model


def _with_feedback(
    codec: LossyCodec, update: Source, base: Source | None, site: SiteContext
) -> FileSource:
    own = site.state_dir / OWN_FOLDER
    residual, following = own / _RESIDUAL, own / f"next.{_RESIDUAL}"
    before = FileSource(residual) if residual.exists() else None
    path = Path(site.folder, "update.encoded")
    try:
        encoded = encode_with_feedback(
            update, codec, path, before=before, after=following, base=base
        )
        os.replace(following, residual)
    except OSError as error:
        raise ClientError(f"{residual} cannot be written: {error.strerror}") from error
    finally:  # it is read by its descriptor from here on, and gone with it
        path.unlink(missing_ok=True)
    return encoded


def _steps_of(answer: FLModel) -> float:
    """Return the number of steps of a training, if the answer has it; else 1."""
    steps = number_of(answer.meta.get(NUM_STEPS, 1))
    if steps is None or not (math.isfinite(steps) and steps > 0):
        steps_sent = answer.meta[NUM_STEPS]
        raise ClientError(f"meta[{NUM_STEPS!r}] is {steps_sent!r}; send a number above 0")
    return steps
