"""Flower's ServerApp, and what a strategy finds."""

from __future__ import annotations

import pprint
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, TypeVar

from flstream.compat.flower.client_app import lifespan_of
from flstream.compat.flower.messages import Context
from flstream.compat.flower.records import ArrayRecord, MetricRecord

MainT = TypeVar("MainT", bound=Callable[..., Any])

_OLD = (
    "a ServerApp with server_fn, server or strategy is of Flower's older API, which flstream does "
    "not have; give it a function with @app.main(), and start a strategy of flwr.serverapp there"
)


class ServerApp:
    """App of the server: its main function of a grid and a context."""

    def __init__(self, *args: Any, **older: Any) -> None:
        if args or older:
            raise NotImplementedError(_OLD)
        self._main: Callable[..., Any] | None = None
        self._lifespan: Callable[[Context], Any] = lambda _: nullcontext()

    def __call__(self, grid: Any, context: Context) -> None:
        """Call the main function."""
        if self._main is None:
            raise ValueError("the ServerApp has no main function; decorate one with @app.main()")
        with self._lifespan(context):
            self._main(grid, context)

    def main(self) -> Callable[[MainT], MainT]:
        """Return a decorator for the main function."""

        def register(function: MainT) -> MainT:
            self._main = function
            return function

        return register

    def lifespan(
        self,
    ) -> Callable[[Callable[[Context], Iterator[None]]], Callable[[Context], Iterator[None]]]:
        """Return a decorator for a generator function around the main function."""

        def register(
            function: Callable[[Context], Iterator[None]],
        ) -> Callable[[Context], Iterator[None]]:
            self._lifespan = lifespan_of(function)
            return function

        return register


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
