"""One evaluation: sites score a model, and what they find becomes one mean a metric."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import msgspec

from flstream.codecs.update_form import UpdateForm
from flstream.model.checkpoint import FileSource
from flstream.model.order import ORDER
from flstream.runs.site_scores import columns_of
from flstream.server.collected_updates import CollectedUpdate
from flstream.server.collector import ResultCollector
from flstream.server.program_view import Model, SiteModel
from flstream.server.run_state import RunState
from flstream.server.task_plan import plan_task
from flstream.server.task_run import TaskRun
from flstream.server.tasks import TaskSpec
from flstream.telemetry.events import Evaluated, ModelScored, Transfer, Warned
from flstream.worker.messages import EVALUATE, SiteAnswer, SiteTask
from flstream.worker.meta import pack_values

_TRAINS_TO_EVALUATE = (
    "the code answers evaluation tasks with a model too, so it may train where it need not; "
    "branch on is_evaluate(), or set workflow.args.evaluate = received"
)


class ScoreResult(msgspec.Struct, frozen=True):
    """What sites have found of a model, as the journal keeps it.

    Attributes:
        metrics: The mean of each metric, weighted by the sites' own weights.
        failures: By site, the reason why it has found nothing.
        asks: What the code asks about, of sites that answer for the first time.
        sites: What each site has found, a column for each metric; empty for an evaluation.
    """

    metrics: dict[str, float]
    failures: dict[str, str]
    asks: dict[str, list[str]]
    sites: dict[str, list[float | None]] = {}


class ScoringTask(NamedTuple):
    """What the sites of one scoring have in common.

    Attributes:
        what: The task in words, for messages.
        effect: Number of the effect; 0 for an evaluation that is none.
        round: Number of the round of the model.
        least: How many of them have to answer.
        seconds: How long a site may take.
    """

    what: str
    effect: int
    round: int
    least: int
    seconds: float


class Scoring:
    """Has sites score models.

    Args:
        state: The state of the run.
    """

    def __init__(self, state: RunState) -> None:
        self._context = state.context
        self._store = state.store
        self._trainer = state.trainer
        self._asked = state.asked
        self._has_warned = False

    def evaluate(
        self,
        model: Model,
        tasks: Mapping[str, SiteTask],
        effect: int,
        meta: bytes,
    ) -> ScoreResult:
        """Ask sites to score a model of the run, and tell of it.

        Args:
            model: The model.
            tasks: Each site's own part, in order.
            effect: Number of the effect.
            meta: Payload message of the values sent along; empty for none.

        Raises:
            SimulationError: Too few sites are left; the message names the others.
            ResumeRefusedError: One has failed for want of its state.
        """
        began, source = time.monotonic(), self._store.source(model)
        clients = self._context.job.clients
        least = min(clients.min_updates or len(tasks), len(tasks))
        what = f"evaluate the model of round {model.round}"
        task = ScoringTask(what, effect, model.round, least, clients.round_timeout)
        run = self._ask(model, source, tasks, task, self._store.hosts(model), meta=meta)
        metrics = {site: answer.metrics for site, answer in run.in_order.items()}
        result = self._result(run)
        self._tell(model, result.metrics, metrics, run.down, time.monotonic() - began)
        return result

    def score(
        self,
        model: Model | SiteModel,
        source: FileSource,
        tasks: Mapping[str, SiteTask],
        task: ScoringTask,
        owner: str,
        *,
        counts: bool,
    ) -> ScoreResult:
        """Ask sites to score a model, each for itself.

        Args:
            model: The model.
            source: Its file.
            tasks: Each site's own part, in order.
            task: What they have in common.
            owner: Whose model it is, for the sites and the record.
            counts: Whether the mean is the score of a round of the run.

        Raises:
            SimulationError: Too few sites are left; the message names the others.
            ResumeRefusedError: One has failed for want of its state.
        """
        began = time.monotonic()
        hosts = self._store.hosts(model) if isinstance(model, Model) else ()
        meta = pack_values(_meta_of(owner))
        run = self._ask(model, source, tasks, task, hosts, is_due=False, meta=meta)
        for site, answer in run.in_order.items():
            if not answer.metrics:
                run.fail(site, "it has answered an evaluation without metrics")
        metrics = {site: answer.metrics for site, answer in run.in_order.items()}
        result = self._result(run, columns_of(list(tasks), metrics))
        seconds = time.monotonic() - began
        if counts and isinstance(model, Model):
            self._tell(model, result.metrics, metrics, run.down, seconds)
        else:
            self._context.emit(
                ModelScored(
                    round=task.round,
                    owner=owner,
                    sites=len(metrics),
                    metrics=result.metrics,
                    seconds=seconds,
                    down=run.down,
                )
            )
        return result

    def _ask(
        self,
        model: Model | SiteModel,
        source: FileSource,
        tasks: Mapping[str, SiteTask],
        task: ScoringTask,
        hosts: Sequence[str],
        *,
        is_due: bool = True,
        meta: bytes = b"",
    ) -> TaskRun:
        context, sites = self._context, list(tasks)
        # What a site has made is not rounded.
        lossy = context.model_codecs.lossy if isinstance(model, Model) else None
        collector: ResultCollector[CollectedUpdate | None] = ResultCollector(
            task.what, sites, task.least
        )
        spec = TaskSpec(
            kind="evaluate",
            effect=task.effect,
            round=task.round,
            total_rounds=context.job.planned_rounds,
            model=source,
            sites=tasks,
            form=UpdateForm(source, name=model.digest),
            encoder=self._store.encoder(model.digest, source, lossy),
            lossy=lossy,
            seconds=task.seconds,
            meta=meta,
            order=source.metadata.get(ORDER, ""),
            hosts=hosts,
            waits=self._trainer.waits,
        )
        plan = plan_task(context.job, source.layout, len(sites))
        run = TaskRun(context, spec, plan, collector)
        run.run()
        self._trainer.check_states(tasks, collector.failures)
        is_expected = is_due and self._asked.source == "auto"
        unaware = [
            site
            for site, kinds in self._asked.first_kinds(run.answers.values()).items()
            if is_expected and EVALUATE not in kinds
        ]
        trained = [site for site, each in run.answers.items() if each.has_params]
        if not self._has_warned and set(trained) - set(unaware):
            self._has_warned = True
            context.emit(Warned(message=_TRAINS_TO_EVALUATE))
        return run

    def _result(
        self, run: TaskRun, sites: dict[str, list[float | None]] | None = None
    ) -> ScoreResult:
        answers = list(run.in_order.values())
        return ScoreResult(
            metrics=weighted_metrics(answers),
            failures=dict(run.collector.failures),
            asks=self._asked.first_kinds(answers),
            sites=sites or {},
        )

    def _tell(
        self,
        model: Model,
        means: Mapping[str, float],
        metrics: Mapping[str, Mapping[str, float]],
        down: Transfer,
        seconds: float,
    ) -> None:
        """Tell of the score of a round: the mean of each metric, and what each site has found."""
        self._context.emit(
            Evaluated(
                round=model.round,
                metrics=means,
                seconds=seconds,
                down=down,
                version=model.version,
                sites=columns_of(self._context.job.clients.site_names, metrics),
            )
        )


def _meta_of(owner: str) -> dict[str, str]:
    """What sites find in the received model's ``meta``, by NVFlare's names."""
    return {"model_owner": owner, "validate_type": "model_validate"}


def weighted_metrics(answers: Sequence[SiteAnswer]) -> dict[str, float]:
    """Return the weighted mean of each metric.

    Args:
        answers: Answers of a task. An answer without a metric does not count for that metric.

    Returns:
        Means by name of the metric.
    """
    names = sorted({name for answer in answers for name in answer.metrics})
    return {name: _mean([each for each in answers if name in each.metrics], name) for name in names}


def _mean(answers: Sequence[SiteAnswer], name: str) -> float:
    total = sum(each.weight for each in answers)
    mean = sum(each.weight * each.metrics[name] for each in answers) / total
    if math.isfinite(mean):
        return mean
    # Where a product alone is too large for a float, shares of the whole are not.
    return sum(each.weight / total * each.metrics[name] for each in answers)
