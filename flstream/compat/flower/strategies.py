"""Flower's strategies: what they send, and how replies become the next arrays and metrics.

Arrays of replies that nobody has looked at are folded by the run, as they come; those of a strategy
of one's own are read from files.
"""

from __future__ import annotations

import io
import logging
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, cast

import numpy as np

from flstream.client.seeding import kept_generators
from flstream.compat.flower.client_app import ARRAYS, CONFIG, LEAST_WEIGHT
from flstream.compat.flower.grid import WEIGHT, AppGrid, FirstArrays, Replies, ReplyUpdate
from flstream.compat.flower.messages import Message
from flstream.compat.flower.records import (
    Array,
    ArrayRecord,
    ConfigRecord,
    MetricRecord,
    RecordDict,
    pack_records,
    unpack_records,
)
from flstream.compat.flower.server_app import Result

log = logging.getLogger("flwr")

Metrics = Callable[[list[RecordDict], str], MetricRecord]
EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class AggregationError(Exception):
    """Replies cannot be aggregated."""


class InconsistentMessageReplies(Exception):  # noqa: N818 (Flower's name)
    """Replies have not the records, or the names in them, that a strategy needs."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)


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
            grid.begin(initial_arrays)
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
            metrics = _remembered(grid, evaluate_fn, number, arrays)
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


def _remembered(
    grid: AppGrid, evaluate_fn: EvaluateFn, number: int, arrays: ArrayRecord
) -> MetricRecord | None:
    """Score arrays, once in the run."""

    def compute() -> bytes:
        with kept_generators():  # which a replay does not draw from either
            metrics = evaluate_fn(number, arrays)
        return b"" if metrics is None else pack_records(RecordDict({"metrics": metrics}))

    packed = grid.remember(f"evaluate_fn of round {number}", compute)
    return cast(MetricRecord, unpack_records(packed)["metrics"]) if packed else None


def config_to_str(config: ConfigRecord) -> str:
    """Return settings as text, bytes by their length."""
    shown = {
        key: len(value) if isinstance(value, bytes) else value for key, value in config.items()
    }
    return repr(shown)


def log_strategy_start_info(
    num_rounds: int,
    arrays: ArrayRecord,
    train_config: ConfigRecord | None,
    evaluate_config: ConfigRecord | None,
) -> None:
    """Log with what a strategy starts."""
    log.info("\t├── rounds: %d, arrays: %.2f MB", num_rounds, arrays.count_bytes() / 1e6)
    for kind, config in (("train", train_config), ("evaluate", evaluate_config)):
        log.info("\t├── settings to %s: %s", kind, config_to_str(config or ConfigRecord()))


def sample_nodes(
    grid: Any, min_available_nodes: int, sample_size: int
) -> tuple[list[int], list[int]]:
    """Return drawn nodes, and all nodes.

    Raises:
        ValueError: There are fewer nodes than needed; in a simulation none come.
    """
    nodes, least = list(grid.get_node_ids()), max(min_available_nodes, sample_size)
    if len(nodes) < least:
        raise ValueError(
            f"the strategy needs {least} nodes (min_available_nodes, min_train_nodes, "
            f"min_evaluate_nodes), and the run has {len(nodes)}; set clients.count={least}, or "
            "fewer in the strategy"
        )
    return random.sample(nodes, sample_size), nodes


def _weights(records: Sequence[RecordDict], key: str) -> list[float]:
    return [float(next(iter(record.metric_records.values()))[key]) for record in records]


def aggregate_metricrecords(records: list[RecordDict], weighting_metric_name: str) -> MetricRecord:
    """Return the weighted means of metrics by name; of lists, number by number."""
    weights = _weights(records, weighting_metric_name)
    total, sums = sum(weights), dict[str, Any]()
    for record, weight in zip(records, weights, strict=True):
        for metrics in record.metric_records.values():
            for name, value in metrics.items():
                if name != weighting_metric_name:
                    share = np.asarray(value, dtype=np.float64) * (weight / total)
                    sums[name] = sums[name] + share if name in sums else share
    return MetricRecord({name: value.tolist() for name, value in sums.items()})


def aggregate_arrayrecords(records: list[RecordDict], weighting_metric_name: str) -> ArrayRecord:
    """Return the weighted means of arrays, array by array, each in its own dtype."""
    weights = _weights(records, weighting_metric_name)
    total = sum(weights)
    arrays = [next(iter(record.array_records.values())) for record in records]

    def mean(name: str) -> Array:
        dtype = arrays[0][name].numpy().dtype
        parts = (
            record[name].numpy() * (weight / total)
            for record, weight in zip(arrays, weights, strict=True)
        )
        return Array(np.asarray(sum(parts)).astype(dtype))

    return ArrayRecord({name: mean(name) for name in arrays[0]})


def validate_message_reply_consistency(
    replies: list[RecordDict], weighted_by_key: str, check_arrayrecord: bool
) -> None:
    """Refuse replies that have not one record of metrics, and of arrays, with the same names.

    Raises:
        InconsistentMessageReplies: The message says what differs.
    """
    kinds = [("ArrayRecord", "array_records")] if check_arrayrecord else []
    for kind, attribute in (*kinds, ("MetricRecord", "metric_records")):
        by_reply = [list(getattr(reply, attribute).values()) for reply in replies]
        if any(len(records) != 1 for records in by_reply):
            raise InconsistentMessageReplies(f"each reply has to have one {kind}")
        origins = [getattr(record, "origin", None) for [record] in by_reply]
        is_update = all(isinstance(origin, ReplyUpdate) for origin in origins)
        if not is_update and len({frozenset(record) for [record] in by_reply}) > 1:
            raise InconsistentMessageReplies(f"the {kind}s of replies have different names")
    if any(
        not isinstance(next(iter(reply.metric_records.values())).get(weighted_by_key), int | float)
        for reply in replies
    ):
        raise InconsistentMessageReplies(
            f"a MetricRecord has no number {weighted_by_key!r}, by which replies are weighted"
        )


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
    """

    looks_first = False
    """Whether replies are looked at before they are aggregated."""

    weighs = True
    """Whether the arrays' aggregate depends on weights."""

    _fit = False
    """Whether the last replies had arrays of the names and shapes that were sent."""

    _has_stepped = False
    """Whether it has moments, which a step of the server leaves beside the model."""

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
    ) -> None:
        self.fraction_train, self.fraction_evaluate = fraction_train, fraction_evaluate
        self.min_train_nodes = min_train_nodes if fraction_train else 0
        self.min_evaluate_nodes = min_evaluate_nodes if fraction_evaluate else 0
        self.min_available_nodes = min_available_nodes
        self.weighted_by_key = weighted_by_key
        self.arrayrecord_key, self.configrecord_key = arrayrecord_key, configrecord_key
        self.train_metrics_aggr_fn = train_metrics_aggr_fn or aggregate_metricrecords
        self.evaluate_metrics_aggr_fn = evaluate_metrics_aggr_fn or aggregate_metricrecords

    def summary(self) -> None:
        """Log the strategy's settings."""
        for name, value in vars(self).items():
            if isinstance(value, int | float | str):
                log.info("\t├── %s: %s", name, value)

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        """Return a message for each drawn node, with the arrays and the settings."""
        share, least = self.fraction_train, self.min_train_nodes
        return self._messages("train", share, least, server_round, arrays, config, grid)

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        """Return a message for each drawn node, with the arrays and the settings."""
        share, least = self.fraction_evaluate, self.min_evaluate_nodes
        return self._messages("evaluate", share, least, server_round, arrays, config, grid)

    def _messages(
        self,
        kind: str,
        share: float,
        least: int,
        server_round: int,
        arrays: ArrayRecord,
        config: ConfigRecord,
        grid: Any,
    ) -> list[Message]:
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
        # An app's own method may look at replies, and one that compares them does. Those of the
        # first round are looked at, too: they show whether they fit the arrays that were sent.
        is_own = type(self).aggregate_train is not FedAvg.aggregate_train
        for message in messages:
            message.weighted_by = self.weighted_by_key
            is_train = message_type == "train"
            message.is_folded_unseen = is_train and self._fit and not (is_own or self.looks_first)
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
        if not isinstance(replies, Replies) or replies.is_seen:
            return None
        batches = list(dict.fromkeys(replies.batches))
        if len(batches) != 1 or not batches[0].is_folded_unseen:
            return None
        return replies.grid.fold(batches[0], rule=self._rule(server_round))

    def _aggregated(self, contents: list[RecordDict], server_round: int) -> ArrayRecord:
        """Aggregate the arrays of replies that were looked at."""
        origins = [next(iter(content.array_records.values())).origin for content in contents]
        updates = [origin for origin in origins if isinstance(origin, ReplyUpdate)]
        self._fit = len(updates) == len(origins)
        rule = self._rule(server_round)
        sites = [update.site for update in updates]
        is_twice = len(set(sites)) < len(sites)
        is_mixed = len({update.batch.number for update in updates}) > 1
        if len(updates) < len(origins) or is_twice or is_mixed:
            if rule:
                raise AggregationError(
                    f"{type(self).__name__} takes replies as they have come, with arrays of the "
                    "names and shapes that were sent; use FedAvg where they are changed"
                )
            return aggregate_arrayrecords(contents, self.weighted_by_key)
        first = updates[0]
        own, weights = _weights(contents, self.weighted_by_key), None
        if self.weighs and own != [update.weight for update in updates]:  # which the run knows
            weights = [max(weight, LEAST_WEIGHT) for weight in own]
        return first.grid.fold(first.batch, sites, weights, rule)

    def _rule(self, server_round: int) -> tuple[str, Mapping[str, Any]] | None:
        """Name and arguments of the rule of a fold; None for the mean."""
        return None

    def _begins(self) -> bool:
        """Whether the strategy steps for the first time, without moments of its own yet."""
        begins, self._has_stepped = not self._has_stepped, True
        return begins

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

    Args:
        proximal_mu: Factor of the proximal term, which messages carry as ``proximal-mu``.
        others: As for :class:`FedAvg`.
    """

    def __init__(self, *, proximal_mu: float = 0.0, **others: Any) -> None:
        super().__init__(**others)
        self.proximal_mu = proximal_mu

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Any
    ) -> Iterable[Message]:
        """Return FedAvg's messages, with ``proximal-mu`` among the settings."""
        config["proximal-mu"] = self.proximal_mu
        return super().configure_train(server_round, arrays, config, grid)


