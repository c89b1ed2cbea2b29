"""The fold of one round: every update that is sound, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import TypeVar

from flstream.aggregation.ahead import WriteBehind
from flstream.aggregation.optimizers import Optimization
from flstream.aggregation.partial_sum import PartialSum
from flstream.aggregation.rules import Rule
from flstream.aggregation.steps import Steps, plan_steps
from flstream.aggregation.updates import Update
from flstream.aggregation.walk import fold_updates
from flstream.errors import UpdateRefusedError
from flstream.model.body import Sink, Source
from flstream.model.checkpoint import FileSink
from flstream.simulator.rounds.updates import Collected, Held

ResultT = TypeVar("ResultT")


class RoundFold:
    """Folds the updates of a round.

    A site whose update turns out to be of no use in the middle of a walk contributes nothing: the
    walk is done again without it.

    Args:
        base: the model that the sites started from.
        rule: how to combine updates.
        memory_budget: bytes that buffers may take.
        refuse: told of each site whose update is of no use, and why; it raises if too few are left.
        on_range: called with the bytes of the model that are done, now and then.
        sums: where the sum of updates is kept if they come a few at a time.
    """

    def __init__(
        self,
        base: Source,
        rule: Rule,
        memory_budget: int,
        refuse: Callable[[str, str], None],
        on_range: Callable[[int], None],
        sums: PartialSum | None = None,
    ) -> None:
        self._base = base
        self._rule = rule
        self._memory_budget = memory_budget
        self._refuse = refuse
        self._on_range = on_range
        self._sums = sums

    def add(self, updates: Sequence[Collected]) -> None:
        """Add updates to the sum, and let go of them."""
        assert self._sums is not None
        sums = self._sums

        def add(sound: Sequence[Update], steps: Steps) -> None:
            if sound:
                sums.add(sound, steps, self._on_range)

        self._without_refused(updates, add)
        for update in updates:
            update.release()

    def finish(
        self, updates: Sequence[Collected], sink: FileSink, optimization: Optimization | None
    ) -> str:
        """Make the next model, which is written to the sink, and return its digest."""
        with closing(WriteBehind(sink.layout, sink.write)) as behind:
            return self._finish(updates, behind, optimization)

    def _finish(
        self, updates: Sequence[Collected], sink: Sink, optimization: Optimization | None
    ) -> str:
        if self._sums is not None:
            if updates:
                self.add(updates)
            steps = self._steps([])
            return self._sums.finish(sink, steps, self._on_range, optimization)

        def fold(sound: Sequence[Update], steps: Steps) -> str:
            base, rule = self._base, self._rule
            return fold_updates(base, sound, rule, sink, steps, self._on_range, optimization)

        return self._without_refused(updates, fold)

    def _without_refused(
        self,
        collected: Sequence[Collected],
        fold: Callable[[Sequence[Update], Steps], ResultT],
    ) -> ResultT:
        sound = list(collected)
        steps = self._steps(sound)
        while True:
            try:
                return fold([each.update for each in sound], steps)
            except UpdateRefusedError as error:
                (refused,) = [each for each in sound if each.trained.site == error.site]
                sound.remove(refused)
                refused.release(str(error))
                self._refuse(error.site, str(error))

    def _steps(self, updates: Sequence[Collected]) -> Steps:
        held = [each for each in updates if isinstance(each, Held)]
        frames = [each.frame_size for each in held if each.frame_size]
        steps = plan_steps(
            self._base.layout,
            self._rule,
            updates=len(updates),
            chunk_size=min(frames, default=0),
            memory_budget=self._memory_budget,
            partial=sum(each.trained.partial for each in updates),
            summing=self._sums is not None,
        )
        for each in held:
            each.fetch_in_frames(steps.frame)
        return steps
