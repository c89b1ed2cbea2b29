"""The files of a run's models: what lies beside each of them, and which of them stay."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import ExitStack

from flstream.aggregation.optimizers import Optimization, optimizer_for
from flstream.aggregation.rules import Rule
from flstream.job import Job
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.digests import body_digest
from flstream.model.layout import Layout
from flstream.simulator.files.retention import Retention
from flstream.simulator.files.run_directory import RunDirectory
from flstream.telemetry.events import Metrics
from flstream.workflows.stopping import BestRound


class ModelFiles:
    """Keeps what a run needs of its models, and of what the server's optimizer remembers.

    Args:
        job: the job.
        run: its run directory.
        rule: which tensors are aggregated.
        evaluations: of earlier rounds, if the run goes on.
    """

    def __init__(
        self,
        job: Job,
        run: RunDirectory,
        rule: Rule,
        evaluations: Iterable[tuple[int, Metrics]],
    ) -> None:
        self._run = run
        self._rule = rule
        self._optimizer = optimizer_for(job.server_optimizer)
        self._retention = Retention(run, job.checkpoints.keep, job.rounds, [run.optimizer_state])
        args = job.workflow.args
        self._evaluate_every = args.evaluate_every
        self._best = BestRound(args.key_metric, args.key_metric_mode)
        for number, metrics in evaluations:
            self.note(number, metrics)

    def optimization(self, stack: ExitStack, number: int, layout: Layout) -> Optimization | None:
        """The optimizer with its state before a round, and where its next goes, if there is one."""
        if self._optimizer is None:
            return None
        state_layout = self._optimizer.state_layout(layout, self._rule)
        out = FileSink(self._run.optimizer_state(number), state_layout)
        before = FileSource(self._run.optimizer_state(number - 1)) if number > 1 else None
        return Optimization(self._optimizer, before, stack.enter_context(out))

    def finish_state(self, number: int, optimization: Optimization | None) -> str:
        """Make what the optimizer remembers of a round durable, and return its digest."""
        if optimization is None:
            return ""
        assert isinstance(optimization.state_out, FileSink)
        optimization.state_out.finish()
        # It was written here and there, a block of each moment at a time; so it is read again.
        return body_digest(FileSource(self._run.optimizer_state(number)))

    def note(self, number: int, metrics: Metrics) -> bool:
        """Take an evaluation; return whether it decides which checkpoints stay.

        One that is made only because the round is the job's last does not: it is void once the job
        has more rounds, and the best model before it has to be there then.
        """
        is_regular = number % self._evaluate_every == 0
        if is_regular:
            self._best.compare(number, metrics)
        return is_regular

    def retire(self, last: int) -> list[str]:
        """Remove what need not stay now that a round's model is durable; return warnings."""
        best = self._best.best.round if self._best.best is not None else None
        return self._retention.settle(last, best).warnings