class FedAvgM(FedAvg):
    """FedAvg with momentum at the server (Hsu et al. 2019, arXiv:1909.06335).

    Args:
        server_learning_rate: Learning rate of the server.
        server_momentum: Share of the momentum that stays.
        others: As for :class:`FedAvg`.
    """

    def __init__(
        self,
        *,
        server_learning_rate: float = 1.0,
        server_momentum: float = 0.0,
        **others: Any,
    ) -> None:
        super().__init__(**others)
        self.server_learning_rate, self.server_momentum = server_learning_rate, server_momentum

    def _rule(self, server_round: int) -> tuple[str, Mapping[str, Any]] | None:
        rate, momentum = self.server_learning_rate, self.server_momentum
        if (rate, momentum) == (1.0, 0.0):
            return None
        facts = {"learning_rate": float(rate), "momentum": float(momentum)}
        return "momentum", {**facts, "begins": self._begins()}


class FedOpt(FedAvg):
    """FedAvg with an adaptive step at the server (Reddi et al. 2021, arXiv:2003.00295).

    Args:
        eta: Learning rate of the server.
        eta_l: Learning rate of nodes, which is theirs to use.
        beta_1: Share of the first moment that stays.
        beta_2: Share of the second moment that stays.
        tau: Adaptivity.
        others: As for :class:`FedAvg`.
    """

    rule = ""

    def __init__(
        self,
        *,
        eta: float = 1e-1,
        eta_l: float = 1e-1,
        beta_1: float = 0.0,
        beta_2: float = 0.0,
        tau: float = 1e-3,
        **others: Any,
    ) -> None:
        super().__init__(**others)
        self.eta, self.eta_l, self.tau = eta, eta_l, tau
        self.beta_1, self.beta_2 = beta_1, beta_2

    def _rule(self, server_round: int) -> tuple[str, Mapping[str, Any]] | None:
        if not self.rule:
            return None
        facts = {name: float(getattr(self, name)) for name in ("eta", "beta_1", "beta_2", "tau")}
        step = {"rule": self.rule, "round": server_round, "begins": self._begins()}
        return "adaptive", {**step, **facts}


