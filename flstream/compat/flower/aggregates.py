"""Helpers of strategies: drawn nodes, aggregates of replies' records, and results."""

from __future__ import annotations

import logging
import pprint
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from flstream.compat.flower.grid import ReplyUpdate
from flstream.compat.flower.records import (
    Array,
    ArrayRecord,
    ConfigRecord,
    MetricRecord,
    RecordDict,
)

log = logging.getLogger("flwr")


class InconsistentMessageReplies(Exception):  # noqa: N818 (Flower's name)
    """Replies have not the records, or the names in them, that a strategy needs."""


@dataclass
class Result:
    """Result of a strategy.

    Attributes:
        arrays: The final arrays.
        train_metrics_clientapp: Metrics of training, by round.
        evaluate_metrics_clientapp: Metrics of the nodes' evaluations, by round.
        evaluate_metrics_serverapp: Metrics of ``evaluate_fn``, by round from 0.
    """

    arrays: ArrayRecord = field(default_factory=ArrayRecord)
    train_metrics_clientapp: dict[int, MetricRecord] = field(default_factory=dict)
    evaluate_metrics_clientapp: dict[int, MetricRecord] = field(default_factory=dict)
    evaluate_metrics_serverapp: dict[int, MetricRecord] = field(default_factory=dict)

    def __repr__(self) -> str:
        parts = [f"Arrays of {self.arrays.count_bytes():,} bytes"]
        for title, metrics in (
            ("Metrics of training", self.train_metrics_clientapp),
            ("Metrics of the nodes' evaluations", self.evaluate_metrics_clientapp),
            ("Metrics of evaluate_fn", self.evaluate_metrics_serverapp),
        ):
            by_round = {number: dict(record) for number, record in metrics.items()}
            parts.append(f"{title}, by round:\n{pprint.pformat(by_round, indent=2)}")
        return "\n\n".join(parts)


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


def weights_of(records: Sequence[RecordDict], key: str) -> list[float]:
    """Return the weights of replies, by the name of their metric."""
    return [float(next(iter(record.metric_records.values()))[key]) for record in records]


def aggregate_metricrecords(records: list[RecordDict], weighting_metric_name: str) -> MetricRecord:
    """Return the weighted means of metrics by name; of lists, number by number."""
    weights = weights_of(records, weighting_metric_name)
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
    weights = weights_of(records, weighting_metric_name)
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


def distances(records: Sequence[ArrayRecord]) -> Any:
    """Return the squared Euclidean distances of arrays: float64, shape (records, records)."""
    distances = np.zeros((len(records), len(records)))
    for name in records[0]:
        stacked = np.stack([record[name].numpy().ravel() for record in records]).astype(np.float64)
        for place, row in enumerate(stacked):
            distances[place] += np.square(stacked - row).sum(axis=1)
    return distances
