"""The evaluator: a process that scores models on data that no site has."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from flstream.errors import SimulationError
from flstream.model.source import Source
from flstream.server.collector import ResultCollector, SiteLost
from flstream.server.context import ServerContext
from flstream.server.program_view import Model
from flstream.server.sampling import site_seed
from flstream.server.task_plan import plan_task
from flstream.server.task_run import TaskRun
from flstream.server.tasks import TaskSpec
from flstream.telemetry.events import EVALUATOR, Transfer
from flstream.worker.messages import SiteTask, Task


class CentralScore(NamedTuple):
    """Metrics of a model by the evaluator, and the cost of the model's way there."""

    metrics: dict[str, float]
    down: Transfer


class Evaluator:
    """The evaluator of a run (``evaluate.at = server``).

    Args:
        context: The server, with the job and the pool of the evaluator, whose one site it is.
    """

    def __init__(self, context: ServerContext) -> None:
        self._context = context

    def prepare(self) -> None:
        """Start the evaluator's process, and wait until it is ready.

        Raises:
            SimulationError: Its code failed.
        """
        for _ in self._context.pool.prepare(self._lose):
            pass

    def score(
        self,
        model: Model,
        source: Source,
        effect: int,
        meta: bytes,
        order: str,
        joined: Sequence[str],
        base: str,
    ) -> CentralScore:
        """Score a model.

        Args:
            model: The model.
            source: Its body, with the bodies beside it.
            effect: Number of the effect that asks for the score.
            meta: Packed values that the evaluator finds in the model's ``meta``.
            order: Order of its tensors.
            joined: Names of the bodies beside it.
            base: Path of the base that it is an adapter of; empty for the job's.

        Raises:
            SimulationError: The evaluator failed, or sent no metrics.
        """
        job = self._context.job
        seed = site_seed(job.seed, EVALUATOR, model.version, "evaluate", 0)
        rounds, beside = job.planned_rounds, list(joined)
        task = Task(
            "evaluate",
            effect,
            model.round,
            rounds,
            meta=meta,
            order=order,
            joined=beside,
            base=base,
        )
        spec = TaskSpec(
            task,
            model=source,
            sites={EVALUATOR: SiteTask(EVALUATOR, 0, seed, None)},
            name=model.digest,
            seconds=job.clients.round_timeout,
        )
        collector = ResultCollector("evaluate", [EVALUATOR], 0)
        run = TaskRun(self._context, spec, plan_task(job, source.layout, 1), collector)
        run.run()
        answer = collector.answers.get(EVALUATOR)
        if answer is not None and not answer.metrics:
            run.fail(EVALUATOR, "it has answered without metrics")
        if answer is None or not answer.metrics:
            reason = collector.failures[EVALUATOR]
            raise SimulationError(_failed(f"the model of round {model.round} has no score", reason))
        return CentralScore(answer.metrics, run.down)

    def dismiss(self, seconds: float) -> None:
        """Tell the evaluator that the run is over, and wait until its process has ended."""
        self._context.pool.dismiss(seconds)

    def _lose(self, lost: SiteLost) -> None:
        self._context.emit(lost.event(0))
        raise SimulationError(_failed("no model can be scored", lost.reason))


def _failed(what: str, reason: str) -> str:
    return f"{what}, since the evaluator failed: {reason}; its log is sites/{EVALUATOR}/log.txt"
