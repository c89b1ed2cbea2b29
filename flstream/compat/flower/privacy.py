"""Flower's wrappers of strategies for central differential privacy: clipping, then noise.

Replies are changed before they are aggregated, so their arrays are read by the ServerApp's process.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable
from typing import Any

import numpy as np

from flstream.compat.flower.messages import Message
from flstream.compat.flower.mods import CLIPPING_NORM, NORM_BIT, clipped, noised
from flstream.compat.flower.records import ArrayRecord, ConfigRecord, MetricRecord
from flstream.compat.flower.strategies import Strategy
from flstream.errors import AggregationError

log = logging.getLogger("flwr")


class DifferentialPrivacyServerSideFixedClipping(Strategy):
    """Wrapper that clips updates at the server to one norm, and adds noise to their mean.

    Args:
        strategy: The strategy.
        noise_multiplier: Noise, in units of norm over clients.
        clipping_norm: Largest Euclidean norm of an update.
        num_sampled_clients: Number of nodes that are sampled in a round.
    """

    at_clients = False
    """Whether nodes clip, by a mod."""

    def __init__(
        self,
        strategy: Strategy,
        noise_multiplier: float,
        clipping_norm: float,
        num_sampled_clients: int,
    ) -> None:
        if noise_multiplier < 0 or clipping_norm <= 0 or num_sampled_clients <= 0:
            raise ValueError(
                f"{type(self).__name__} takes a norm and a number of clients above 0, and a noise "
                "multiplier from 0"
            )
        self.strategy, self.noise_multiplier = strategy, noise_multiplier
        self.clipping_norm, self.num_sampled_clients = clipping_norm, num_sampled_clients
        self.current_arrays = ArrayRecord()

    def summary(self) -> None:
        """Log the strategy's settings."""
        log.info("\t├── noise %s, norm %s", self.noise_multiplier, self.clipping_norm)
        self.strategy.summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        """Return the strategy's messages; where nodes clip, with the norm among the settings."""
        self.current_arrays = arrays
        if self.at_clients:
            config[CLIPPING_NORM] = self.clipping_norm
        return self.strategy.configure_train(server_round, arrays, config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        """Return the strategy's messages."""
        return self.strategy.configure_evaluate(server_round, arrays, config, grid)

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the strategy's metrics."""
        return self.strategy.aggregate_evaluate(server_round, replies)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the strategy's arrays with noise, and its metrics."""
        replies = list(replies)
        valid = [reply for reply in replies if reply.has_content()]
        if not valid or len(valid) < len(replies):
            log.info(
                "aggregate_train: %s of %s nodes failed", len(replies) - len(valid), len(replies)
            )
            return None, None
        if len(valid) != self.num_sampled_clients:
            log.warning(
                "%s nodes replied, and the noise is for %s (num_sampled_clients): the guarantee "
                "may not hold",
                len(valid),
                self.num_sampled_clients,
            )
        count = 0
        if not self.at_clients:
            for reply in valid:
                for name, record in list(reply.content.array_records.items()):
                    changed, is_clipped = clipped(record, self.current_arrays, self.clipping_norm)
                    reply.content[name] = changed
                    count += is_clipped
        arrays, metrics = self.strategy.aggregate_train(server_round, valid)
        self._adapt(valid, count)  # before the noise, as Flower does
        if arrays is not None:
            deviation = self.noise_multiplier * self.clipping_norm / self.num_sampled_clients
            arrays = noised(arrays, deviation)
        return arrays, metrics

    def _adapt(self, valid: list[Message], count: int) -> None:
        """Change the norm for the next round."""


class DifferentialPrivacyClientSideFixedClipping(DifferentialPrivacyServerSideFixedClipping):
    """The same, where nodes clip by ``fixedclipping_mod``."""

    at_clients = True


class DifferentialPrivacyServerSideAdaptiveClipping(DifferentialPrivacyServerSideFixedClipping):
    """Wrapper that clips updates to a quantile of their norms (Andrew et al. 2021).

    Args:
        strategy: The strategy.
        noise_multiplier: Noise, in units of norm over clients.
        num_sampled_clients: Number of nodes that are sampled in a round.
        initial_clipping_norm: Norm of the first round.
        target_clipped_quantile: Share of updates that are to be clipped.
        clip_norm_lr: Rate at which the norm follows.
        clipped_count_stddev: Noise of the count of clipped updates; None for a twentieth of the
            nodes.
    """

    def __init__(
        self,
        strategy: Strategy,
        noise_multiplier: float,
        num_sampled_clients: int,
        initial_clipping_norm: float = 0.1,
        target_clipped_quantile: float = 0.5,
        clip_norm_lr: float = 0.2,
        clipped_count_stddev: float | None = None,
    ) -> None:
        deviation = clipped_count_stddev
        if deviation is None:
            deviation = num_sampled_clients / 20 if noise_multiplier else 0.0
        if noise_multiplier:
            if noise_multiplier >= 2 * deviation:
                raise ValueError(
                    f"noise_multiplier is {noise_multiplier}, and clipped_count_stddev {deviation} "
                    "is too small for it; raise the latter above a half of it"
                )
            noise_multiplier = (noise_multiplier**-2 - (2 * deviation) ** -2) ** -0.5
        super().__init__(strategy, noise_multiplier, initial_clipping_norm, num_sampled_clients)
        self.clipped_count_stddev = deviation
        self.target_clipped_quantile, self.clip_norm_lr = target_clipped_quantile, clip_norm_lr

    def _adapt(self, valid: list[Message], count: int) -> None:
        if self.at_clients:
            count = sum(_norm_bit(reply) for reply in valid)
        share = float(np.random.normal(count, self.clipped_count_stddev)) / len(valid)
        self.clipping_norm *= math.exp(-self.clip_norm_lr * (share - self.target_clipped_quantile))


class DifferentialPrivacyClientSideAdaptiveClipping(DifferentialPrivacyServerSideAdaptiveClipping):
    """The same, where nodes clip by ``adaptiveclipping_mod``."""

    at_clients = True


def _norm_bit(reply: Message) -> int:
    """Return whether a node has clipped its update, as its mod says."""
    for metrics in reply.content.metric_records.values():
        if NORM_BIT in metrics:
            return int(metrics[NORM_BIT])
    raise AggregationError(
        f"a reply has no metric {NORM_BIT!r}; give the ClientApp adaptiveclipping_mod"
    )
