"""Flower's strategies: what they send, and how replies become the next arrays and metrics.

Arrays of replies that nobody has looked at are folded by the run, as they come; those of a strategy
of one's own are read from files.
"""

from __future__ import annotations

import io
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, ClassVar, cast

import numpy as np

from flstream.client.seeding import kept_generators
from flstream.compat.flower.aggregates import (
    Result,
    aggregate_arrayrecords,
    aggregate_metricrecords,
    distances,
    sample_nodes,
    validate_message_reply_consistency,
    weights_of,
)
from flstream.compat.flower.apps import ARRAYS, CONFIG
from flstream.compat.flower.grid import (
    WEIGHT,
    CaughtError,
    FirstArrays,
    Grid,
    Replies,
    ReplyUpdate,
    Sending,
)
from flstream.compat.flower.messages import Message
from flstream.compat.flower.records import (
    ArrayRecord,
    ConfigRecord,
    MetricRecord,
    RecordDict,
    pack_records,
    unpack_records,
)
from flstream.compat.flower.rules import COMBINATIONS
from flstream.errors import AggregationError
from flstream.worker.messages import LEAST_WEIGHT

log = logging.getLogger("flwr")

Metrics = Callable[[list[RecordDict], str], MetricRecord]
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class Strategy(ABC):
    """Strategy: what nodes are sent in a round, and how their replies are aggregated."""

    @abstractmethod
    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        """Return the messages of a round of training."""

    @abstractmethod
    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the next arrays and the metrics of a round, or None for either."""

    @abstractmethod
    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        """Return the messages of an evaluation."""

    @abstractmethod
    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the metrics of an evaluation; None where there are none."""

    @abstractmethod
    def summary(self) -> None:
        """Log the strategy's settings."""

    def start(
        self,
        grid: Any,
        initial_arrays: ArrayRecord,
        num_rounds: int = 3,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Run the strategy for some rounds.

        Args:
            grid: The grid.
            initial_arrays: The arrays to begin with.
            num_rounds: Number of rounds.
            timeout: Seconds that a node may take.
            train_config: Settings that are sent to train; None for none.
            evaluate_config: Settings that are sent to evaluate; None for none.
            evaluate_fn: Function of the round and the arrays that scores them at the server, also
                before the first round; None for none. A resumed run does not call it again for
                what it has scored before.
        """
        if isinstance(grid, FirstArrays):
            raise CaughtError(initial_arrays)
        began = time.monotonic()
        log.info("Starting %s strategy:", type(self).__name__)
        self.summary()
        train_config, evaluate_config = (
            train_config or ConfigRecord(),
            evaluate_config or ConfigRecord(),
        )
        result, arrays = Result(arrays=initial_arrays), initial_arrays

        def score(number: int) -> MetricRecord | None:
            if evaluate_fn is None:
                return None
            grid.store(arrays)
            packed = grid.remember(
                f"evaluate_fn of round {number}", partial(_scored, evaluate_fn, number, arrays)
            )
            metrics = cast(MetricRecord, unpack_records(packed)["metrics"]) if packed else None
            if metrics is not None:
                log.info("\t└──> evaluate_fn: %s", metrics)
                result.evaluate_metrics_serverapp[number] = metrics
            return metrics

        grid.report(arrays, score(0) or {})
        for number in range(1, num_rounds + 1):
            log.info("\n[ROUND %s/%s]", number, num_rounds)
            replies = grid.send_and_receive(
                messages=self.configure_train(number, arrays, train_config, grid), timeout=timeout
            )
            aggregate, metrics = self.aggregate_train(number, replies)
            if aggregate is not None:
                result.arrays = arrays = aggregate
            if metrics is not None:
                log.info("\t└──> train: %s", metrics)
                result.train_metrics_clientapp[number] = metrics
            replies = grid.send_and_receive(
                messages=self.configure_evaluate(number, arrays, evaluate_config, grid),
                timeout=timeout,
            )
            scored = self.aggregate_evaluate(number, replies)
            if scored is not None:
                log.info("\t└──> evaluate: %s", scored)
                result.evaluate_metrics_clientapp[number] = scored
            central = score(number)
            grid.report(arrays, {**(scored or {}), **(central or {})})
        grid.last = grid.store(arrays) or grid.last
        log.info("\nThe strategy took %.2f s\n", time.monotonic() - began)
        for line in io.StringIO(repr(result)):
            log.info("\t%s", line.rstrip("\n"))
        return result


def _scored(evaluate_fn: EvaluateFn, number: int, arrays: ArrayRecord) -> bytes:
    """Score arrays; return no bytes where the function has no metrics."""
    with kept_generators():  # which a replay does not draw from either
        metrics = evaluate_fn(number, arrays)
    return b"" if metrics is None else pack_records(RecordDict({"metrics": metrics}))


class FedAvg(Strategy):
    """Federated averaging (McMahan et al. 2017, arXiv:1602.05629).

    Args:
        fraction_train: Share of the nodes that train in a round.
        fraction_evaluate: Share of the nodes that evaluate.
        min_train_nodes: Least number of nodes that train.
        min_evaluate_nodes: Least number of nodes that evaluate.
        min_available_nodes: Least number of nodes of the run.
        weighted_by_key: Name of the metric by which replies are weighted.
        arrayrecord_key: Name of the arrays in messages.
        configrecord_key: Name of the settings in messages.
        train_metrics_aggr_fn: Function of replies and that name that aggregates training's metrics.
        evaluate_metrics_aggr_fn: The same for evaluations.
        own: Arguments of the derived strategy.
    """

    _arguments: ClassVar[Mapping[str, float]] = {}
    """Arguments of the strategy's own, with their defaults; each becomes an attribute."""

    _rule_name: ClassVar[str] = ""
    """Name of the rule by which arrays are folded; empty for their weighted mean."""

    # Whether the last replies had arrays of the names and shapes that were sent, and whether
    # moments of its own lie beside a model.
    _fit = _has_stepped = False

    def __init__(
        self,
        fraction_train: float = 1.0,
        fraction_evaluate: float = 1.0,
        min_train_nodes: int = 2,
        min_evaluate_nodes: int = 2,
        min_available_nodes: int = 2,
        weighted_by_key: str = WEIGHT,
        arrayrecord_key: str = ARRAYS,
        configrecord_key: str = CONFIG,
        train_metrics_aggr_fn: Metrics | None = None,
        evaluate_metrics_aggr_fn: Metrics | None = None,
        **own: float,
    ) -> None:
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_train_nodes = min_train_nodes if fraction_train else 0
        self.min_evaluate_nodes = min_evaluate_nodes if fraction_evaluate else 0
        self.min_available_nodes = min_available_nodes
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        self.train_metrics_aggr_fn = train_metrics_aggr_fn or aggregate_metricrecords
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn or aggregate_metricrecords
        if unknown := own.keys() - self._arguments.keys():
            raise TypeError(
                f"{type(self).__name__} has no argument {min(unknown)!r}; its own are "
                f"{', '.join(self._arguments) or 'none'}, beside those of FedAvg"
            )
        vars(self).update({**self._arguments, **own})

    def summary(self) -> None:
        """Log the strategy's settings."""
        for name, value in vars(self).items():
            if isinstance(value, int | float | str):
                log.info("\t├── %s: %s", name, value)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        """Return a message for each drawn node, with the arrays and the settings."""
        return self._messages("train", server_round, arrays, config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        """Return a message for each drawn node, with the arrays and the settings."""
        return self._messages("evaluate", server_round, arrays, config, grid)

    def _messages(
        self, kind: str, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> list[Message]:
        share, least = getattr(self, f"fraction_{kind}"), getattr(self, f"min_{kind}_nodes")
        if share == 0.0:
            return []
        size = max(int(len(grid.get_node_ids()) * share), least)
        nodes, among = sample_nodes(grid, self.min_available_nodes, size)
        log.info("configure_%s: %s of %s nodes", kind, len(nodes), len(among))
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        return self._construct_messages(record, nodes, kind)

    def _construct_messages(
        self, record: RecordDict, node_ids: list[int], message_type: str
    ) -> list[Message]:
        messages = [Message(record, node, message_type) for node in node_ids]
        # An app's own method may look at replies, and a strategy that compares them does. Those of
        # the first round are looked at, too: they show whether they fit the arrays that were sent.
        own = type(self).aggregate_train, type(self)._selected
        is_plain = own == (FedAvg.aggregate_train, FedAvg._selected)
        for message in messages:
            message.weighted_by = self.weighted_by_key
            message.is_folded_unseen = message_type == "train" and self._fit and is_plain
        return messages

    def _check_and_log_replies(
        self, replies: Iterable[Message], is_train: bool, validate: bool = True
    ) -> tuple[list[Message], list[Message]]:
        """Return the replies with content and those with errors, which are logged."""
        replies = list(replies)
        valid = [reply for reply in replies if reply.has_content()]
        errors = [reply for reply in replies if reply.has_error()]
        if replies:
            kind = "train" if is_train else "evaluate"
            log.info("aggregate_%s: %s results, %s failures", kind, len(valid), len(errors))
        for reply in errors:
            log.info("\t> node %s: %s", reply.metadata.src_node_id, reply.error.reason)
        if validate and valid:
            contents = [reply.content for reply in valid]
            validate_message_reply_consistency(contents, self.weighted_by_key, is_train)
        return valid, errors

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Return the weighted means of arrays and metrics."""
        arrays = self._folded_unseen(replies, server_round)
        valid, errors = self._check_and_log_replies(replies, is_train=True)
        if errors and not valid:
            raise AggregationError(f"all {len(errors)} nodes failed: {errors[0].error.reason}")
        if not valid:
            return None, None
        contents = [reply.content for reply in valid]
        if arrays is None:
            contents = self._selected(contents)
            if not contents:
                return None, None
            arrays = self._aggregated(contents, server_round)
        return arrays, self.train_metrics_aggr_fn(contents, self.weighted_by_key)

    def _selected(self, contents: list[RecordDict]) -> list[RecordDict]:
        """Return the replies that count."""
        return contents

    def _folded_unseen(self, replies: Iterable[Message], server_round: int) -> ArrayRecord | None:
        """Fold replies that nobody has looked at, as they come; None where that is not possible."""
        if not isinstance(replies, Replies) or replies.look is None:
            return None
        grid, sending = replies.sent
        is_one = len(set(sending.requests)) == 1
        return self._fold(grid, sending, server_round) if is_one else None

    def _aggregated(self, contents: list[RecordDict], server_round: int) -> ArrayRecord:
        """Aggregate the arrays of replies that were looked at."""
        origins = [next(iter(content.array_records.values())).origin for content in contents]
        updates = [origin for origin in origins if isinstance(origin, ReplyUpdate)]
        self._fit = len(updates) == len(origins)
        places = [update.place for update in updates]
        is_twice = len(set(places)) < len(places)
        requests = {(u.sending.number, u.sending.requests[u.place]) for u in updates}
        rule = self._rule()
        if not self._fit or is_twice or len(requests) > 1:
            if rule:
                raise AggregationError(
                    f"{type(self).__name__} takes replies as they have come, with arrays of the "
                    "names and shapes that were sent; use FedAvg where they are changed"
                )
            return aggregate_arrayrecords(contents, self.weighted_by_key)
        own, weights = weights_of(contents, self.weighted_by_key), None
        has_weights = rule not in COMBINATIONS
        if has_weights and own != [update.weight for update in updates]:  # which the run knows
            weights = [max(weight, LEAST_WEIGHT) for weight in own]
        return self._fold(updates[0].grid, updates[0].sending, server_round, places, weights)

    def _rule(self) -> str:
        """Return the name of the rule by which arrays are folded; empty for the weighted mean."""
        return self._rule_name

    def _fold(
        self,
        grid: Grid,
        sending: Sending,
        server_round: int,
        places: list[int] | None = None,
        weights: list[float] | None = None,
    ) -> ArrayRecord:
        """Fold updates by the strategy's rule, with moments of its own."""
        if not (rule := self._rule()):
            return grid.fold(sending, places, weights)
        begins = not self._has_stepped
        if rule not in COMBINATIONS:
            if not begins and grid.stepped_by is not self:
                raise AggregationError(
                    f"another strategy has folded since {type(self).__name__} did, so its moments "
                    "are gone; run strategies that keep moments one after another"
                )
            grid.stepped_by, self._has_stepped = self, True
        arguments = {name: float(getattr(self, name)) for name in self._arguments}
        facts = {**arguments, "round": server_round, "begins": begins}
        return grid.fold(sending, places, weights, (rule, facts))

    def aggregate_evaluate(
        self, server_round: int, replies: Iterable[Message]
    ) -> MetricRecord | None:
        """Return the weighted means of metrics."""
        valid, _ = self._check_and_log_replies(replies, is_train=False)
        if not valid:
            return None
        contents = [reply.content for reply in valid]
        return self.evaluate_metrics_aggr_fn(contents, self.weighted_by_key)


class FedProx(FedAvg):
    """FedAvg of nodes that stay near the arrays they received (Li et al. 2020, arXiv:1812.06127).

    Its ``proximal_mu`` is the factor of the proximal term, ``proximal-mu`` in messages.
    """

    _arguments: ClassVar = {"proximal_mu": 0.0}
    proximal_mu: float

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        """Return FedAvg's messages, with ``proximal-mu`` among the settings."""
        config["proximal-mu"] = self.proximal_mu
        return super().configure_train(server_round, arrays, config, grid)


class FedAvgM(FedAvg):
    """FedAvg with momentum at the server (Hsu et al. 2019, arXiv:1909.06335).

    ``server_momentum`` is the share of the momentum that stays.
    """

    _arguments: ClassVar = {"server_learning_rate": 1.0, "server_momentum": 0.0}
    _rule_name = "momentum"

    def _rule(self) -> str:
        is_mean = all(getattr(self, name) == value for name, value in self._arguments.items())
        return "" if is_mean else self._rule_name


class FedOpt(FedAvg):
    """FedAvg with an adaptive step at the server (Reddi et al. 2021, arXiv:2003.00295).

    ``eta`` is the server's learning rate, ``eta_l`` that of nodes, which is theirs to use;
    ``beta_1`` and ``beta_2`` are the shares of the moments that stay, ``tau`` is the adaptivity.
    """

    _arguments: ClassVar = {"eta": 0.1, "eta_l": 0.1, "beta_1": 0.0, "beta_2": 0.0, "tau": 1e-3}


class FedAdagrad(FedOpt):
    """FedOpt with Adagrad's second moment."""

    _rule_name = "adagrad"


class FedAdam(FedOpt):
    """FedOpt with Adam's second moment; the step is corrected for bias, as Flower does."""

    _arguments: ClassVar = {**FedOpt._arguments, "beta_1": 0.9, "beta_2": 0.99}
    _rule_name = "adam"


class FedYogi(FedOpt):
    """FedOpt with Yogi's second moment."""

    _arguments: ClassVar = {**FedAdam._arguments, "eta": 1e-2, "eta_l": 0.0316}
    _rule_name = "yogi"


class FedMedian(FedAvg):
    """Median of each number (Yin et al. 2018, arXiv:1803.01498)."""

    _rule_name = "median"


class FedTrimmedAvg(FedAvg):
    """Mean of each number without the largest and the smallest (Yin et al. 2018).

    ``beta`` is the share of the replies that is left out at either end, below a half.
    """

    _arguments: ClassVar = {"beta": 0.2}
    _rule_name = "trimmed"
    beta: float

    def __init__(self, *args: Any, **others: Any) -> None:
        super().__init__(*args, **others)
        if not 0.0 <= self.beta < 0.5:
            raise ValueError(f"FedTrimmedAvg(beta={self.beta}): give it from 0 to below 0.5")


class MultiKrum(FedAvg):
    """Mean of the replies that are nearest to the others (Blanchard et al. 2017, arXiv:1703.02757).

    ``num_malicious_nodes`` nodes may be malicious, and ``num_nodes_to_select`` are averaged.
    """

    _arguments: ClassVar = {"num_malicious_nodes": 0, "num_nodes_to_select": 1}
    num_malicious_nodes: int
    num_nodes_to_select: int

    def _nearest(self, contents: list[RecordDict], count: int) -> list[RecordDict]:
        """Return the replies with the least sums of distances to their nearest others."""
        records = [next(iter(content.array_records.values())) for content in contents]
        closest = max(1, len(contents) - self.num_malicious_nodes - 2)
        # Each is nearest to itself, at a distance of 0.
        scores = np.sort(distances(records), axis=1)[:, 1 : closest + 1].sum(axis=1)
        return [contents[place] for place in np.argsort(scores, kind="stable")[:count]]

    def _selected(self, contents: list[RecordDict]) -> list[RecordDict]:
        return self._nearest(contents, self.num_nodes_to_select)


class Krum(MultiKrum):
    """The reply that is nearest to the others."""


class Bulyan(MultiKrum):
    """Mean of the numbers nearest to the median, of the replies that Krum chooses.

    El Mhamdi et al. 2018, arXiv:1802.07927.
    """

    _rule_name = "bulyan"

    def _selected(self, contents: list[RecordDict]) -> list[RecordDict]:
        least = 4 * self.num_malicious_nodes + 3
        if len(contents) < least:
            log.warning(
                "Bulyan against %s malicious nodes needs %s replies, and has %s: no aggregate",
                self.num_malicious_nodes,
                least,
                len(contents),
            )
            return []
        return self._nearest(contents, len(contents) - 2 * self.num_malicious_nodes)
