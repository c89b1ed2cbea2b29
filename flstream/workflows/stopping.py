"""When a job has trained enough: it reached what it was to reach, or no longer gets better."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal, NamedTuple

from flstream.job import Job
from flstream.job.conditions import Condition, read_condition
from flstream.job.problems import did_you_mean
from flstream.telemetry.events import Metrics


class Best(NamedTuple):
    """The best evaluation so far.

    Attributes:
        round: whose model it was of.
        value: of the key metric; finite.
    """

    round: int
    value: float


class BestRound:
    """Finds the round whose model is best by one metric: the first of those that are alike.

    Args:
        metric: its name.
        mode: whether its best value is the largest or the smallest.

    Attributes:
        best: None until a round has a finite value.
    """

    def __init__(self, metric: str, mode: Literal["max", "min"]) -> None:
        self.metric = metric
        self.best: Best | None = None
        self._sign = 1 if mode == "max" else -1

    def compare(self, round_number: int, metrics: Metrics) -> bool:
        """Take a round's metrics; return whether it is strictly better than all before."""
        value = _finite(metrics, self.metric)
        if value is None:
            return False
        if self.best is not None and self._sign * value <= self._sign * self.best.value:
            return False
        self.best = Best(round_number, value)
        return True


class Verdict(NamedTuple):
    """What an evaluation says about going on.

    Attributes:
        stop: the sentence why the job should end; None where it goes on.
        warnings: after the first evaluation, a sentence for each metric that is waited for and
            that no site reported.
    """

    stop: str | None
    warnings: tuple[str, ...]


class EarlyStopping:
    """Decides after each evaluation whether the job goes on, by ``stop_when`` and ``patience``.

    What it decides follows from the evaluations alone. So one that is fed the evaluations of an
    interrupted run, in their order, goes on as if there had been no interruption.

    Args:
        job: for the two keys, and the workflow's key metric and its mode.
        history: the evaluations so far: round, and its metrics.

    Attributes:
        reason: the sentence why the job should end; None while it goes on. The first one stays.
    """

    def __init__(self, job: Job, history: Iterable[tuple[int, Metrics]] = ()) -> None:
        args = job.workflow.args
        self._condition = read_condition(job.stop_when) if job.stop_when else None
        self._patience = job.patience
        self._best_round = BestRound(args.key_metric, args.key_metric_mode)
        self._without_improvement = 0
        self._round = -1
        self.reason: str | None = None
        for round_number, metrics in history:
            self.evaluated(round_number, metrics)

    @property
    def best(self) -> Best | None:
        """The best evaluation so far by the key metric; None until one has a finite value."""
        return self._best_round.best

    def evaluated(self, round_number: int, metrics: Metrics) -> Verdict:
        """Take the evaluation of a round's model.

        A round that is evaluated anew, as after an interruption, has been judged already and
        counts once. A metric that is missing, NaN or infinite neither stops the job nor counts
        as an evaluation without improvement.

        Args:
            round_number: rounds come in their order.
            metrics: of that model, as the sites' evaluations give them.
        """
        if round_number <= self._round:
            return Verdict(self.reason, ())
        is_first = self._round < 0
        self._round = round_number
        self._compare(metrics)
        self.reason = self.reason or self._reached(metrics) or self._no_improvement()
        return Verdict(self.reason, self._warnings(metrics) if is_first else ())

    def _compare(self, metrics: Metrics) -> None:
        if self._best_round.compare(self._round, metrics):
            self._without_improvement = 0
        elif _finite(metrics, self._best_round.metric) is not None:
            self._without_improvement += 1

    def _reached(self, metrics: Metrics) -> str | None:
        if self._condition is None:
            return None
        value = _finite(metrics, self._condition.metric)
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
        return tuple(
            self._warning(key, metric, metrics)
            for metric, key in waiting.items()
            if metric not in metrics
        )

    def _warning(self, key: str, metric: str, metrics: Metrics) -> str:
        others = f"they report {', '.join(sorted(metrics))}" if metrics else "they report none"
        question = did_you_mean(metric, metrics)
        return (
            f"{key} waits for {metric}, which is not among the metrics of round {self._round} "
            f"({others}); unless the sites' scripts send it, it never ends the job"
            f"{f'; {question}' if question else ''}"
        )


def _finite(metrics: Metrics, name: str) -> float | None:
    value = metrics.get(name)
    return value if value is not None and math.isfinite(value) else None


def _shown(value: float, condition: Condition) -> str:
    """The value, with as few digits as still meet the condition, four or more."""
    texts = (f"{value:.{digits}g}" for digits in range(4, 17))
    return next((text for text in texts if condition.holds(float(text))), repr(value))
