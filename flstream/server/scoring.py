"""The effects in which sites score a model: what they find becomes one mean a metric."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from flstream.errors import SimulationError
from flstream.model.order import ORDER
from flstream.runs.best import BestEvaluation, BestRound
from flstream.runs.results import ScoreResult
from flstream.runs.site_scores import by_site, columns_of
from flstream.server.arguments import check_name, check_scored, check_values
from flstream.server.collector import ResultCollector
from flstream.server.fleet import check_states_of
from flstream.server.program_view import Model, SiteModel, SiteScores
from flstream.server.sampling import site_seed
from flstream.server.task_plan import plan_task
from flstream.server.task_run import TaskRun
from flstream.server.tasks import TaskSpec
from flstream.telemetry.events import EVALUATOR, Evaluated, Metrics, ModelScored, Transfer
from flstream.text import brief_names
from flstream.worker.messages import EVALUATE, SiteAnswer, SiteTask, Task
from flstream.worker.meta import pack_values

_TRAINS_TO_EVALUATE = (
    "the code answers evaluation tasks with a model too, so it may train where it need not; "
    "branch on is_evaluate(), or set workflow.args.evaluate = received"
)

if TYPE_CHECKING:
    from flstream.server.run_state import RunState
    from flstream.server.training import UpdatesToFold


class ScoringEffects:
    """Evaluations of models by sites or the evaluator: done once, and replayed.

    Attributes:
        best_version: Version of the best model so far; None before there is one.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._has_warned = False
        job = state.context.job
        self.best_version: int | None = None
        # Version of the best model for a run with more rounds, which knows no provisional score.
        self._earlier_best: int | None = None
        self._best = BestRound(job.key_metric, job.key_metric_mode)
        self._has_evaluator = job.is_scored_centrally
        # Version of the newest model that was scored by those who received it.
        self._newest_received = -1

    @property
    def best(self) -> BestEvaluation | None:
        """The best evaluation so far; None before there is one."""
        return self._best.best

    @property
    def best_versions(self) -> set[int]:
        """Versions of the best model, now and if the run is given more rounds."""
        return {
            version for version in (self.best_version, self._earlier_best) if version is not None
        }

    def is_received(self, model: Model, to_fold: UpdatesToFold) -> bool:
        """Whether metrics that come with updates are the score of the model they are folded into.

        They are that of the model that they were trained from, which a round began with, and once;
        not of those in between, which sites hand on to each other within a round.
        """
        state, is_new = self._state, model.version > self._newest_received
        is_of_it = all(training.base.version == model.version for training in to_fold.trainings)
        return is_of_it and is_new and state.site_code.is_received and model.round < state.round

    def add_received(self, model: Model, metrics: Metrics) -> Sequence[str]:
        """Add metrics that came with the updates of a model; return warnings, a sentence each.

        Beside an evaluator, they are no score.
        """
        self._newest_received = model.version
        return () if self._has_evaluator else self.add_score(model, metrics)

    def add_score(
        self, model: Model, metrics: Metrics, *, is_provisional: bool = False
    ) -> Sequence[str]:
        """Add the score of a model; return warnings, a sentence each."""
        if self._best.compare(model.round, metrics):
            self._earlier_best = self.best_version if is_provisional else None
            self.best_version = model.version
        return self._state.stopping.evaluated(model.round, metrics)

    def evaluate(
        self, model: Model, meta: Mapping[str, Any] | None, *, is_provisional: bool
    ) -> dict[str, float]:
        """Score a model at all sites; see :meth:`flstream.server.run.Run.evaluate`."""
        check_values("evaluate", "meta", meta)
        state, message = self._state, pack_values(meta, None) if meta else b""
        sites, seconds = state.evaluators, state.context.job.clients.round_timeout
        tasks = state.fleet.tasks("evaluate", sites, model.round)

        def do(number: int) -> tuple[ScoreResult, None]:
            began, spec = time.monotonic(), self._spec(model, tasks, number, seconds, message)
            runs = self._score_centrally(model, spec)
            if sites:
                what = f"evaluate the model of round {model.round}"
                runs.append(self._ask(spec, what, counts=True, is_due=True))
            result = self._result(runs)
            self._tell(model, result, runs, began)
            return result, None

        result = state.journal.once(
            "evaluate",
            state.round,
            f"evaluate(model {model.version})",
            {"model": [model.version, model.digest], "sites": sites, "meta": message},
            do,
            ScoreResult,
            is_provisional=is_provisional,
        ).result
        self._note(result)
        state.warn(self.add_score(model, result.metrics, is_provisional=is_provisional))
        if state.journal.is_live:
            state.retire_models()
        return result.metrics

    def report(self, model: Model, metrics: Mapping[str, float]) -> None:
        """Take the score of a model; see :meth:`flstream.server.run.Run.report`."""
        check_scored(model, counts=True)
        state = self._state
        check_values("report", "metrics", metrics)
        score = {str(name): float(value) for name, value in metrics.items()}

        def do(_: int) -> tuple[ScoreResult, None]:
            result = ScoreResult(score, {}, {})
            self._tell(model, result, [], time.monotonic())
            return result, None

        arguments = {"model": [model.version, model.digest], "metrics": score}
        request = f"report(model {model.version})"
        result = state.journal.once(
            "report", state.round, request, arguments, do, ScoreResult
        ).result
        state.warn(self.add_score(model, result.metrics))

    def score(
        self,
        model: Model | SiteModel,
        sites: Sequence[str],
        timeout: float | None,
        owner: str,
        *,
        counts: bool,
    ) -> SiteScores:
        """Score a model at sites; see :meth:`flstream.server.run.Run.score`."""
        check_scored(model, counts=counts)
        check_name("score", owner)
        state = self._state
        sites, seconds = state.asked_sites("score", sites, timeout)
        if isinstance(model, SiteModel):
            named, of_round = f"model of {model.site}", state.round
            identity: list[object] = [model.site, model.effect, model.digest]
        else:
            named, of_round = f"model {model.version}", model.round
            identity = [model.version, model.digest]
        arguments = {
            "model": identity,
            "sites": sites,
            "timeout": seconds,
            "owner": owner,
            "counts": counts,
        }
        tasks = state.fleet.tasks("evaluate", sites, of_round)

        def do(number: int) -> tuple[ScoreResult, None]:
            # By NVFlare's names.
            meta = pack_values({"model_owner": owner, "validate_type": "model_validate"})
            began = time.monotonic()
            spec = self._spec(model, tasks, number, seconds, meta)
            run = self._ask(spec, f"score the {named}", counts=counts)
            for site, answer in run.collector.in_order.items():
                if not answer.metrics:
                    run.fail(site, "it has answered an evaluation without metrics")
            if counts and isinstance(model, Model):
                runs = [*self._score_centrally(model, spec), run]
                result = self._result(runs, list(tasks))
                self._tell(model, result, runs, began)
                return result, None
            result = self._result([run], list(tasks))
            state.context.emit(
                ModelScored(
                    round=of_round,
                    owner=owner,
                    sites=len(run.collector.answers),
                    metrics=result.metrics,
                    seconds=time.monotonic() - began,
                    down=run.down,
                )
            )
            return result, None

        request = f"score({named}, {brief_names(sites)})"
        result = state.journal.once(
            "score", state.round, request, arguments, do, ScoreResult
        ).result
        self._note(result)
        if counts and isinstance(model, Model):
            state.warn(self.add_score(model, result.metrics))
        return SiteScores(by_site(sites, result.sites), result.failures)

    def _spec(
        self,
        model: Model | SiteModel,
        tasks: Mapping[str, SiteTask],
        effect: int,
        seconds: float,
        meta: bytes,
    ) -> TaskSpec:
        state, store, context = self._state, self._state.store, self._state.context
        lossy, hosts, joined, base = None, list[str](), list[str](), ""
        if isinstance(model, Model):
            number, source, scored = model.round, store.source(model), store.scored(model)
            lossy, hosts = context.model_codecs.lossy, list(store.hosts(model))
            joined, base = list(store.own_bodies(model)), store.base_path(model)
        else:  # a site's is not rounded, and the server's to offer
            number, source = state.round, state.collection.source(model)
            scored = source
        task = Task(
            "evaluate",
            effect,
            number,
            context.job.planned_rounds,
            meta=meta,
            order=source.metadata.get(ORDER, ""),
            joined=joined,
            base=base,
        )
        return TaskSpec(
            task,
            model=scored,
            sites=tasks,
            name=model.digest,
            encoder=store.encoder(model.digest, scored, lossy),
            lossy=lossy,
            seconds=seconds,
            hosts=hosts,
            waits=state.tasks.waits,
        )

    def _ask(self, spec: TaskSpec, what: str, *, counts: bool, is_due: bool = False) -> TaskRun:
        """Ask sites to score a model, of which ``clients.min_updates`` have to where it counts."""
        state = self._state
        context, kinds_asked, sites = state.context, state.site_code, list(spec.sites)
        least = min(context.job.clients.min_updates or len(sites), len(sites)) if counts else 0
        collector = ResultCollector(what, sites, least)
        plan = plan_task(context.job, spec.model.layout, len(sites))
        run = TaskRun(context, spec, plan, collector)
        run.run()
        check_states_of(state.context.run, spec.sites, collector.failures)
        answers = collector.answers
        is_expected = is_due and kinds_asked.source == "auto"
        unaware = [
            site
            for site, kinds in kinds_asked.first_kinds(answers.values()).items()
            if is_expected and EVALUATE not in kinds
        ]
        trained = [site for site, answer in answers.items() if answer.has_params]
        if not self._has_warned and set(trained) - set(unaware):
            self._has_warned = True
            state.warn([_TRAINS_TO_EVALUATE])
        return run

    def _score_centrally(self, model: Model, spec: TaskSpec) -> list[TaskRun]:
        """Score a model by the evaluator; return its task, or none without one."""
        evaluator = self._state.context.evaluator
        if evaluator is None:
            return []
        seed = site_seed(evaluator.job.seed, EVALUATOR, model.version, "evaluate")
        tasks = {EVALUATOR: SiteTask(EVALUATOR, 0, seed, None)}
        seconds = evaluator.job.clients.round_timeout
        # The model comes to it as it is, and from the server.
        spec = TaskSpec(spec.task, spec.model, tasks, seconds, name=spec.name)
        collector = ResultCollector("evaluate", [EVALUATOR], 0)
        run = TaskRun(evaluator, spec, plan_task(evaluator.job, spec.model.layout, 1), collector)
        run.run()
        answer = collector.answers.get(EVALUATOR)
        if answer is not None and not answer.metrics:
            run.fail(EVALUATOR, "it has answered without metrics")
        if EVALUATOR in collector.failures:
            what, reason = f"the model of round {model.round} has no score", collector.failures
            raise evaluator_failed(what, reason[EVALUATOR])
        return [run]

    def _result(self, runs: Sequence[TaskRun], columns: Sequence[str] = ()) -> ScoreResult:
        """Result of the tasks in which a model was scored, with columns of these sites."""
        answers, failures = _answers_of_sites(runs), dict[str, str]()
        metrics = {site: answer.metrics for site, answer in answers.items()}
        for run in runs:
            failures |= run.collector.failures
        central = next((run.collector.answers.get(EVALUATOR) for run in runs), None)
        means = _means_of(answers) if central is None else central.metrics
        return ScoreResult(
            metrics=means,
            failures=failures,
            asks=self._state.site_code.first_kinds(answers.values()),
            sites=columns_of(columns, metrics) if columns else {},
        )

    def _tell(
        self, model: Model, result: ScoreResult, runs: Sequence[TaskRun], began: float
    ) -> None:
        """Tell of the score of a round: the model's metrics, and those of each site."""
        answers = _answers_of_sites(runs)
        means = None
        if self._has_evaluator and runs:
            means = _means_of(answers)
        by_site = {site: answer.metrics for site, answer in answers.items()}
        seconds, down = time.monotonic() - began, sum((run.down for run in runs), Transfer())
        self._emit(model, result.metrics, means, by_site, seconds, down)

    def tell_received(
        self, model: Model, metrics: Metrics, by_site: Mapping[str, Mapping[str, float]]
    ) -> None:
        """Tell of a score that came with updates, which is none beside an evaluator."""
        score, means = ({}, metrics) if self._has_evaluator else (metrics, None)
        self._emit(model, score, means, by_site, 0.0, Transfer(), received=True)

    def _emit(
        self,
        model: Model,
        metrics: Metrics,
        means: Metrics | None,
        by_site: Mapping[str, Mapping[str, float]],
        seconds: float,
        down: Transfer,
        *,
        received: bool = False,
    ) -> None:
        numbers = self._state.fleet.numbers
        sites = sorted(by_site, key=numbers.__getitem__)
        is_some = 0 < len(sites) < len(numbers)
        self._state.context.emit(
            Evaluated(
                round=model.round,
                metrics=metrics,
                site_metrics=means,
                seconds=seconds,
                down=down,
                version=model.version,
                received=received,
                sites=columns_of(sites, by_site),
                scored=[numbers[site] for site in sites] if is_some else None,
            )
        )

    def _note(self, result: ScoreResult) -> None:
        """Record who failed in scoring a model, and what sites' code asked about."""
        state = self._state
        state.site_code.record(result.asks)
        state.fleet.note_failures(result.failures)
        state.settle_failures()


