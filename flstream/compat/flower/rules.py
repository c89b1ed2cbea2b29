"""Rules of Flower's strategies, by Flower's own formulas, for the run's folds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from flstream.aggregation.optimizers import ServerOptimizer
from flstream.workflows import GroupUpdate, ServerStep, TensorGroup

if TYPE_CHECKING:
    from flstream.aggregation.elements import Array


COMBINATIONS = ("median", "trimmed", "bulyan")
"""Rules of each number over all updates, without weights; the other ones are steps."""


@dataclass(frozen=True)
class Adaptive(ServerStep):
    """FedAdagrad, FedAdam and FedYogi: ``eta m / (sqrt(v) + tau)``, Adam's corrected for bias."""

    rule: str
    round: int
    eta: float
    beta_1: float
    beta_2: float
    tau: float
    begins: bool
    moments = ("first", "second")

    def step(self, difference: Array, moments: dict[str, Array], updates: int) -> Array:
        """Make a step; see :class:`ServerStep`."""
        square, second, eta = difference**2, moments["second"], self.eta
        first = self.beta_1 * moments["first"] + (1 - self.beta_1) * difference
        match self.rule:
            case "adagrad":
                second = second + square
            case "adam":
                second = self.beta_2 * second + (1 - self.beta_2) * square
                corrected = np.sqrt(1 - self.beta_2 ** (self.round + 1.0))
                eta = eta * corrected / (1 - self.beta_1 ** (self.round + 1.0))
            case _:
                second = second - (1 - self.beta_2) * square * np.sign(second - square)
        moments["first"], moments["second"] = first, second
        return eta * first / (np.sqrt(second) + self.tau)


@dataclass(frozen=True)
class Combination:
    """A statistic of each number over the updates: median, trimmed mean, or Bulyan's.

    Attributes:
        name: Its name.
        share: Share of the updates that a trimmed mean leaves out at either end.
        malicious: Number of malicious nodes that Bulyan expects.
    """

    name: str
    share: float = 0.0
    malicious: int = 0

    def groups(self, names: Sequence[str]) -> Mapping[str, Sequence[str]]:
        """Return a group for each tensor."""
        return {name: [name] for name in names}

    def combine(self, group: TensorGroup, updates: Sequence[GroupUpdate]) -> Mapping[str, Array]:
        """Return the statistic of the updates' tensors."""
        values: Any = np.stack([update.tensors[group.name] for update in updates])
        count = len(values)
        match self.name:
            case "median":
                combined = np.median(values, axis=0)
            case "trimmed":
                cut = int(self.share * count)
                combined = np.sort(values, axis=0)[cut : count - cut].mean(axis=0)
            case _:
                near = count - 2 * self.malicious
                apart = np.abs(values - np.median(values, axis=0))
                order = np.argsort(apart, axis=0, kind="stable")[:near]
                combined = np.take_along_axis(values, order, axis=0).mean(axis=0)
        return {group.name: combined}


def rule_of(name: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of ``run.fold`` that make a strategy's rule.

    Args:
        name: Name of the rule.
        arguments: The strategy's own arguments, its round, and whether its steps begin.
    """
    begins = arguments["begins"]
    match name:
        case "momentum":
            rate, momentum = arguments["server_learning_rate"], arguments["server_momentum"]
            return {"step": ServerOptimizer("fedavgm", rate, momentum, begins=begins)}
        case "adagrad" | "adam" | "yogi":
            numbers = {key: arguments[key] for key in ("eta", "beta_1", "beta_2", "tau")}
            return {"step": Adaptive(name, arguments["round"], begins=begins, **numbers)}
    malicious = int(arguments.get("num_malicious_nodes", 0))
    return {"tensors": Combination(name, arguments.get("beta", 0.0), malicious)}
