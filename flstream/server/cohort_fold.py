"""One fold of a workflow: its updates, the trainings behind them, and the next model."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from flstream.aggregation.ahead import WriteBehind
from flstream.aggregation.fold_rule import ServerStep, TensorFold
from flstream.aggregation.steps import plan_step
from flstream.aggregation.update import CollectedUpdate
from flstream.aggregation.update_body import LocalBody, RemoteBody
from flstream.aggregation.walk import fold_updates
from flstream.errors import SimulationError, UpdateRefusedError
from flstream.job.bodies import MAIN
from flstream.model.composed import ComposedSource
from flstream.model.source import Sink
from flstream.runs.results import FoldResult
from flstream.runs.site_states import discard_site_state_after
from flstream.server.collector import SiteLost, brief
from flstream.server.program_view import Model
from flstream.server.scoring import weighted_metrics
from flstream.server.task_plan import TaskPlan
from flstream.server.task_run import TaskRun
from flstream.server.training import SiteTraining, UpdatesToFold
from flstream.telemetry.events import ModelRecord, SiteLog, Transfer
from flstream.text import brief_names

if TYPE_CHECKING:
    from pathlib import Path

    from flstream.aggregation.adoption import FoldKeeper
    from flstream.aggregation.optimizers import Optimization
    from flstream.aggregation.partial_sum import PartialSum
    from flstream.server.run_state import RunState

ResultT = TypeVar("ResultT")


class FoldedModel(NamedTuple):
    """A model that a fold has made.

    Attributes:
        record: Its record in the journal.
        checkpoint: Seconds from the end of the walk until it was durable.
        at: Site in whose process it was made; empty for the server's.
        is_link: Whether it is an update's own file, under a second name.
    """

    record: ModelRecord
    checkpoint: float
    at: str = ""
    is_link: bool = False


class CohortFold:
    """Folds the updates of trainings into the next model.

    A site whose update turns out to be of no use in the middle of a walk contributes nothing: the
    walk is done again without it.

    Args:
        state: The state of the run.
        model: The model that the updates were trained from.
        to_fold: The updates.
        adopts: Whether the one update becomes the next model as it is.
        at: Sites of which one folds; none for the server.
        step: The server's step of the workflow's own; None for the job's server optimizer.
        tensors: The workflow's code that combines groups of tensors; None for the job's, if any.

    Attributes:
        rule: How the updates of this fold are combined.
        optimizer: The server's step; None for none.
        folded: Sites whose updates were folded so far, once for each.
        cost: Cost of fetching the updates that were folded.
        clipped: Sites whose update was scaled down.
        refused: By site, the reason why its update turned out to be of no use.
        kept: By site, the digest of its last model, where that is kept.
        keeps_last: Whether the last models of the sites are kept, as somebody collects them.
        numbers: Numbers that the code of groups has logged, by key.
    """

    def __init__(
        self,
        state: RunState,
        model: Model,
        to_fold: UpdatesToFold,
        *,
        adopts: bool = False,
        at: Sequence[str] = (),
        step: ServerStep | None = None,
        tensors: TensorFold | None = None,
    ) -> None:
        self._state = state
        self.context = context = state.context
        self.store, self.writer = state.store, state.writer
        store = state.store
        self.update_store, self.tasks = state.update_store, state.tasks
        self.to_fold = to_fold
        self.model = model
        optimizer = step
        if step is None and not adopts and context.job.server_optimizer.type != "none":
            from flstream.aggregation.optimizers import optimizer_for

            optimizer = optimizer_for(context.job.server_optimizer)
        self.optimizer = optimizer
        self.folded: list[str] = []
        self.cost = Transfer()
        self._unchanged: list[str] = []
        self.clipped: list[str] = []
        self.refused: dict[str, str] = {}
        self.kept: dict[str, str] = {}
        self.numbers: Mapping[str, float] = {}
        self._adopts = adopts
        self._at = at
        self._tensors = tensors
        self._base = store.joined(model)
        counts_alike = optimizer is not None and optimizer.counts_alike
        rule = context.rule
        if state.private is not None:
            state.warn(state.private.warnings(rule, store.source(model).layout))
            rule = state.private.rule(rule, state.round, store.next_record(state.round)[1])
        rule = replace(rule, counts_alike=counts_alike, bodies=store.bodies(model))
        self._keeper: FoldKeeper | None = None
        self.keeps_last = state.keeps_last_models
        if self.keeps_last and not at:
            from flstream.aggregation.adoption import FoldKeeper

            self._keeper = FoldKeeper(context.run.last_model, self._base, rule, context.expect_on)
            self.kept = self._keeper.digests
        self.rule = replace(rule.adopting() if adopts else rule, fold_rules=to_fold.rules)
        # Sites whose updates come from their processes as they are folded.
        self._remote_sites: Sequence[str] = ()
        # The task under way whose updates are added up as they come, and how far that is.
        self._sums: PartialSum | None = None
        self._run: TaskRun | None = None
        self._plan: TaskPlan | None = None
        self._done = 0

    def warn_of_unchanged(self) -> None:
        """Warn of sites that have sent the model that they received, once of each."""
        state = self._state
        new = [site for site in self._unchanged if site not in state.unchanged]
        state.unchanged.update(new)
        if new:
            names = brief_names(new)
            whose = f"update of {names} is" if len(new) == 1 else f"updates of {names} are"
            state.warn(
                [
                    f"in round {state.round}, the {whose} equal to the model that was received, so "
                    "nothing was trained; a trainer may count its epochs from round to round, or "
                    "an optimizer hold the parameters of another module"
                ]
            )

    def train(self, training: SiteTraining) -> TaskRun:
        """Train the sites of a training, and add updates to a sum as they come."""
        if (code := self._code) is not None:  # wrong groups are found before anybody trains
            from flstream.aggregation.tensor_groups import named_groups

            named_groups(code, self._base.layout, self.rule)
        run, plan = self.tasks.begin(
            training, is_read=False, at=self._at, combines=self._tensors is not None
        )
        self._run, self._plan = run, plan
        if plan.sum_group:
            from flstream.aggregation.partial_sum import PartialSum

            path = self.context.run.updates(training.number) / "sum.safetensors"
            self._sums = PartialSum(path, self._base, self.rule)
        with closing(run.progress()) as events:
            for _ in events:
                self._add_ready()
        self._run = None
        return run

    def make(self, round_number: int) -> FoldedModel:
        """Fold what is not part of a sum yet, and write the next model, durably."""
        began, updates = time.monotonic(), self.updates_left()
        if self._sums is not None:
            self._add(self._sums, updates)
            updates = ()
        if (whole := self._adopted_whole(updates, round_number)) is not None:
            self._take(updates)  # it was checked as it came
            file, digest = whole
            record = self.writer.link(self.model, round_number, file, {MAIN: digest})
            self._note_digest(digest)
            return FoldedModel(record, time.monotonic() - began, is_link=True)
        with self.writer.writing(self.model, round_number, optimizer=self.optimizer) as draft:
            with closing(WriteBehind(draft.target.layout, draft.target.write)) as sink:
                walk = partial(self._walk, sink, draft.optimization)
                _, digest = self.fold_sound(updates, walk)
            self._note_digest(digest)
            folded = time.monotonic()
            record = self.writer.finish(partial(draft.finish, digest), round_number, self.model)
        return FoldedModel(record, time.monotonic() - folded)

    def _walk(
        self,
        sink: Sink,
        optimization: Optimization | None,
        updates: Sequence[CollectedUpdate],
        step: int,
    ) -> str:
        """Walk over updates and the model, and return the digest of the next one."""
        how = self.rule, sink, step, self.progress
        if self._adopts:
            from flstream.aggregation.adoption import adopt_update

            return adopt_update(self._base, updates, *how)
        if self._code is not None:
            return self._fold_groups(self._code, sink, optimization, updates, step)
        return fold_updates(self._base, updates, *how, optimization, self._sums)

    def fold_sound(
        self,
        collected: Sequence[CollectedUpdate],
        fold: Callable[[Sequence[CollectedUpdate], int], ResultT],
    ) -> tuple[Sequence[CollectedUpdate], ResultT]:
        """Fold those updates that are sound.

        Args:
            collected: The updates.
            fold: Folds updates, so many bytes at a time.

        Returns:
            The sound updates, and what the fold has returned.
        """
        sound = list(collected)
        step = self._step(sound)
        while True:
            try:
                if self._keeper is not None:
                    for update in {update.site: update for update in sound}.values():  # its last
                        self._keeper.keep(update, step)
                folded = fold(sound, step)
            except UpdateRefusedError as error:
                for refused in [update for update in sound if update.site == error.site]:
                    sound.remove(refused)
                    refused.body.release(str(error))
                self._leave_out(SiteLost.by(error.site, self.context.pool.explain(error)))
            else:
                break
        self._take(sound)
        return sound, folded

    def _fold_groups(
        self,
        code: TensorFold,
        sink: Sink,
        optimization: Optimization | None,
        updates: Sequence[CollectedUpdate],
        step: int,
    ) -> str:
        """Combine groups of tensors, and fold the others; return the next model's digest."""
        from flstream.aggregation.tensor_groups import combined_groups

        path = self.context.run.updates(self.to_fold.trainings[0].number) / "groups.safetensors"
        budget = self.context.job.aggregation.memory_budget
        what = self._base, updates, self.rule, code, path, step, budget, self.progress
        with combined_groups(*what) as groups:
            self.numbers = groups.numbers
            how = groups.rule, sink, step, self.progress, optimization
            return fold_updates(groups.base, groups.updates, *how)

    @property
    def _code(self) -> TensorFold | None:
        """The code that combines groups of tensors, a user's own rule made anew; None for none."""
        if self._tensors is not None or not self.rule.combines_groups:
            return self._tensors
        from flstream.aggregation.tensor_groups import own_tensor_fold

        return own_tensor_fold(self.rule)

    def progress(self, done: int) -> None:
        """Tell how many bytes of the model are done."""
        self.context.expect_on()
        self.context.picture.fold(done, self._base.layout.nbytes, self._remote_sites)

    def updates_left(self) -> Sequence[CollectedUpdate]:
        """The updates that are not part of a sum yet, in order; lost ones are made again."""
        updates_left: list[CollectedUpdate] = []
        done = {*self.folded, *self.refused}
        members_of: dict[int, list[tuple[int, str]]] = {}  # by identity of the training
        for place, (origin, site) in enumerate(self.to_fold.members):
            if site not in done:
                members_of.setdefault(id(origin), []).append((place, site))
        for training in self.to_fold.trainings:
            members = members_of.get(id(training), [])
            if training is self.to_fold.unread:
                lost = [site for _, site in members if site not in training.collected]
                assert self._plan is not None
                again = self.tasks.train_again
                failures = again(training, lost, self._plan) if lost else {}
                for site, reason in failures.items():
                    self._leave_out(SiteLost(site, reason))
                members = [member for member in members if member[1] not in failures]
                updates = [training.collected[site] for _, site in members]
            else:
                updates = list(self.update_store.updates(training, [site for _, site in members]))
            for update, (place, _) in zip(updates, members, strict=True):
                update.place = place
                is_other = training.trained_from.version != self.model.version or isinstance(
                    update.form.model, ComposedSource
                )
                update.base = update.form.model if is_other else None
            updates_left += updates
        updates_left.sort(key=lambda update: update.place)
        self._remote_sites = [
            update.site for update in updates_left if isinstance(update.body, RemoteBody)
        ]
        return updates_left

    def _adopted_whole(
        self, updates: Sequence[CollectedUpdate], round_number: int
    ) -> tuple[Path, str] | None:
        """The file of the one update that becomes the next model, and its digest; None for none."""
        if not self._adopts or self._keeper is not None or len(updates) != 1:
            return None
        (update,), body = updates, updates[0].body
        if not (isinstance(body, LocalBody) and body.stays and update.form.codec is None):
            return None
        assert body.path is not None
        is_alike = self.context.model_codecs.lossy is None and body.source.layout == (
            self._base.layout
        )
        (training,) = self.to_fold.trainings
        if not (is_alike and training.round == round_number):
            return None
        from flstream.aggregation.adoption import is_adopted_whole

        is_whole = is_adopted_whole(self._base.layout, update, self.rule)
        return (body.path, body.digest) if is_whole else None

    def _note_digest(self, digest: str) -> None:
        if self._adopts and digest != self.model.digest:
            self._unchanged.clear()  # it was copied, and not compared

    def _take(self, updates: Sequence[CollectedUpdate]) -> None:
        """Take note of updates that are part of the model."""
        self._unchanged += [update.site for update in updates if not update.has_changed]
        self.clipped += [update.site for update in updates if update.is_clipped]
        self.folded += [update.site for update in updates]
        self.cost = sum((update.body.cost for update in updates), start=self.cost)

    def _step(self, updates: Sequence[CollectedUpdate]) -> int:
        other_models = {id(update.base) for update in updates if update.base is not None}
        return plan_step(
            self._base.layout,
            self.rule,
            updates=len(updates),
            memory_budget=self.context.job.aggregation.memory_budget,
            buffered=sum(map(_is_buffered, updates)) + len(other_models),
            summing=self._sums is not None,
        )

    def _add(self, sums: PartialSum, updates: Sequence[CollectedUpdate]) -> None:
        """Add the next updates to the sum, and let go of them."""
        sound, _ = self.fold_sound(
            updates, lambda sound, step: sums.add(sound, step, self.progress)
        )
        for update in sound:
            update.body.release()

    def _add_ready(self) -> None:
        """Add to the sum what has come in without a gap, a group at a time."""
        run, plan = self._run, self._plan
        if self._sums is None or run is None or plan is None:
            return
        collector = run.collector
        settled, at_hand = collector.settled, collector.updates
        ready = collector.cohort[self._done : settled]
        updates = [at_hand[site] for site in ready if site in at_hand]
        # Where so many have failed that the window has no group in it, workers would wait for ever.
        is_full = settled - self._done >= 2 * plan.sum_group
        if len(updates) >= plan.sum_group or is_full:
            self._done = settled
            self._add(self._sums, updates)
            for update in updates:
                at_hand.pop(update.site, None)
            run.folded(settled)

    def _leave_out(self, lost: SiteLost) -> None:
        """Leave out a site whose update has turned out to be of no use."""
        if self._run is not None:
            self._run.fail(*lost)
            return
        site = lost.site
        self.refused[site] = brief(lost.reason)
        for training in self.to_fold.trainings_of(site):
            if training is self.to_fold.unread:  # else what it has left counts already
                before = training.tasks[site].state
                with suppress(SimulationError):  # a later task of the site does the rest
                    folder = self.context.run.site(site)
                    discard_site_state_after(folder, training.number - 1, before)
            self.context.emit(lost.event(training.round))
            training.collected.pop(site, None)
            training.check_left(self.refused)