def evaluator_failed(what: str, reason: str) -> SimulationError:
    """Return the error of a run whose evaluator has failed."""
    log = f"its log is sites/{EVALUATOR}/log.txt"
    return SimulationError(f"{what}, since the evaluator failed: {reason}; {log}")


def _answers_of_sites(runs: Sequence[TaskRun]) -> dict[str, SiteAnswer]:
    """Return the answers of sites, in the cohort's order, without the evaluator's."""
    answers: dict[str, SiteAnswer] = {}
    for run in runs:
        answers |= run.collector.in_order
    answers.pop(EVALUATOR, None)
    return answers


def _means_of(answers: Mapping[str, SiteAnswer]) -> dict[str, float]:
    return weighted_metrics([(answer.weight, answer.metrics) for answer in answers.values()])


def weighted_metrics(
    answers: Sequence[tuple[float, Mapping[str, float]]],
) -> dict[str, float]:
    """Return the mean of each metric, weighted.

    Args:
        answers: Weight and metrics by name, of each answer.
    """
    names = sorted({name for _, metrics in answers for name in metrics})
    return {
        name: _mean([(weight, metrics[name]) for weight, metrics in answers if name in metrics])
        for name in names
    }


def _mean(values: Sequence[tuple[float, float]]) -> float:
    total = sum(weight for weight, _ in values)
    mean = sum(weight * value for weight, value in values) / total
    if math.isfinite(mean):
        return mean
    # Where a product alone is too large for a float, shares of the whole are not.
    return sum(weight / total * value for weight, value in values)
