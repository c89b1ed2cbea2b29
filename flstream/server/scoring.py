"""One evaluation: sites score a model, and what they find becomes one mean a metric."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from flstream.client.messages import SiteTask
from flstream.client.personal import PersonalPart
from flstream.errors import FlstreamError
from flstream.model.order import ORDER
from flstream.server.collected_updates import CollectedUpdate
from flstream.server.collector import ResultCollector
from flstream.server.context import ServerContext
from flstream.server.model_store import ModelStore
from flstream.server.program_view import Model
from flstream.server.task_plan import plan_task
from flstream.server.task_run import TaskRun
from flstream.server.tasks import TaskSpec
from flstream.server.trainer import Trainer
from flstream.server.weights import weighted_metrics
from flstream.telemetry.events import Evaluated, Warned
from flstream.telemetry.exact import decode_exact, encode_exact

PERSONAL = "personal_"
"""What the metrics of sites' own models begin with, beside those of the global model."""

_TRAINS_TO_EVALUATE = (
    "the code answers evaluation tasks with a model too, so it may train where it need not; "
    "branch on is_evaluate(), or set workflow.args.evaluate = received"
)


class AnsweredWithModelError(FlstreamError):
    """A script was asked to score a model, and has trained it.

    Attributes:
        script: Name of its file.
    """

    def __init__(self, script: str) -> None:
        super().__init__(f"{script} answered an evaluation with a model")
        self.script = script


class Scoring:
    """Has sites score models.

    Args:
        context: The server.
        store: The models.
        trainer: Knows which workers still hold updates.
    """

    def __init__(self, context: ServerContext, store: ModelStore, trainer: Trainer) -> None:
        self._context = context
        self._store = store
        self._trainer = trainer
        self._has_warned = False

    def score(
        self,
        model: Model,
        tasks: Mapping[str, SiteTask],
        effect: int,
        *,
        is_auto: bool,
        personal: PersonalPart | None = None,
    ) -> dict[str, Any]:
        """Have sites score a model, and tell of it.

        Args:
            model: The model.
            tasks: Each site's own part, in order.
            effect: Number of the effect; 0 for an evaluation that is none.
            is_auto: Whether nobody has said that this is how models are to be scored.
            personal: What each site has a version of its own of. Models beside the global one are
                scored after it, and their metrics are named ``personal_<name>``.

        Returns:
            The mean of each ``metrics``, weighted by the sites' own weights, and ``failures`` by
            site, as the journal keeps them.

        Raises:
            SimulationError: Too few sites are left; the message names the others.
            ResumeRefusedError: One has failed for want of its state.
            AnsweredWithModelError: ``is_auto``, and the script does not tell evaluations apart.
        """
        context = self._context
        began = time.monotonic()
        is_beside = personal is not None and personal.is_beside
        run = self._ask(model, tasks, effect, None if is_beside else personal)
        answers = list(run.in_order.values())
        if not self._has_warned and any(each.has_params for each in answers):
            if is_auto and context.job.train.script is not None:
                raise AnsweredWithModelError(context.job.train.script.name)
            self._has_warned = True
            context.emit(Warned(message=_TRAINS_TO_EVALUATE))
        metrics, failures, down = weighted_metrics(answers), run.collector.failures, run.down
        if is_beside:
            other = self._ask(model, tasks, effect, personal)
            own = weighted_metrics(list(other.in_order.values()))
            metrics |= {f"{PERSONAL}{name}": value for name, value in own.items()}
            failures = {**other.collector.failures, **failures}
            down += other.down
        plain = {"metrics": metrics, "failures": dict(failures)}
        found: dict[str, Any] = decode_exact(encode_exact(plain))
        context.emit(
            Evaluated(
                round=model.round,
                metrics=found["metrics"],
                seconds=time.monotonic() - began,
                down=down,
                is_provisional=not effect,
                version=model.version,
            )
        )
        return found

    def _ask(
        self,
        model: Model,
        tasks: Mapping[str, SiteTask],
        effect: int,
        personal: PersonalPart | None,
    ) -> TaskRun:
        """Have sites score a model, or their own versions of it."""
        context, sites = self._context, list(tasks)
        least = min(context.job.clients.min_updates or len(sites), len(sites))
        collector: ResultCollector[CollectedUpdate | None] = ResultCollector(
            f"evaluate the model of round {model.round}", sites, least
        )
        source = self._store.source(model)
        self._trainer.free(sites)
        spec = TaskSpec(
            kind="evaluate",
            effect=effect,
            round=model.round,
            total_rounds=context.job.planned_rounds,
            model=source,
            sites=tasks,
            settings=context.model_settings,
            frame=0,
            seconds=context.job.clients.round_timeout,
            order=source.metadata.get(ORDER, ""),
            personal=personal,
        )
        plan = plan_task(context.job, source.layout.nbytes, len(sites), is_ranked=True)
        run = TaskRun(context, spec, plan, collector)
        for _ in run.progress():
            pass
        self._trainer.check_states(tasks, collector.failures)
        return run
