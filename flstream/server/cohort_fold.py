"""One fold of a workflow: its updates, the trainings behind them, and the next model."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import msgspec

from flstream.aggregation.adoption import FoldKeeper, adopting, is_adopted_whole
from flstream.aggregation.ahead import WriteBehind
from flstream.aggregation.fold_rule import ServerStep
from flstream.aggregation.partial_sum import PartialSum
from flstream.aggregation.rules import AggregationRule
from flstream.errors import SimulationError, UpdateRefusedError
from flstream.job.bodies import MAIN
from flstream.runs.site_states import discard_site_state_after
from flstream.server.cohort import FoldedUpdates
from flstream.server.collected_updates import CollectedUpdate, RemoteUpdate
from flstream.server.context import ServerContext
from flstream.server.failures import brief, site_failed
from flstream.server.folding import FoldProgress, UpdateFold
from flstream.server.last_models import LastModels
from flstream.server.model_store import ModelStore
from flstream.server.pooled_worker import SiteLost
from flstream.server.program_view import Model
from flstream.server.task_run import TaskRun
from flstream.server.trainer import Trainer
from flstream.server.training import SiteTraining
from flstream.server.update_files import DurableUpdate
from flstream.telemetry.events import ModelRecord, Transfer
from flstream.worker.messages import SiteAnswer


class FoldOutcome(NamedTuple):
    """What came of a fold beside the bytes of its model.

    Attributes:
        answers: What the sites answered whose updates are part of it, in order.
        refused: By site, the reason why its update turned out to be of no use.
        up: Cost of fetching the updates.
        unchanged: Sites whose update is the model that they had received.
        kept: By site, the digest of its last model, where that is kept.
        clipped: Sites whose update was scaled down.
    """

    answers: Sequence[SiteAnswer]
    refused: Mapping[str, str]
    up: Transfer
    unchanged: Sequence[str]
    kept: Mapping[str, str]
    clipped: Sequence[str] = ()


class FoldedModel(NamedTuple):
    """A model that was made, and is durable.

    Attributes:
        outcome: What came of the fold beside it.
        record: What the journal says of it.
        fold: Seconds of fetching and folding.
        checkpoint: Seconds from then until it was durable.
        at: Site in whose process it was made; empty for the server's.
        is_link: Whether its file is that of the update which was adopted.
    """

    outcome: FoldOutcome
    record: ModelRecord
    fold: float
    checkpoint: float
    at: str = ""
    is_link: bool = False


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
        optimizer: The server optimizer that makes a step; None for none.
        last: Keeps the last models of the sites; None where nobody collects them.

    Attributes:
        context, store, trainer, model, cohort, optimizer: As given.
        rule: How the updates of this cohort are combined.
        update_fold: Folds those updates that are sound.
        progress: Tells how far the fold is.
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
        optimizer: ServerStep | None = None,
        last: LastModels | None = None,
    ) -> None:
        self.context = context
        self.store = store
        self.trainer = trainer
        self.cohort = cohort
        self.model = model
        self._adopts = adopts
        self.optimizer = optimizer
        self._base = store.joined(model)
        self._refused: dict[str, str] = {}
        self.progress = FoldProgress(context, self._base.layout.nbytes)
        counts_alike = optimizer is not None and optimizer.counts_alike
        rule = replace(rule, counts_alike=counts_alike, bodies=store.bodies(model))
        self._keeper: FoldKeeper | None = None
        if last is not None:
            self._keeper = FoldKeeper(last.path, self._base, rule, self.progress.check)
        self.rule = replace(adopting(rule) if adopts else rule, fold_rules=cohort.rules)
        self.update_fold = self._fold_into(None)
        # The task under way whose updates are added up as they come, and how far that is.
        self._run: TaskRun | None = None
        self._group = 0
        self._done = 0

    def train(self, training: SiteTraining) -> TaskRun:
        """Have the sites of a training train, and fold what can be folded already."""
        run, plan = self.trainer.begin(training, is_read=False)
        self._run = run
        if plan.group:
            path = self.trainer.files(training).folder / "sum.safetensors"
            self.update_fold = self._fold_into(PartialSum(path, self._base, self.rule))
            self._group = plan.group
        for _ in run.progress():
            self._add_ready()
        self._run = None
        return run

    def make(self, round_number: int) -> FoldedModel:
        """Fold what is not part of a sum yet, and write the next model, durably.

        Args:
            round_number: The model's round.

        Raises:
            SimulationError: Too few updates are sound; the message names the others.
        """
        began = time.monotonic()
        updates = self.update_fold.add(self.left(), self.refuse)
        if (whole := self._adopted_whole(updates, round_number)) is not None:
            self.update_fold.take([whole])  # it was checked as it came
            outcome = self.outcome(whole.digest)
            record = self.store.link(self.model, round_number, whole.path, {MAIN: whole.digest})
            return FoldedModel(outcome, record, 0.0, time.monotonic() - began, is_link=True)
        with self.store.writing(self.model, round_number, optimizer=self.optimizer) as draft:
            with closing(WriteBehind(draft.target.layout, draft.target.write)) as sink:
                walk = self.update_fold.walk(sink, draft.optimization)
                _, digest = self.update_fold.fold_sound(updates, walk, self.refuse)
            outcome, folded = self.outcome(digest), time.monotonic()
            record = self.store.finish(partial(draft.finish, digest), round_number)
        checkpoint = time.monotonic() - folded
        return FoldedModel(outcome, record, folded - began, checkpoint)

    def _adopted_whole(
        self, updates: Sequence[CollectedUpdate], round_number: int
    ) -> DurableUpdate | None:
        """The one update that becomes the next model as its file is; None where it does not."""
        if not self._adopts or self._keeper is not None or len(updates) != 1:
            return None
        (update,) = updates
        is_file = isinstance(update, DurableUpdate) and update.form.codec is None
        is_alike = self.context.model_codecs.lossy is None and update.body.layout == (
            self._base.layout
        )
        (training,) = self.cohort.trainings
        if not (is_file and is_alike and training.round == round_number):
            return None
        assert isinstance(update, DurableUpdate)
        is_whole = is_adopted_whole(self._base.layout, update.source(1), self.rule)
        return update if is_whole else None

    def outcome(self, digest: str) -> FoldOutcome:
        """What came of the fold, given the model's digest."""
        fold = self.update_fold
        unchanged = fold.unchanged
        if self._adopts and digest != self.model.digest:
            unchanged = []  # it was copied, and not compared
        kept = {} if self._keeper is None else self._keeper.digests
        return FoldOutcome(fold.answers, self._refused, fold.cost, unchanged, kept, fold.clipped)

    def left(self) -> Sequence[CollectedUpdate]:
        """The updates that are not part of a sum yet, in order; lost ones are made again.

        Raises:
            SimulationError: Too few are left; the message names the others.
        """
        left: list[CollectedUpdate] = []
        done = {answer.site for answer in self.update_fold.answers} | self._refused.keys()
        for training in self.cohort.trainings:
            members = [
                (place, site)
                for place, (each, site) in enumerate(self.cohort.members)
                if each is training and site not in done
            ]
            if training is self.cohort.unread:
                lost = [site for _, site in members if site not in training.bodies]
                failures = self.trainer.train_again(training, lost) if lost else {}
                for site, reason in failures.items():
                    self._leave_out(SiteLost(site, reason))
                members = [each for each in members if each[1] not in failures]
                updates = [training.bodies[site] for _, site in members]
            else:
                updates = list(self.trainer.updates(training, [site for _, site in members]))
            for update, (place, _) in zip(updates, members, strict=True):
                update.place = place
                is_other = training.base.version != self.model.version
                update.base = update.form.model if is_other else None
            left += updates
        left.sort(key=lambda update: update.place)
        if self._adopts:
            # Multiplied by a weight and divided by it again, a float64 need not be what it was.
            for update in left:
                update.answer = msgspec.structs.replace(update.answer, weight=1.0)
        self.progress.remote_sites = [
            each.answer.site for each in left if isinstance(each, RemoteUpdate)
        ]
        return left

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
            self.update_fold.add(updates, self.refuse)
            for update in updates:
                if update.answer.site in results:
                    results[update.answer.site] = None
            run.folded(settled)

    def _fold_into(self, sums: PartialSum | None) -> UpdateFold:
        budget = self.context.job.aggregation.memory_budget
        keep = None if self._keeper is None else self._keeper.keep
        how = self._base, self.rule, budget, self.progress, sums, keep
        return UpdateFold(*how, adopts=self._adopts)

    def refuse(self, error: UpdateRefusedError) -> None:
        """Leave out a site whose update has turned out to be of no use.

        Raises:
            SimulationError: Too few are left; the message names the others.
        """
        self._leave_out(SiteLost.by(error.site, self.context.pool.explain(error)))

    def _leave_out(self, lost: SiteLost) -> None:
        if self._run is not None:
            self._run.fail(*lost)
            return
        site, reason, code = lost
        self._refused[site] = reason = brief(reason)
        for training in self.cohort.trainings_of(site):
            if training is self.cohort.unread:  # else what it has left counts already
                before = training.tasks[site].state
                with suppress(SimulationError):  # a later task of the site does the rest
                    folder = self.context.run.site(site)
                    discard_site_state_after(folder, training.number - 1, before)
            self.context.emit(site_failed(training.round, site, reason, code))
            training.bodies.pop(site, None)
            training.collector.fail(site, reason)
