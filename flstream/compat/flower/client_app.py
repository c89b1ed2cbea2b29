"""Flower's ClientApp with its mods, and the older clients with parameters as lists of arrays."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any, TypeVar

from flstream.compat.flower.messages import CATEGORIES, Context, Message
from flstream.compat.flower.records import ArrayRecord, ConfigRecord, MetricRecord, RecordDict

ClientAppCallable = Callable[[Message, Context], Message]
Mod = Callable[[Message, Context, ClientAppCallable], Message]
FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])


def _with_mods(handler: ClientAppCallable, mods: list[Mod]) -> ClientAppCallable:
    """Return a handler within mods, the first of which is the outermost."""

    def wrapped(inner: ClientAppCallable, mod: Mod) -> ClientAppCallable:
        return lambda message, context: mod(message, context, inner)

    for mod in reversed(mods):
        handler = wrapped(handler, mod)
    return handler


class ClientApp:
    """App of a node: a function for each type of message.

    Args:
        client_fn: Function of a context that makes a client, in place of the functions.
        mods: Mods of all functions, the outermost first.
    """

    def __init__(
        self, client_fn: Callable[..., Any] | None = None, mods: list[Mod] | None = None
    ) -> None:
        self._mods = list(mods or [])
        self._handlers: dict[str, ClientAppCallable] = {}
        self._lifespan: Callable[[Context], Any] = lambda _: nullcontext()
        self._client = None if client_fn is None else _with_mods(by_client(client_fn), self._mods)

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
        self, category: str, action: str, mods: list[Mod] | None
    ) -> Callable[[FunctionT], FunctionT]:
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

    def train(self, action: str = "default", *, mods: list[Mod] | None = None) -> Any:
        """Return a decorator for the function of train messages."""
        return self._registering(CATEGORIES[0], action, mods)

    def evaluate(self, action: str = "default", *, mods: list[Mod] | None = None) -> Any:
        """Return a decorator for the function of evaluate messages."""
        return self._registering(CATEGORIES[1], action, mods)

    def query(self, action: str = "default", *, mods: list[Mod] | None = None) -> Any:
        """Return a decorator for the function of query messages."""
        return self._registering(CATEGORIES[2], action, mods)

    def lifespan(self) -> Callable[[FunctionT], FunctionT]:
        """Return a decorator for a generator function around each message."""

        def register(function: FunctionT) -> FunctionT:
            self._lifespan = lifespan_of(function)
            return function

        return register


def lifespan_of(function: Callable[[Context], Iterator[None]]) -> Callable[[Context], Any]:
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


_ENDED = object()


class NumPyClient:
    """Client with parameters as a list of NumPy arrays; methods that are missing answer nothing."""

    context: Context

    def get_context(self) -> Context:
        """Return the context of the node."""
        return self.context

    def to_client(self) -> NumPyClient:
        """Return the client itself."""
        return self


class Client(NumPyClient):
    """Base class of clients of parameters in Flower's oldest form, which is refused by name."""

    def to_client(self) -> NumPyClient:
        """Refuse the client."""
        raise NotImplementedError(
            f"{type(self).__name__} is a flwr.client.Client, whose FitIns and FitRes flstream does "
            "not have; derive it from NumPyClient, or use functions of a ClientApp"
        )


LEAST_WEIGHT = 1e-15
"""Number that a weight of 0 becomes: an update's weight is above it."""

ARRAYS, CONFIG, METRICS = "arrays", "config", "metrics"
"""Names of the records in messages of strategies, unless a strategy has others."""


def by_client(client_fn: Callable[..., Any]) -> ClientAppCallable:
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
            sent = ArrayRecord(dict(zip(arrays, map(_array, parameters), strict=True)))
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


def _array(value: Any) -> Any:
    import numpy as np

    from flstream.compat.flower.records import Array

    return Array(np.asarray(value))
