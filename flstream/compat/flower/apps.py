"""Flower's ClientApp and ServerApp: functions for messages, mods, lifespans, and older clients."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partialmethod
from typing import Any, TypeVar

import numpy as np

from flstream.compat.flower.messages import CATEGORIES, Context, Message
from flstream.compat.flower.records import (
    ArrayRecord,
    ConfigRecord,
    MetricRecord,
    RecordDict,
)

ClientAppCallable = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, ClientAppCallable], Message]
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
"""Names of the records in messages of strategies, unless a strategy has others."""

_ENDED = object()
_OLD = (
    "a ServerApp with server_fn, server or strategy is of Flower's older API, which flstream does "
    "not have; give it a function with @app.main(), and start a strategy of flwr.serverapp there"
)


def _with_mods(handler: ClientAppCallable, mods: list[Mod]) -> ClientAppCallable:
    """Return a handler within mods, the first of which is the outermost."""

    def wrapped(inner: ClientAppCallable, mod: Mod) -> ClientAppCallable:
        return lambda message, context: mod(message, context, inner)

    for mod in reversed(mods):
        handler = wrapped(handler, mod)
    return handler


class _App:
    """App with a function around each call."""

    def __init__(self) -> None:
        self._lifespan: Callable[[Context], Any] = lambda _: nullcontext()

    def lifespan(self) -> Callable[[FunctionT], FunctionT]:
        """Return a decorator for a generator function around each message, or around main."""

        def register(function: FunctionT) -> FunctionT:
            self._lifespan = _lifespan_of(function)
            return function

        return register


class NumPyClient:
    """Client with parameters as a list of NumPy arrays; methods that are missing answer nothing."""

    context: Context

    def get_context(self) -> Context:
        """Return the context of the node."""
        return self.context

    def to_client(self) -> NumPyClient:
        """Return the client itself."""
        return self


class ClientApp(_App):
    """App of a node: a function for each type of message.

    Args:
        client_fn: Function of a context that makes a client, in place of the functions.
        mods: Mods of all functions, the outermost first.
    """

    def __init__(
        self, client_fn: Callable[..., Any] | None = None, mods: list[Mod] | None = None
    ) -> None:
        super().__init__()
        self._mods = list(mods or [])
        self._handlers: dict[str, ClientAppCallable] = {}
        self._client = None if client_fn is None else _with_mods(_by_client(client_fn), self._mods)

    def __call__(self, message: Message, context: Context) -> Message:
        """Handle a message."""
        category, _, action = message.metadata.message_type.partition(".")
        handler = self._client or self._handlers.get(f"{category}.{action or 'default'}")
        if handler is None:
            raise ValueError(
                f"the ClientApp has no function for messages of the type "
                f"{message.metadata.message_type}; decorate one with @app.{category}"
                f"({action!r})".replace("('')", "()")
            )
        with self._lifespan(context):
            return handler(message, context)

    def _registering(
        self, category: str, action: str = "default", *, mods: list[Mod] | None = None
    ) -> Callable[[FunctionT], FunctionT]:
        """Return a decorator for the function of a category's messages."""
        if self._client is not None:
            raise ValueError(f"use either @app.{category}() or client_fn, and not both")

        def register(function: FunctionT) -> FunctionT:
            name = f"{category}.{action}"
            if not action.isidentifier() or name in self._handlers:
                raise ValueError(
                    f"{action!r} is no name for a function of {category} messages, or has one; "
                    "give it another"
                )
            self._handlers[name] = _with_mods(function, [*self._mods, *(mods or [])])
            return function

        return register

    train = partialmethod(_registering, CATEGORIES[0])
    evaluate = partialmethod(_registering, CATEGORIES[1])
    query = partialmethod(_registering, CATEGORIES[2])


def _by_client(client_fn: Callable[..., Any]) -> Callable[[Message, Context], Message]:
    """Return the handler of a function that makes a client for each message."""

    def handle(message: Message, context: Context) -> Message:
        client = client_fn(context).to_client()
        client.context = context
        records = message.content
        arrays = next(iter(records.array_records.values()), ArrayRecord())
        config = dict(next(iter(records.config_records.values()), {}))
        parameters = arrays.to_numpy_ndarrays()
        if message.metadata.message_type == "train":
            parameters, count, metrics = client.fit(parameters, config)
            metrics = MetricRecord({**metrics, "num-examples": count})
            # By the names that the arrays have come with.
            sent = ArrayRecord(dict(zip(arrays, map(np.asarray, parameters), strict=True)))
            return Message(RecordDict({ARRAYS: sent, METRICS: metrics}), reply_to=message)
        if message.metadata.message_type == "evaluate":
            loss, count, metrics = client.evaluate(parameters, config)
            metrics = MetricRecord({"loss": float(loss), **metrics, "num-examples": count})
            return Message(RecordDict({METRICS: metrics}), reply_to=message)
        if not hasattr(client, "get_properties"):
            raise ValueError("the client has no method get_properties for query messages")
        properties = ConfigRecord(client.get_properties(config))
        return Message(RecordDict({CONFIG: properties}), reply_to=message)

    return handle


class ServerApp(_App):
    """App of the server: its main function of a grid and a context."""

    def __init__(self, *args: Any, **older: Any) -> None:
        if args or older:
            raise NotImplementedError(_OLD)
        super().__init__()
        self._main: Callable[..., Any] | None = None

    def __call__(self, grid: Any, context: Context) -> None:
        """Call the main function."""
        if self._main is None:
            raise ValueError("the ServerApp has no main function; decorate one with @app.main()")
        with self._lifespan(context):
            self._main(grid, context)

    def main(self) -> Callable[[FunctionT], FunctionT]:
        """Return a decorator for the main function."""

        def register(function: FunctionT) -> FunctionT:
            self._main = function
            return function

        return register


def _lifespan_of(function: Callable[[Context], Iterator[None]]) -> Callable[[Context], Any]:
    """Return a context manager of a generator function that yields once."""

    @contextmanager
    def lifespan(context: Context) -> Iterator[None]:
        steps = function(context)
        if not inspect.isgenerator(steps):
            raise RuntimeError("the lifespan function has to yield once")
        next(steps)
        try:
            yield
        finally:
            if next(steps, _ENDED) is not _ENDED:
                raise RuntimeError("the lifespan function has to yield once, and no more")

    return lifespan
