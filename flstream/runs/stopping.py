"""Early stopping of a job, by a condition on a metric or by a lack of improvement."""

from __future__ import annotations

from flstream.job import Job
from flstream.job.conditions import Condition, read_condition
from flstream.job.problems import did_you_mean
from flstream.job.sections import EPSILON
from flstream.job.stage import WorkflowArgs
from flstream.runs.best import BestEvaluation, BestRound, finite_value
from flstream.telemetry.events import Metrics


class EarlyStopping:
    """Decision after each evaluation to stop, by ``stop_when`` and ``patience``.

    The decision depends on the evaluations alone. So after the evaluations of an interrupted run,
    in their order, it is the same as without the interruption.

    Args:
        job: The job, for the two keys, and its key metric and that metric's mode.

    Attributes:
        reason: First clause that said why the job ends; None while it goes on.
    """

    def __init__(self, job: Job) -> None:
        self._condition = read_condition(job.stop_when) if job.stop_when else None
        self._budget: Condition | None = None
        if job.privacy.is_on and self._condition and self._condition.metric == EPSILON:
            self._budget, self._condition = self._condition, None
        self._patience = job.patience
        self._scorer = (
            "the evaluator sends" if job.is_scored_centrally else "the sites' scripts send"
        )
        self._best_round = BestRound(job.key_metric, job.key_metric_mode)
        self._is_named = job.key_metric != WorkflowArgs.model_fields["key_metric"].default
        self._without_improvement = 0
        self._round = -1
        self.reason: str | None = None

    @property
    def best(self) -> BestEvaluation | None:
        """Best evaluation so far by the key metric; None until one has a finite value."""
        return self._best_round.best

    def evaluated(self, round_number: int, metrics: Metrics) -> tuple[str, ...]:
        """Add the evaluation of a round's model.

        A round that is evaluated again, as after an interruption, counts once. A metric that is
        missing, NaN or infinite neither stops the job nor counts as a lack of improvement.

        Args:
            round_number: Number of the round, in ascending order.
            metrics: Weighted means of the sites' metrics for the model.

        Returns:
            After the first evaluation, a sentence of warning for each metric that stopping or the
            best round depends on and that no site reported.
        """
        if round_number <= self._round:
            return ()
        is_first = self._round < 0
        self._round = round_number
        self._compare(metrics)
        self.reason = self.reason or self._reached(metrics) or self._no_improvement()
        return self._warnings(metrics) if is_first else ()

    def spent(self, round_number: int, epsilon: float, another: float) -> None:
        """End the job before a round that would spend more than it may.

        Args:
            round_number: Number of the round.
            epsilon: Epsilon spent up to its end.
            another: Epsilon spent after another round.
        """
        budget = self._budget
        if budget is not None and self.reason is None and budget.holds(another):
            self.reason = (
                f"{EPSILON} is {epsilon:.4g} after round {round_number}, and another round would "
                f"make it {_shown(another, budget)} {budget.bound}"
            )

    def _compare(self, metrics: Metrics) -> None:
        if self._best_round.compare(self._round, metrics):
            self._without_improvement = 0
        elif finite_value(metrics, self._best_round.metric) is not None:
            self._without_improvement += 1

    def _reached(self, metrics: Metrics) -> str | None:
        if self._condition is None:
            return None
        value = finite_value(metrics, self._condition.metric)
        if value is None or not self._condition.holds(value):
            return None
        shown = f"{_shown(value, self._condition)} {self._condition.bound}"
        return f"{self._condition.metric} reached {shown} in round {self._round}"

    def _no_improvement(self) -> str | None:
        metric, best, count = self._best_round.metric, self.best, self._without_improvement
        if self._patience is None or best is None or count < self._patience:
            return None
        return (
            f"{metric} has not improved on {best.value:.6g} of round {best.round} "
            f"for {count} evaluation{'s' if count != 1 else ''}"
        )

    def _warnings(self, metrics: Metrics) -> tuple[str, ...]:
        waiting = {}
        if self._patience is not None:
            waiting[self._best_round.metric] = "patience"
        if self._condition is not None:
            waiting[self._condition.metric] = "stop_when"
        others = ", ".join(sorted(metrics)) or "none"
        return tuple(
            f"{key} waits for {metric}, which is not among the metrics of round {self._round} "
            f"(they report {others}); unless {self._scorer} it, it never ends the job"
            + (f"; {question}" if (question := did_you_mean(metric, metrics)) else "")
            for metric, key in waiting.items()
            if metric not in metrics
        ) + self._unknown_key_metric(metrics)

    def _unknown_key_metric(self, metrics: Metrics) -> tuple[str, ...]:
        """Return a sentence on a key metric of the job file's that nobody reports."""
        metric = self._best_round.metric
        if not self._is_named or not metrics or metric in metrics or self._patience is not None:
            return ()
        hint = did_you_mean(metric, metrics)
        sentence = (
            f"key_metric is {metric}, which is not among the metrics of round {self._round} "
            f"({', '.join(sorted(metrics))}), so no round is the best one"
        )
        return (f"{sentence}; {hint}" if hint else sentence,)


def _shown(value: float, condition: Condition) -> str:
    """Return a value with four digits, or more until it meets the condition."""
    texts = (f"{value:.{digits}g}" for digits in range(4, 17))
    return next((text for text in texts if condition.holds(float(text))), repr(value))
