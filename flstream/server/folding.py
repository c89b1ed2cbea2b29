"""The fold of a cohort: every update that is sound, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from flstream.aggregation.adoption import adopt_update
from flstream.aggregation.optimizers import Optimization
from flstream.aggregation.partial_sum import PartialSum
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.steps import plan_step
from flstream.aggregation.update import UpdateSource
from flstream.aggregation.walk import fold_updates
from flstream.errors import AbortedError, UpdateRefusedError
from flstream.model.source import Sink, Source
from flstream.server.collected_updates import CollectedUpdate
from flstream.server.context import ServerContext
from flstream.telemetry.events import Transfer
from flstream.transport.channel import AbortSignal
from flstream.worker.messages import SiteAnswer

ResultT = TypeVar("ResultT")
Refuse = Callable[[UpdateRefusedError], None]
"""Takes the error that says which site's update is of no use; raises if too few are left."""

Keep = Callable[[UpdateSource, int], UpdateSource]
"""Takes the last update of each site before it is folded, and returns it as it is to be read."""


class FoldProgress:
    """Tells how far a walk is, now and then, and ends it once the run is to stop.

    Args:
        context: The server.
        size: Bytes of the model.

    Attributes:
        remote_sites: Sites whose updates come from their processes as they are folded.
    """

    def __init__(self, context: ServerContext, size: int) -> None:
        self._abort: AbortSignal = context.abort
        self._picture = context.picture
        self._size = size
        self.remote_sites: Sequence[str] = ()

    def __call__(self, done: int) -> None:
        """Take the number of bytes of the model that are done.

        Raises:
            AbortedError: The run is to stop.
        """
        self.check()
        self._picture.fold(done, self._size, self.remote_sites)

    def check(self) -> None:
        """Raise once the run is to stop.

        Raises:
            AbortedError: It is.
        """
        if self._abort.is_set():
            raise AbortedError("the run was stopped")


class UpdateFold:
    """Folds updates into the next model.

    A site whose update turns out to be of no use in the middle of a walk contributes nothing: the
    walk is done again without it.

    Args:
        base: The model that the sites started from.
        rule: How updates are combined.
        memory_budget: Bytes that buffers may take.
        on_range: Called with the bytes of the model that are done, now and then.
        sums: Where the sum of updates is kept if they come a few at a time.
        keep: Takes each update before it is folded; None where nothing is kept of it.
        adopts: Whether the one update becomes the next model as it is.

    Attributes:
        answers: What the sites answered whose updates were folded, in order.
        cost: Cost of fetching the updates that were folded.
        unchanged: Sites whose update was found to be the model that they had received.
        clipped: Sites whose update was scaled down.
    """

    def __init__(
        self,
        base: Source,
        rule: AggregationRule,
        memory_budget: int,
        on_range: Callable[[int], None],
        sums: PartialSum | None = None,
        keep: Keep | None = None,
        *,
        adopts: bool = False,
    ) -> None:
        self.answers: list[SiteAnswer] = []
        self.cost = Transfer()
        self.unchanged: list[str] = []
        self.clipped: list[str] = []
        self._base = base
        self._rule = rule
        self._memory_budget = memory_budget
        self._on_range = on_range
        self._sums = sums
        self._adopts = adopts
        self._keep = keep

    def add(self, updates: Sequence[CollectedUpdate], refuse: Refuse) -> Sequence[CollectedUpdate]:
        """Add updates to the sum, if there is one, and let go of them.

        Args:
            updates: The next ones, in order.
            refuse: Takes each update that is of no use.

        Returns:
            Those that are yet to be folded: all of them where there is no sum.
        """
        if self._sums is None:
            return updates
        add = partial(self._sums.add, on_range=self._on_range)
        for update in self.fold_sound(updates, add, refuse)[0]:
            update.release()
        return ()

    def walk(self, sink: Sink, optimization: Optimization | None) -> Callable[..., str]:
        """Return what makes the next model of updates that are not part of the sum.

        Args:
            sink: Takes the model; it is left unfinished.
            optimization: The server optimizer with its state; None without one.
        """
        walk: Callable[..., str] = partial(fold_updates, earlier=self._sums)
        if self._adopts:
            walk = adopt_update
        return partial(
            walk,
            self._base,
            rule=self._rule,
            sink=sink,
            on_range=self._on_range,
            optimization=optimization,
        )

    def fold_sound(
        self, collected: Sequence[CollectedUpdate], fold: Callable[..., ResultT], refuse: Refuse
    ) -> tuple[Sequence[CollectedUpdate], ResultT]:
        """Fold those updates that are sound.

        Args:
            collected: The updates, in order.
            fold: Folds ``updates`` a ``step`` at a time; raises :class:`UpdateRefusedError` for one
                that is of no use, and is then called again without it.
            refuse: Takes each update that is of no use.

        Returns:
            The sound updates, and what the fold has returned.
        """
        sound = list(collected)
        step = self._step(sound)
        while True:
            try:
                sources = [each.source(step) for each in sound]
                if self._keep is not None:
                    last = {each.site: each for each in sources}
                    sources = [
                        self._keep(each, step) if each is last[each.site] else each
                        for each in sources
                    ]
                made = fold(updates=[self._rule.weighted(each) for each in sources], step=step)
            except UpdateRefusedError as error:
                for refused in [each for each in sound if each.answer.site == error.site]:
                    sound.remove(refused)
                    refused.release(str(error))
                refuse(error)
            else:
                break
        self.take(sound)
        return sound, made

    def take(self, updates: Sequence[CollectedUpdate]) -> None:
        """Take note of updates that are part of the model."""
        self.unchanged += [each.answer.site for each in updates if not each.has_changed]
        self.clipped += [each.answer.site for each in updates if each.is_clipped]
        self.answers += [each.answer for each in updates]
        self.cost = sum((each.cost for each in updates), start=self.cost)

    def _step(self, updates: Sequence[CollectedUpdate]) -> int:
        other_models = {id(each.base) for each in updates if each.base is not None}
        return plan_step(
            self._base.layout,
            self._rule,
            updates=len(updates),
            memory_budget=self._memory_budget,
            buffered=sum(each.is_buffered for each in updates) + len(other_models),
            summing=self._sums is not None,
        )