def fold_cohort(
    state: RunState,
    model: Model,
    to_fold: UpdatesToFold,
    number: int,
    *,
    adopts: bool = False,
    at: Sequence[str] = (),
    step: ServerStep | None = None,
    tensors: TensorFold | None = None,
) -> tuple[FoldResult, ModelRecord]:
    """Train the sites that have yet to train, and fold: the effect of this number.

    The arguments are those of :class:`CohortFold`.
    """
    fold = CohortFold(state, model, to_fold, adopts=adopts, at=at, step=step, tensors=tensors)
    trained = None
    context, private, round_number = state.context, state.private, state.round
    _, step_number = state.store.next_record(round_number)
    if (unread := to_fold.unread) is not None:
        state.trainings.begin(unread, number)
        run = fold.train(unread)
        trained = unread.result = state.trainings.end(unread, run, run.cost, is_folded=True)
        state.site_code.record(trained.asks)
    began = time.monotonic()
    if at:
        from flstream.server.peer_fold import fold_at

        folded = fold_at(fold, at, round_number)
    else:
        folded = fold.make(round_number)
    answers = to_fold.answers(fold.refused)
    weights: dict[str, float] = {}  # added up where there are several updates of a site
    for site, weight, _ in answers:
        weights[site] = weights.get(site, 0.0) + (1.0 if adopts else weight)
    result = FoldResult(
        weights=weights,
        metrics=weighted_metrics([answer[1:] for answer in answers]),
        refused=fold.refused,
        fold=time.monotonic() - began - folded.checkpoint,
        checkpoint=folded.checkpoint,
        up=fold.cost,
        updates=to_fold.used,
        kept=fold.kept,
        at=folded.at,
        privacy=private.record(fold, round_number, step_number) if private else None,
        train=trained,
    )
    if result.metrics and state.scoring.is_received(model, to_fold):
        # Before the record that makes it final, so that it counts as soon as that does.
        by_site = {site: metrics for site, _, metrics in answers}
        state.scoring.tell_received(model, result.metrics, by_site)
    for key, value in fold.numbers.items():
        context.emit(SiteLog(round=round_number, site="", key=key, value=value))
    fold.warn_of_unchanged()
    if not folded.is_link:
        state.update_store.folded(to_fold)
    return result, folded.record


def _is_buffered(update: CollectedUpdate) -> bool:
    """Whether a frame of an update is kept while it is read, since it is fetched or decoded."""
    return isinstance(update.body, RemoteBody) or update.form.codec is not None