class FedAdagrad(FedOpt):
    """FedOpt with Adagrad's second moment."""

    rule = "adagrad"


class FedAdam(FedOpt):
    """FedOpt with Adam's second moment; the step is corrected for bias, as Flower does."""

    rule = "adam"

    def __init__(
        self, *args: Any, beta_1: float = 0.9, beta_2: float = 0.99, **others: Any
    ) -> None:
        super().__init__(beta_1=beta_1, beta_2=beta_2, **others)


class FedYogi(FedAdam):
    """FedOpt with Yogi's second moment."""

    rule = "yogi"

    def __init__(self, *, eta: float = 1e-2, eta_l: float = 0.0316, **others: Any) -> None:
        super().__init__(eta=eta, eta_l=eta_l, **others)


class FedMedian(FedAvg):
    """Median of each number (Yin et al. 2018, arXiv:1803.01498)."""

    weighs = False

    def _rule(self, server_round: int) -> tuple[str, Mapping[str, Any]] | None:
        return "median", {}


class FedTrimmedAvg(FedAvg):
    """Mean of each number without the largest and the smallest (Yin et al. 2018).

    Args:
        beta: Share of the replies that is left out at either end, below a half.
        others: As for :class:`FedAvg`.
    """

    weighs = False

    def __init__(self, *, beta: float = 0.2, **others: Any) -> None:
        if not 0.0 <= beta < 0.5:
            raise ValueError(f"FedTrimmedAvg(beta={beta}): give it a number from 0 to below 0.5")
        super().__init__(**others)
        self.beta = beta

    def _rule(self, server_round: int) -> tuple[str, Mapping[str, Any]] | None:
        return "trimmed", {"share": float(self.beta)}


