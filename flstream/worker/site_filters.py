"""A site's filters: of the models that it receives, and of the updates that leave it."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from flstream.client.fl_model import FLModel, ParamsType
from flstream.client.number import number_of
from flstream.errors import ClientError
from flstream.filters.block import Passage
from flstream.filters.chain import filtered, remaining
from flstream.job.filters import FilterSection
from flstream.model.checkpoint import BodyFile, unnamed_file
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.model.source import Source
from flstream.worker.messages import TaskKind
from flstream.worker.site_work import SiteWork

# A model up to here is kept in memory: a file would cost more than it saves.
_TINY_BYTES = 1 << 20
_STEPS = "NUM_STEPS_CURRENT_ROUND"


class SiteFilters(NamedTuple):
    """Filters of a worker's sites.

    Training may overwrite the received model. So where a filter needs the numbers that were
    received, the model is kept in a file without a name, beside the one in memory.

    Attributes:
        up: Filters of updates.
        down: Filters of received models.
        folder: Folder of the file.
        kept_for: Tasks of which codecs need the model as it was received.
        is_lossy: Whether a codec encodes updates or models with a loss.
    """

    up: Sequence[FilterSection]
    down: Sequence[FilterSection]
    folder: Path
    kept_for: Collection[TaskKind] = ()
    is_lossy: bool = False

    def keep_model(self, kind: TaskKind) -> bool:
        """Whether the model of a task is kept as it was received."""
        needs_changes = kind == "train" and any(each.changes_numbers for each in self.up)
        return bool(self.down) or needs_changes or kind in self.kept_for

    def check(self, layout: Layout) -> None:
        """Check that the model has all tensors that filters name.

        Raises:
            UsageError: It lacks one; the message has the filter's key.
        """
        remaining(layout, self.up, "up")
        remaining(layout, self.down, "down")

    def place(self, layout: Layout) -> MemoryBody | BodyFile:
        """Return the place where a received model is kept.

        Raises:
            CheckpointError: There is no room for the file.
        """
        if layout.nbytes <= _TINY_BYTES:
            return MemoryBody.allocate(layout)
        return unnamed_file(layout, self.folder)

    def received(self, model: Source, site: SiteWork) -> Source:
        """Return a received model as the site's code is to see it."""
        return filtered(model, self.down, Passage(site.name, site.round, "down", site.seed))

    def sent(self, update: Source, model: Source | None, answer: FLModel, site: SiteWork) -> Source:
        """Return an update as it leaves the site.

        Args:
            update: The update.
            model: The model as it was received; None if the code has not asked for it.
            answer: What the code has sent.
            site: The site and its task.

        Raises:
            ClientError: Weights were sent, and there is no model to compare them with.
        """
        base = None
        if any(each.changes_numbers for each in self.up) and answer.params_type == ParamsType.FULL:
            if model is None:
                raise ClientError(
                    "filters.up compare an update with the received model, which was never asked "
                    "for; call receive() first, or send a difference (ParamsType.DIFF)"
                )
            base = model
        passage = Passage(site.name, site.round, "up", site.seed, _steps_of(answer))
        return filtered(update, self.up, passage, base)


def _steps_of(answer: FLModel) -> float:
    """Return the number of steps of a training, if the answer has it; else 1."""
    steps = number_of(answer.meta.get(_STEPS, 1))
    if steps is None or not (math.isfinite(steps) and steps > 0):
        raise ClientError(f"meta[{_STEPS!r}] is {answer.meta[_STEPS]}; send a number above 0")
    return steps
