"""The effects in which sites score a model: what they find becomes one mean a metric."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msgspec import structs

from flstream.model.checkpoint import FileSource
from flstream.model.order import ORDER
from flstream.model.source import Source
from flstream.runs.best import BestEvaluation, BestRound
from flstream.runs.results import ScoreResult
from flstream.runs.site_scores import Columns, by_site, columns_of
from flstream.runs.stopping import EarlyStopping
from flstream.server.arguments import check_name, check_scored, check_values
from flstream.server.collector import ResultCollector
from flstream.server.program_view import Model, SiteModel, SiteScores
from flstream.server.task_plan import plan_task
from flstream.server.task_run import TaskRun
from flstream.server.tasks import TaskSpec
from flstream.telemetry.events import Evaluated, Metrics, ModelScored, Transfer
from flstream.text import brief_names
from flstream.worker.messages import EVALUATE, SiteAnswer, SiteTask, Task
from flstream.worker.meta import pack_values

_TRAINS_TO_EVALUATE = (
    "the code answers evaluation tasks with a model too, so it may train where it need not; "
    "branch on is_evaluate(), or set workflow.args.evaluate = received"
)

if TYPE_CHECKING:
    from flstream.server.evaluator import CentralScore
    from flstream.server.run_state import RunState


def site_columns(
    numbers: Mapping[str, int], metrics: Mapping[str, Mapping[str, float]]
) -> tuple[Columns, Sequence[int] | None]:
    """Return the columns of the sites that have metrics, and their numbers; None for all sites.

    Args:
        numbers: The number of each site in their fixed order, from 0, by its name.
        metrics: Metrics of sites that have any.
    """
    sites = sorted(metrics, key=numbers.__getitem__)
    is_some = 0 < len(sites) < len(numbers)
    return columns_of(sites, metrics), [numbers[site] for site in sites] if is_some else None


def received_score(
    model: Model,
    metrics: Metrics,
    numbers: Mapping[str, int],
    by_site: Mapping[str, Mapping[str, float]],
    *,
    has_evaluator: bool,
) -> Evaluated:
    """The event of a score that came with updates."""
    sites, scored = site_columns(numbers, by_site)
    return Evaluated(
        round=model.round,
        metrics={} if has_evaluator else metrics,
        site_metrics=metrics if has_evaluator else None,
        seconds=0.0,
        down=Transfer(),
        version=model.version,
        received=True,
        sites=sites,
        scored=scored,
    )


class ScoringEffects:
    """Has sites score models: does each effect that is new, and replays the others.

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
        self._stopping = EarlyStopping(job)
        self._has_evaluator = job.is_scored_centrally
        # Version of the newest model that was scored by those who received it.
        self._newest_received = -1

    def begin_stage(self, stopping: EarlyStopping) -> None:
        """Begin with the models of the next workflow.

        Args:
            stopping: Judges whether the workflow goes on.
        """
        self._stopping = stopping

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

    def may_be_received(self, model: Model, number: int) -> bool:
        """Whether metrics that come with updates may be the score of the model.

        They are for the model that a round began with, and once; not for those in between, which
        sites hand on to each other within a round.

        Args:
            model: What the sites had received.
            number: Number of the current round.
        """
        is_new = model.version > self._newest_received
        return model.round < number and is_new

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
        return self._stopping.evaluated(model.round, metrics)

    def evaluate(
        self, model: Model, meta: Mapping[str, Any] | None, *, is_provisional: bool
    ) -> dict[str, float]:
        """Score a model at all sites; see :meth:`flstream.server.run.Run.evaluate`."""
        check_values("evaluate", "meta", meta)
        state, message = self._state, pack_values(meta, None) if meta else b""
        sites, clients = state.evaluators, state.context.job.clients
        tasks = state.fleet.tasks("evaluate", sites, model.round)

        def do(number: int) -> tuple[ScoreResult, None]:
            began, source = time.monotonic(), state.store.source(model)
            central, run = self._score_centrally(model, source, number, message), None
            if sites:
                what = f"evaluate the model of round {model.round}"
                least = min(clients.min_updates or len(tasks), len(tasks))
                collector = ResultCollector(what, sites, least)
                spec = self._spec(
                    model, source, tasks, number, model.round, clients.round_timeout, message
                )
                run = self._ask(spec, collector)
            result = self._result(run, central)
            self._tell(model, result, run, central, began)
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
            self._tell(model, result, None, None, time.monotonic())
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
            if isinstance(model, Model):
                source = state.store.source(model)
            else:
                source = state.collection.source(model)
            least = 0
            if counts:
                least = min(state.context.job.clients.min_updates or len(sites), len(sites))
            collector = ResultCollector(f"score the {named}", sites, least)
            began, meta = time.monotonic(), pack_values(_meta_of(owner))
            spec = self._spec(model, source, tasks, number, of_round, seconds, meta)
            run = self._ask(spec, collector, is_due=False)
            for site, answer in run.collector.in_order.items():
                if not answer.metrics:
                    run.fail(site, "it has answered an evaluation without metrics")
            metrics = {site: answer.metrics for site, answer in run.collector.in_order.items()}
            columns = columns_of(list(tasks), metrics)
            if counts and isinstance(model, Model):
                central = self._score_centrally(model, source, number, meta)
                result = self._result(run, central, columns)
                self._tell(model, result, run, central, began)
                return result, None
            result = self._result(run, None, columns)
            state.context.emit(
                ModelScored(
                    round=of_round,
                    owner=owner,
                    sites=len(metrics),
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
        source: FileSource,
        tasks: Mapping[str, SiteTask],
        effect: int,
        number: int,
        seconds: float,
        meta: bytes,
    ) -> TaskSpec:
        context, store = self._state.context, self._state.store
        total, order = context.job.planned_rounds, source.metadata.get(ORDER, "")
        lossy, hosts, joined, base = None, list[str](), list[str](), ""
        scored: Source = source
        if isinstance(model, Model):  # a site's is not rounded, and the server's to offer
            lossy, hosts = context.model_codecs.lossy, list(store.hosts(model))
            scored, joined = store.scored(model), list(store.own_bodies(model))
            base = store.base_path(model)
        task = Task("evaluate", effect, number, total, meta=meta, order=order, joined=joined)
        return TaskSpec(
            structs.replace(task, base=base),
            model=scored,
            sites=tasks,
            name=model.digest,
            encoder=store.encoder(model.digest, scored, lossy),
            lossy=lossy,
            seconds=seconds,
            hosts=hosts,
            waits=self._state.update_store.waits,
        )

    def _ask(
        self,
        spec: TaskSpec,
        collector: ResultCollector,
        *,
        is_due: bool = True,
    ) -> TaskRun:
        """Ask sites to score a model."""
        state = self._state
        context, kinds_asked = state.context, state.site_code
        plan = plan_task(context.job, spec.model.layout, len(spec.sites))
        run = TaskRun(context, spec, plan, collector)
        run.run()
        state.update_store.check_states(spec.sites, collector.failures)
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

    def _score_centrally(
        self, model: Model, source: FileSource, number: int, meta: bytes
    ) -> CentralScore | None:
        """Score a model by the evaluator; return None without one."""
        evaluator = self._state.context.evaluator
        if evaluator is None:
            return None
        store, order = self._state.store, source.metadata.get(ORDER, "")
        own = store.own_bodies(model)
        base = store.base_path(model)
        return evaluator.score(model, store.scored(model), number, meta, order, own, base)

    def _result(
        self,
        run: TaskRun | None,
        central: CentralScore | None,
        sites: dict[str, list[float | None]] | None = None,
    ) -> ScoreResult:
        answers = [] if run is None else list(run.collector.in_order.values())
        return ScoreResult(
            metrics=weighted_metrics(answers) if central is None else central.metrics,
            failures={} if run is None else dict(run.collector.failures),
            asks=self._state.site_code.first_kinds(answers),
            sites=sites or {},
        )

    def _tell(
        self,
        model: Model,
        result: ScoreResult,
        run: TaskRun | None,
        central: CentralScore | None,
        began: float,
    ) -> None:
        """Tell of the score of a round: the model's metrics, and those of each site."""
        context = self._state.context
        answers = {} if run is None else run.collector.in_order
        metrics = {site: answer.metrics for site, answer in answers.items()}
        downs = [scoring.down for scoring in (run, central) if scoring is not None]
        columns, scored = site_columns(self._state.fleet.numbers, metrics)
        context.emit(
            Evaluated(
                round=model.round,
                metrics=result.metrics,
                site_metrics=weighted_metrics(list(answers.values())) if central else None,
                seconds=time.monotonic() - began,
                down=sum(downs, Transfer()),
                version=model.version,
                sites=columns,
                scored=scored,
            )
        )

    def _note(self, result: ScoreResult) -> None:
        """Record who failed in scoring a model, and what sites' code asked about."""
        state = self._state
        state.site_code.record(result.asks)
        state.fleet.note_failures(result.failures)
        state.settle_failures()


def _meta_of(owner: str) -> dict[str, str]:
    """Values in the ``meta`` of a model to score, by NVFlare's names."""
    return {"model_owner": owner, "validate_type": "model_validate"}


def weighted_metrics(answers: Sequence[SiteAnswer]) -> dict[str, float]:
    """Return the weighted mean of each metric.

    Returns:
        Means by name of the metric.
    """
    names = sorted({name for answer in answers for name in answer.metrics})
    return {
        name: _mean([answer for answer in answers if name in answer.metrics], name)
        for name in names
    }


def _mean(answers: Sequence[SiteAnswer], name: str) -> float:
    total = sum(answer.weight for answer in answers)
    mean = sum(answer.weight * answer.metrics[name] for answer in answers) / total
    if math.isfinite(mean):
        return mean
    # Where a product alone is too large for a float, shares of the whole are not.
    return sum(answer.weight / total * answer.metrics[name] for answer in answers)
