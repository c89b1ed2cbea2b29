"""One fold of a workflow: its updates, the trainings behind them, and the next model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from flstream.aggregation.adoption import adopt_update
from flstream.aggregation.partial_sum import PartialSum
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.walk import fold_updates
from flstream.client.messages import SiteAnswer
from flstream.errors import SimulationError
from flstream.runs.site_states import discard_site_state_after
from flstream.server.cohort import FoldedUpdates
from flstream.server.collected_updates import CollectedUpdate, RemoteUpdate
from flstream.server.context import ServerContext
from flstream.server.failures import brief
from flstream.server.folding import FoldProgress, UpdateFold, adopting
from flstream.server.model_store import ModelDraft, ModelStore
from flstream.server.program_view import Model
from flstream.server.task_run import TaskRun
from flstream.server.trainer import Trainer
from flstream.server.training import SiteTraining
from flstream.server.weights import check_weights
from flstream.telemetry.events import SiteFailed, Transfer


class FoldOutcome(NamedTuple):
    """What came of a fold beside the bytes of its model.

    Attributes:
        digest: Digest of the model.
        answers: What the sites answered whose updates are part of it, in order.
        refused: By site, the reason why its update turned out to be of no use.
        up: Cost of fetching the updates.
        unchanged: Sites whose update is the model that they had received.
        clipped: Sites whose update was scaled down.
    """

    digest: str
    answers: Mapping[str, SiteAnswer]
    refused: Mapping[str, str]
    up: Transfer
    unchanged: Sequence[str]
    clipped: Sequence[str] = ()


class CohortFold:
    """Folds the updates of trainings into the next model.

    Args:
        context: The server.
        store: The models.
        trainer: Has sites train.
        model: The model that the updates were trained from.
        cohort: The updates.
        rule: How the updates are combined.
        adopts: Whether the one update becomes the next model as it is.
    """

    def __init__(
        self,
        context: ServerContext,
        store: ModelStore,
        trainer: Trainer,
        model: Model,
        cohort: FoldedUpdates,
        rule: AggregationRule,
        *,
        adopts: bool,
    ) -> None:
        self._context = context
        self._trainer = trainer
        self._cohort = cohort
        self._model = model
        self._adopts = adopts
        self._base = store.source(model)
        self._refused: dict[str, str] = {}
        self._progress = FoldProgress(context, self._base.layout.nbytes)
        self._rule = adopting(rule) if adopts else rule
        self._fold = self._fold_into(None)
        # The task under way whose updates are added up as they come, and how far that is.
        self._run: TaskRun | None = None
        self._group = 0
        self._done = 0

    def train(self, training: SiteTraining) -> TaskRun:
        """Have the sites of a training train, and fold what can be folded already."""
        plan = self._trainer.plan(training, is_lazy=True)
        run = self._run = self._trainer.begin(training, plan)
        if plan.group:
            self._begin_sum(training, run)
            self._group = plan.group
            self._add_ready()
        for _ in run.progress():
            self._add_ready()
        self._run = None
        return run

    def finish(self, draft: ModelDraft) -> FoldOutcome:
        """Fold what is not part of a sum yet, and write the next model.

        Raises:
            SimulationError: Too few updates are sound; the message names the others.
        """
        updates = self._left()
        check_weights({each.answer.site: each.answer for each in updates})
        self._progress.remote_sites = [
            each.answer.site for each in updates if isinstance(each, RemoteUpdate)
        ]
        digest = self._fold.finish(updates, draft.sink, draft.optimization, self._refuse)
        unchanged = self._fold.unchanged
        if self._adopts and digest != self._model.digest:
            unchanged = []  # it was copied, and not compared
        fold = self._fold
        return FoldOutcome(digest, fold.answers, self._refused, fold.cost, unchanged, fold.clipped)

    def _left(self) -> Sequence[CollectedUpdate]:
        """The updates that are not part of a sum yet, in order."""
        left: list[CollectedUpdate] = []
        members = [
            (training, site)
            for training, site in self._cohort.members
            if site not in self._fold.answers
        ]
        for training in self._cohort.trainings:
            sites = [site for each, site in members if each is training]
            updates, failures = self._trainer.complete(training, sites)
            left += updates
            for site, reason in failures.items():
                self._refuse(site, reason)
        places = {site: place for place, (_, site) in enumerate(members)}
        left.sort(key=lambda update: places[update.answer.site])
        if self._adopts:
            # Multiplied by a weight and divided by it again, a float64 need not be what it was.
            for update in left:
                update.answer = msgspec.structs.replace(update.answer, weight=1.0)
        return left

    def _begin_sum(self, training: SiteTraining, run: TaskRun) -> None:
        """Add updates up in a file; go on with the sum that an earlier server left."""
        files = self._trainer.files(training)
        label = f"training {training.effect.arguments}"
        sums = PartialSum(files.folder / "sum.safetensors", self._base, self._rule, label)
        self._fold = self._fold_into(sums)
        records = {site: files.record(site) for site in sums.sites}
        answers = {site: each.answer for site, each in records.items() if each is not None}
        in_order = sums.sites == tuple(training.tasks)[: len(sums.sites)]
        if len(answers) < len(records) or not in_order:
            # The sum has updates of which nothing else is known any more, or lacks one of a site
            # that had failed and is now asked again: added later, it would give other bits.
            sums.discard()
            return
        costs = [each.cost for each in records.values() if each is not None]
        self._fold.take_up(answers, sum(costs, start=Transfer()), sums.clipped)
        for answer in answers.values():
            run.take_up(answer, None)
        self._done = len(answers)
        run.folded(self._done)

    def _add_ready(self) -> None:
        """Add to the sum what has come in without a gap, a group at a time."""
        run = self._run
        if not self._group or run is None:
            return
        collector = run.collector
        settled, results = collector.settled, collector.answers
        ready = [results.get(site) for site in collector.cohort[self._done : settled]]
        updates = [each for each in ready if each is not None]
        # Where so many have failed that the window has no group in it, workers would wait for ever.
        is_full = settled - self._done >= 2 * self._group
        if len(updates) >= self._group or is_full:
            self._done = settled
            self._fold.add(updates, self._refuse)
            for update in updates:
                if update.answer.site in results:
                    results[update.answer.site] = None
            run.folded(settled)

    def _fold_into(self, sums: PartialSum | None) -> UpdateFold:
        budget = self._context.job.aggregation.memory_budget
        walk = adopt_update if self._adopts else fold_updates
        return UpdateFold(self._base, self._rule, budget, self._progress, sums, walk)

    def _refuse(self, site: str, reason: str) -> None:
        """Leave out a site whose update has turned out to be of no use."""
        if self._run is not None:
            self._run.fail(site, reason)
            return
        training, reason = self._cohort.training_of(site), brief(reason)
        before = training.tasks[site].state
        with suppress(SimulationError):  # a later task of the site does the rest
            discard_site_state_after(self._context.run.site(site), training.number - 1, before)
        self._context.emit(SiteFailed(round=training.effect.round, site=site, reason=reason))
        self._refused[site] = reason
        training.bodies.pop(site, None)
        training.collector.fail(site, reason)
