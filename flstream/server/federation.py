"""The federation of a run: what carries out the effects that its workflow asks for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial, wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from flstream.aggregation.fold_rule import FoldRule
from flstream.aggregation.optimizers import stage_optimizer
from flstream.client.meta import pack_values
from flstream.client.personal_part import part_of
from flstream.errors import FlstreamError, WorkflowError
from flstream.job.scoring import ScoreSource
from flstream.runs.best import BestEvaluation
from flstream.runs.site_scores import columns_of
from flstream.runs.stopping import EarlyStopping
from flstream.server.arguments import (
    check_aggregators,
    check_bodies,
    check_model,
    check_name,
    check_scored,
    check_sites_and_timeout,
    check_training,
    check_values,
    fold_rules,
)
from flstream.server.cohort import FoldedUpdates
from flstream.server.cohort_fold import CohortFold
from flstream.server.collected_updates import CollectedUpdate
from flstream.server.collector import ResultCollector
from flstream.server.context import ServerContext
from flstream.server.effects import (
    Effect,
    EffectFailedError,
    EffectJournal,
    result_of,
)
from flstream.server.failures import FailureRecord
from flstream.server.model_store import ModelStore, UnsoundModelError
from flstream.server.peer_fold import PeerFold
from flstream.server.privacy import PrivateFolds
from flstream.server.program_view import Model, Update, Updates
from flstream.server.round_totals import FoldResult, RoundTotals
from flstream.server.sampling import brief_names, check_sites, sample_sites
from flstream.server.scores import Scores, received_score
from flstream.server.scoring import Scoring
from flstream.server.site_effects import SiteEffects
from flstream.server.site_results import SiteModel, SiteModels, SiteScores
from flstream.server.site_tasks import SiteTasks, with_states
from flstream.server.task_waits import UNLIMITED, TaskWaits
from flstream.server.trainer import Trainer
from flstream.server.training import SiteTraining, TaskCost, TrainResult
from flstream.server.unchanged import UnchangedUpdates
from flstream.server.weights import weighted_metrics
from flstream.telemetry.events import (
    AnyEvent,
    EffectDone,
    EndedEarly,
    SiteBenched,
    SiteLog,
    Warned,
)

ParamsT = ParamSpec("ParamsT")
ResultT = TypeVar("ResultT")


def uncatchable(
    effect: Callable[Concatenate[Federation, ParamsT], ResultT],
) -> Callable[Concatenate[Federation, ParamsT], ResultT]:
    """Have no workflow catch what an effect fails with, nor go on after it."""

    @wraps(effect)
    def sealed(federation: Federation, /, *args: ParamsT.args, **kwargs: ParamsT.kwargs) -> ResultT:
        if federation.failure is None:
            try:
                return effect(federation, *args, **kwargs)
            except FlstreamError as error:
                federation.failure = error
        raise EffectFailedError(federation.failure) from federation.failure

    return sealed


class Federation:
    """Carries out effects: does each that is new, and replays each that is on record.

    What a replay rebuilds is the state of this object: models, states of sites, failures, and the
    current round. It is the same, whether an effect was done or replayed.

    Args:
        context: The server.
        journal: The effects.
        store: The models.

    Attributes:
        context: The server.
        round: The current round, from 1; 0 before the first.
        failure: What an effect has failed with; None while none has.
        stage: Place of the current workflow among those of the job, from 0.
    """

    def __init__(self, context: ServerContext, journal: EffectJournal, store: ModelStore) -> None:
        self.context = context
        self.round = 0
        self.stage = 0
        self._names = context.job.clients.site_names
        self._journal = journal
        self._store = store
        # The round under way; None before the first round of a stage, and after its last.
        self._totals: RoundTotals | None = None
        self._failures = FailureRecord(context.job.clients.bench_after)
        self._tasks = SiteTasks(context.job.seed, self._names)
        self._trainer = Trainer(context, store)
        self._scoring = Scoring(context, store, self._trainer)
        self._scores = Scores(context.job)
        self._per_site = SiteEffects(
            context, journal, store, self._trainer, self._tasks, self._scoring
        )
        self._unchanged = UnchangedUpdates()
        self._private: PrivateFolds | None = None
        if context.accountant is not None:
            self._private = PrivateFolds(context.job, context.accountant)
            self._private.check_first_round()
        self.failure: FlstreamError | None = None

    @property
    def seed(self) -> int:
        """Seed of the job."""
        return self.context.job.seed

    @property
    def sites(self) -> list[str]:
        """The sites that are still asked, in their fixed order."""
        benched = set(self._failures.benched)
        return [name for name in self._names if name not in benched]

    @property
    def best(self) -> BestEvaluation | None:
        """The best evaluation so far; that of the last round counts until an effect follows."""
        return self._scores.best

    @property
    def score_source(self) -> ScoreSource:
        """What scores the models of the current workflow."""
        return self._scores.source

    @property
    def best_version(self) -> int | None:
        """Version of the best model so far that an evaluation of a round has found; or None."""
        return self._scores.best_version

    def begin_stage(self, place: int, source: ScoreSource, stopping: EarlyStopping) -> None:
        """Begin with the next workflow.

        Args:
            place: Its place among those of the job, from 0.
            source: What scores its models.
            stopping: Judges by their scores whether it goes on.
        """
        self.stage = place
        self.limit_waiting(UNLIMITED)
        self._scores.begin_stage(source, stopping)
        if self._private is not None:
            self._private.begin_stage(stopping)

    def limit_waiting(self, waits: TaskWaits) -> None:
        """Set how long there may be nothing from the sites of a task, from now on."""
        self._trainer.waits = waits

    @property
    def _is_auto(self) -> bool:
        return self.context.job.stages[self.stage].args.evaluate == "auto"

    def begin_round(self) -> None:
        """Begin the next round, and end the current one."""
        self.end_round()
        self.round += 1
        self._totals = RoundTotals(self.round)
        self._tasks.begin_round()

    def end_round(self) -> None:
        """End the current round, if there is one, and tell what it cost, unless that is known."""
        totals, self._totals = self._totals, None
        if totals is not None:
            self._emit_live(totals.finished(self._store.newest.record))

    def end_stage(self, reason: str | None) -> None:
        """End the current workflow's last round.

        Args:
            reason: Why it has had fewer rounds than the job; None if it has not.
        """
        self.end_round()
        if reason is not None:
            self._emit_live(EndedEarly(round=self.round, reason=reason))

    @uncatchable
    def log(self, key: str, value: float) -> None:
        """Record a number of the workflow's own."""
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise WorkflowError(
                f"run.log({key!r}) was given a {type(value).__name__} that is no float: {error}; "
                "give it a number"
            ) from error
        check_name("log", key)
        self._emit_live(SiteLog(round=self.round, site="", key=key, value=number))

    def sample(self, number: int) -> list[str]:
        """Draw the sites of a round; see :meth:`flstream.server.run.Run.sample`."""
        clients, sites = self.context.job.clients, self.sites
        least = clients.min_updates or clients.cohort_size
        if self._private is not None:
            drawn = self._private.sample(sites, number)
            least = min(least, len(drawn))
        else:
            drawn = sample_sites(sites, clients.cohort_size, self.seed, number)
        ResultCollector[None](f"train round {number}", drawn, least).check_size()
        return drawn

    @uncatchable
    def check_name(self, method: str, name: str) -> None:
        """Refuse what is no name."""
        check_name(method, name)

    @uncatchable
    def check_model(self, method: str, model: Model) -> None:
        """Refuse what is no model of the run."""
        check_model(method, model)

    def check_sites(self, method: str, names: Sequence[str]) -> None:
        """Refuse names that are no sites of the job, or that stand there twice."""
        check_sites(method, names, self._names)

    @uncatchable
    def train(
        self,
        model: Model,
        sites: Sequence[str],
        min_updates: int | None,
        timeout: float | None,
        *,
        meta: Mapping[str, Any] | None,
        optimizer_params: Mapping[str, Any] | None,
        personal: Sequence[str] = (),
        beside: bool = False,
    ) -> Updates:
        """Ask for a training; see :meth:`flstream.server.run.Run.train`."""
        job = self.context.job
        check_model("train", model)
        check_training(sites, min_updates, timeout)
        check_values("meta", meta)
        check_values("optimizer_params", optimizer_params)
        part = part_of(personal, is_beside=beside)
        self.check_sites("train", sites)
        self._check_round("train")
        asked = set(self.sites)
        names = [site for site in sites if site in asked]
        least = job.clients.min_updates or len(names) or 1
        if min_updates is not None:
            least = min_updates
        elif self._private is not None and self._private.is_draw(names, self.round):
            least = min(least, len(names))  # by chance, nobody may be drawn
        message = pack_values(meta or {}, optimizer_params)
        seconds = job.clients.round_timeout if timeout is None else float(timeout)
        arguments = {
            "model": [model.version, model.digest],
            "sites": names,
            "min_updates": min_updates,
            "timeout": timeout,
            "meta": message,
        }
        if part is not None:
            arguments["personal"] = [part.patterns, part.is_beside]
        request = f"train(model {model.version}, {brief_names(names)})"
        self._scores.drop_provisional()
        effect = self._journal.ask("train", self.round, request, arguments)
        if not names and least:
            raise WorkflowError(
                f"run.train() was given no site that is still asked in round {self.round}; "
                "give it at least one of run.sites, or min_updates=0"
            )
        collector: ResultCollector[CollectedUpdate | None] = ResultCollector(
            f"train round {self.round}",
            names,
            min(least, len(names)),
            job.clients.wait_after_min,
        )
        tasks = self._tasks.new("train_beside" if beside else "train", names, self.round)
        training = SiteTraining(self, effect, model, tasks, collector, seconds, message, part)
        if effect.record is None and part is not None:
            part.names(self._store.source(model).layout)
        if effect.record is not None:
            self._finish_training(training, effect.record)
        return Updates(training)

    @uncatchable
    def do_training(
        self, training: SiteTraining, fold: CohortFold | PeerFold | None = None
    ) -> None:
        """Have the sites of a training train now.

        Args:
            training: One that is not done.
            fold: Takes the updates as they come; None lets them wait.

        Raises:
            SimulationError: Too few sites are left; the message names the others.
        """
        self._store.retire(self._scores.best_version, self._trainer.versions_in_use)
        training.tasks = self._tasks.up_to_date(training.tasks)
        if fold is not None:
            run = fold.train(training)
        else:
            run = self._trainer.begin(training, self._trainer.plan(training, is_lazy=False))
            for _ in run.progress():
                pass
        self._trainer.check_states(training.tasks, run.collector.failures)
        training.bodies |= run.updates
        self._trainer.forget_empty(training)
        cost = TaskCost(*run.seconds, run.down)
        result = TrainResult.of(
            run.in_order, run.collector.failures, run.late, cost, training.tasks
        )
        record = self._journal.record(training.effect, result.plain(), is_final=False)
        self._finish_training(training, record)

    @uncatchable
    def fold(
        self,
        model: Model,
        updates: Sequence[Update],
        rule: FoldRule | None,
        bodies: Mapping[str, FoldRule],
        at: Sequence[str] | None,
    ) -> Model:
        """Fold updates into the next model; see :meth:`flstream.server.run.Run.fold`."""
        check_model("fold", model)
        self._check_round("fold")
        rules = fold_rules(self.context.rule, self._store.bodies(model), rule, bodies)
        cohort = FoldedUpdates.of(updates).under(rules)
        cohort.check_base(model)
        if cohort.rules and self._private is not None:
            raise WorkflowError(
                "run.fold() was given rules, and privacy.type is central, which knows what a site "
                "can do to a mean alone; leave them out, or set privacy.type = none"
            )
        if at is not None:
            check_aggregators(at)
            self.check_sites("fold", at)
            if self._private is not None:
                raise WorkflowError(
                    "run.fold() was given at, and privacy.type is central, whose noise the server "
                    "adds; leave it out, or set privacy.type = none"
                )
            if cohort.rules:
                raise WorkflowError(
                    "run.fold() was given both rules and at; rules are applied in the server's "
                    "process alone, so leave out one of the two"
                )
        effect = self._ask("fold", model, cohort, at)
        if effect.record is None:
            fold = self._new_fold(model, cohort) if at is None else self._fold_at(model, cohort, at)
            return self._make(effect, model, cohort, fold)
        return self._replay_model(effect.record, model, cohort)

    @uncatchable
    def adopt(self, updates: Sequence[Update]) -> Model:
        """Make one site's update the next model; see :meth:`flstream.server.run.Run.adopt`."""
        self._check_round("adopt")
        found = list(updates)
        if len(found) != 1:
            raise WorkflowError(
                f"run.adopt() takes the update of one site, and was given {len(found)}; "
                "use run.fold() for several, and skip the round where there is none"
            )
        if self._private is not None:
            raise WorkflowError(
                "run.adopt() makes an update the next model as it is, and privacy.type is central; "
                "use run.fold(), or set privacy.type = none"
            )
        cohort = FoldedUpdates.of(found, "adopt")
        model = found[0].base
        if beside := self._store.bodies(model):
            raise WorkflowError(
                f"run.adopt() was given an update of a model with the body {beside[0]!r} beside "
                "it, of which a site sends a part of the fold alone; use run.fold()"
            )
        effect = self._ask("adopt", model, cohort)
        if effect.record is None:
            return self._make(effect, model, cohort, self._new_fold(model, cohort, adopts=True))
        return self._replay_model(effect.record, model, cohort)

    @uncatchable
    def collect(self, name: str, sites: Sequence[str], timeout: float | None) -> SiteModels:
        """Collect models of sites; see :meth:`flstream.server.run.Run.collect`."""
        names, seconds = self._asked("collect", sites, timeout)
        found = self._per_site.collect(name, names, seconds, self.round)
        if self.context.job.submits_models:
            self._failures.failed(found.failures)
            self._settle_failures()
        return found

    @uncatchable
    def score(
        self,
        model: Model | SiteModel,
        sites: Sequence[str],
        timeout: float | None,
        *,
        owner: str,
        counts: bool,
    ) -> SiteScores:
        """Have sites score a model; see :meth:`flstream.server.run.Run.score`."""
        check_scored(model, counts=counts)
        check_name("score", owner)
        names, seconds = self._asked("score", sites, timeout)
        scores, means = self._per_site.score(
            model, names, seconds, self.round, owner, counts=counts
        )
        self._failures.failed(scores.failures)
        self._settle_failures()
        if counts and isinstance(model, Model):
            self._warn(self._scores.add(model, means))
        return scores

    @uncatchable
    def write_json(self, path: str, value: object) -> None:
        """Write a JSON file of the run; see :meth:`flstream.server.run.Run.write_json`."""
        check_name("write_json", path)
        self._scores.drop_provisional()
        self._per_site.write_json(path, value, self.round)

    def _asked(
        self, method: str, sites: Sequence[str], timeout: float | None
    ) -> tuple[list[str], float]:
        """The sites of an effect that are still asked, and the seconds that each may take."""
        check_sites_and_timeout(method, sites, timeout)
        self.check_sites(method, sites)
        self._scores.drop_provisional()
        asked, default = set(self.sites), self.context.job.clients.round_timeout
        names = [site for site in sites if site in asked]
        return names, default if timeout is None else float(timeout)

    @uncatchable
    def evaluate(
        self,
        model: Model,
        *,
        is_provisional: bool,
        personal: Sequence[str] = (),
        beside: bool = False,
    ) -> dict[str, float]:
        """Have all sites score a model.

        Args:
            model: The model.
            is_provisional: Whether the model is scored only because its round is the last: that is
                no effect, has no number, and is void once an effect follows.
            personal: Patterns of the tensors that are each site's own.
            beside: Whether sites score a whole model of their own, too.
        """
        part = part_of(personal, is_beside=beside)
        score = partial(self._scoring.evaluate, is_auto=self._is_auto, personal=part)
        if is_provisional:
            tasks = self._tasks.new("evaluate", self.sites, model.round)
            plain = score(model, tasks, 0)
        else:
            request = f"evaluate(model {model.version})"
            arguments: dict[str, Any] = {
                "model": [model.version, model.digest],
                "sites": self.sites,
            }
            if part is not None:
                arguments["personal"] = [part.patterns, part.is_beside]
            effect = self._journal.ask("evaluate", self.round, request, arguments)
            tasks = self._tasks.new("evaluate", self.sites, model.round)
            record = effect.record
            if record is None:
                plain = score(model, tasks, effect.number)
                record = self._journal.record(effect, plain, is_final=True)
            plain = result_of(record)
            self._failures.failed(plain["failures"])
            self._settle_failures()
        metrics: dict[str, float] = plain["metrics"]
        if is_provisional:
            self._warn(self._scores.add_provisional(model, metrics))
            return metrics
        self._warn(self._scores.add(model, metrics))
        if self._journal.is_live:
            self._store.retire(self._scores.best_version, self._trainer.versions_in_use)
        return metrics

    @property
    def newest_version(self) -> int:
        """Version of the model that was made last."""
        return self._store.newest.record.version

    def model(self, version: int) -> Model:
        """A model by its version."""
        return self._store.handle(version)

    @uncatchable
    def initial_model(self, version: int, bodies: Mapping[str, object]) -> Model:
        """The model that a workflow begins with; see :meth:`flstream.server.run.Run.initial_model`.

        Args:
            version: Its version.
            bodies: What the bodies beside it are to be, by name.
        """
        check_bodies(bodies)
        return self._store.begin(version, list(bodies))

    def check_failed(self) -> None:
        """Raise what an effect has failed with, if the workflow has caught that all the same.

        Raises:
            FlstreamError: The failure.
        """
        if self.failure is not None:
            raise self.failure

    def finish(self, version: int) -> None:
        """End the run with a model: its file gets its second name, and what waits is let go of."""
        path = self._store.source(self._store.handle(version)).path
        self._trainer.release_all("the run is over")
        run = self.context.run
        run.discard_updates()
        run.publish(path, run.final_model)
        best = self._scores.final_version
        in_use = {version}
        if best is not None:
            in_use.add(best)
            try:
                source = self._store.source(self._store.handle(best))
            except UnsoundModelError as error:
                # To do all the rounds since again would change nothing but this name.
                self.context.emit(Warned(message=f"no {run.best_model.name}: {error.flaw}"))
            else:
                run.publish(source.path, run.best_model)
        self._store.retire(self._scores.best_version, in_use)

    def abandon(self) -> None:
        """Let go of all updates: the workflow is replayed from its beginning."""
        self._trainer.release_all("the workflow is replayed")

    def _new_fold(
        self, model: Model, cohort: FoldedUpdates, *, adopts: bool = False
    ) -> CohortFold | PeerFold:
        job, rule, private = self.context.job, self.context.rule, self._private
        if private is not None:
            self._warn(private.warnings(rule, self._store.source(model).layout))
            rule = private.rule(rule, self.round, self._store.next_record(self.round)[1])
        return CohortFold(
            self.context,
            self._store,
            self._trainer,
            model,
            cohort,
            rule,
            adopts=adopts,
            optimizer=None if adopts else stage_optimizer(job, self.stage),
            counts_alike=job.stages[self.stage].args.server_step is not None,
            last=self._per_site.kept_from(self.stage),
        )

    def _fold_at(self, model: Model, cohort: FoldedUpdates, at: Sequence[str]) -> PeerFold:
        for training in cohort.trainings:
            training.at = at
        last = self._per_site.kept_from(self.stage)
        return PeerFold(self.context, self._store, self._trainer, model, cohort, at, last)

    def _ask(
        self, name: str, model: Model, cohort: FoldedUpdates, at: Sequence[str] | None = None
    ) -> Effect:
        arguments: dict[str, object] = {
            "model": [model.version, model.digest],
            "updates": cohort.arguments,
        }
        if cohort.rules:
            arguments["rules"] = {body: rule.plain() for body, rule in cohort.rules.items()}
        if at is not None:
            arguments["at"] = list(at)
        request = f"{name}(model {model.version}, {cohort.request})"
        self._scores.drop_provisional()
        return self._journal.ask(name, self.round, request, arguments)

    def _make(
        self, effect: Effect, model: Model, cohort: FoldedUpdates, fold: CohortFold | PeerFold
    ) -> Model:
        """Fold updates into the next model, which is durable on return."""
        private = self._private
        _, step = self._store.next_record(self.round)
        for training in cohort.trainings:
            if not training.is_done:
                self.do_training(training, fold)
        made = fold.make(self.round)
        outcome = made.outcome
        result = FoldResult(
            weights={site: answer.weight for site, answer in outcome.answers.items()},
            metrics=weighted_metrics(list(outcome.answers.values())),
            refused=outcome.refused,
            fold=made.seconds.fold,
            checkpoint=made.seconds.checkpoint,
            up=outcome.up,
            updates=cohort.used,
            kept=outcome.kept,
            at=made.at,
            privacy=private.record(cohort, self.round, step, outcome) if private else None,
        )
        if result.metrics and self._scores.is_received(model, self.round):
            # Before the record that makes it final, so that it counts as soon as that does.
            found = {site: answer.metrics for site, answer in outcome.answers.items()}
            columns = columns_of(self._names, found)
            self.context.emit(received_score(model, result.metrics, columns))
        self._warn(self._unchanged.warnings(self.round, outcome.unchanged))
        done = self._journal.record(effect, result.plain(), is_final=True, model=made.record)
        handle = self._replay_model(done, model, cohort, is_verified=True)
        self._store.keep_digests(made.record, made.digester)
        return handle

    def _replay_model(
        self, done: EffectDone, base: Model, cohort: FoldedUpdates, *, is_verified: bool = False
    ) -> Model:
        """Take in a model that is on record, and all that its effect changed."""
        assert done.model is not None
        result = FoldResult.from_plain(result_of(done))
        handle = self._store.add(done.model, done.effect, is_verified=is_verified, host=result.at)
        self._per_site.last.add(result.kept, done.effect)
        if self._private is not None and result.privacy is not None:
            self._private.take(result.privacy, self.round)
        if self._scores.is_received(base, self.round):
            self._warn(self._scores.add_received(base, result.metrics))
        if self._totals is not None:
            # Scores of the model that was received are no facts of the one that is being made.
            is_score = self.score_source == "received"
            self._totals.add_model(result._replace(metrics={}) if is_score else result)
        for site in result.refused:
            # What it kept for itself goes back to what it was before, too.
            before = {site: cohort.state_before(site)}
            self._tasks.left(before, self._journal.place(done.effect))
        self._failures.failed(result.refused)
        self._settle_failures(result.weights)
        # Only what is durable is settled: until now the sites still had all it takes to fold again.
        # A server that was killed before it had done so has left files.
        self._trainer.settle(cohort)
        return handle

    def _finish_training(self, training: SiteTraining, record: EffectDone) -> None:
        """Take in what came of a training that is on record."""
        result = training.result = TrainResult.from_plain(result_of(record))
        training.collector.restore(result.answers, result.failures)
        training.tasks = with_states(training.tasks, result.bases)
        self._tasks.left(result.states, self._journal.place(record.effect))
        if self._totals is not None:  # it may be read after the last round, for its metrics
            self._totals.add_task(result.cost)
        self._failures.failed(site for site in result.failures if site not in result.late)

    def _settle_failures(self, contributed: Iterable[str] | None = None) -> None:
        """Bench who is due by the records that are final now."""
        for site in self._failures.settle(contributed):
            count = self.context.job.clients.bench_after
            self._emit_live(SiteBenched(round=self.round, site=site, failures=count))

    def _warn(self, messages: Iterable[str]) -> None:
        self._emit_live(*(Warned(message=message) for message in messages))

    def _emit_live(self, *events: AnyEvent) -> None:
        """Emit events, unless what they tell of is replayed, and was told of before."""
        if self._journal.is_live:
            self.context.emit(*events)

    def _check_round(self, method: str) -> None:
        if self._totals is None:
            raise WorkflowError(
                f"run.{method}() was called before the first round; call it in the loop over "
                "run.rounds()"
            )