def _distances(records: Sequence[ArrayRecord]) -> Any:
    """Return the squared Euclidean distances of arrays: float64, shape (records, records)."""
    distances = np.zeros((len(records), len(records)))
    for name in records[0]:
        stacked = np.stack([record[name].numpy().ravel() for record in records]).astype(np.float64)
        for place, row in enumerate(stacked):
            distances[place] += np.square(stacked - row).sum(axis=1)
    return distances


class MultiKrum(FedAvg):
    """Mean of the replies that are nearest to the others (Blanchard et al. 2017, arXiv:1703.02757).

    Args:
        num_malicious_nodes: Number of nodes that may be malicious.
        num_nodes_to_select: Number of replies that are averaged.
        others: As for :class:`FedAvg`.
    """

    looks_first = True

    def __init__(
        self,
        *,
        num_malicious_nodes: int = 0,
        num_nodes_to_select: int = 1,
        **others: Any,
    ) -> None:
        super().__init__(**others)
        self.num_malicious_nodes = num_malicious_nodes
        self.num_nodes_to_select = num_nodes_to_select

    def _nearest(self, contents: list[RecordDict], count: int) -> list[RecordDict]:
        """Return the replies with the least sums of distances to their nearest others."""
        records = [next(iter(content.array_records.values())) for content in contents]
        closest = max(1, len(contents) - self.num_malicious_nodes - 2)
        # Each is nearest to itself, at a distance of 0.
        scores = np.sort(_distances(records), axis=1)[:, 1 : closest + 1].sum(axis=1)
        return [contents[place] for place in np.argsort(scores, kind="stable")[:count]]

    def _selected(self, contents: list[RecordDict]) -> list[RecordDict]:
        return self._nearest(contents, self.num_nodes_to_select)


class Krum(MultiKrum):
    """The reply that is nearest to the others."""


class Bulyan(MultiKrum):
    """Mean of the numbers nearest to the median, of the replies that Krum chooses.

    El Mhamdi et al. 2018, arXiv:1802.07927.

    Args:
        num_malicious_nodes: Number of nodes that may be malicious.
        others: As for :class:`FedAvg`.
    """

    weighs = False

    def _rule(self, server_round: int) -> tuple[str, Mapping[str, Any]] | None:
        return "bulyan", {"malicious": self.num_malicious_nodes}

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
