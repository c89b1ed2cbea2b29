"""Decorators that receive a model for a function and send its result."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from flstream.client.fl_model import FLModel
from flstream.client.session import current
from flstream.errors import ClientError

Function = Callable[..., Any]


def train(function: Function | None = None, **_: Any) -> Any:
    """Decorate a function that trains the received model and returns the answer.

    The model takes the place of the function's first argument. Metrics that a function decorated
    with :func:`evaluate` has returned in the same task are sent along. In an evaluation, the
    function is not called.

    Args:
        function: The function; it returns an :class:`FLModel` with ``params``.

    Returns:
        A function that returns the answer; None where nothing is to be trained, and when the run
        is over.

    Raises:
        ClientError: The function returned something else; at its call.
    """
    if function is None:
        return train

    @wraps(function)
    def trained(*args: Any, **kwargs: Any) -> FLModel | None:
        session = current()
        if session.has_scored:
            return None  # this turn of the loop was an evaluation, and it is answered
        model = session.receive()
        if model is None or session.kind != "train":
            return None
        answer = _call(function, model, args, kwargs)
        if not isinstance(answer, FLModel):
            raise ClientError(
                f"{function.__name__}(), decorated with train, returned a "
                f"{type(answer).__name__}; it must return an FLModel"
            )
        answer.metrics = answer.metrics if session.metrics is None else dict(session.metrics)
        session.send(answer, clear_cache=False)
        return answer

    return trained


def evaluate(function: Function | None = None, **_: Any) -> Any:
    """Decorate a function that scores the received model, its first argument.

    In an evaluation, the metrics that it returns are the answer. In a training, they are sent with
    the answer of the function that is decorated with :func:`train`.

    Args:
        function: The function; it returns numbers by name.

    Returns:
        A function that returns the metrics; None where a model is to be submitted, and when the
        run is over.

    Raises:
        ClientError: The function returned something else; at its call.
    """
    if function is None:
        return evaluate

    @wraps(function)
    def scored(*args: Any, **kwargs: Any) -> Any:
        session = current()
        model = session.receive()
        if model is None or session.asked_kind("evaluate") == "submit_model":
            return None
        metrics = _call(function, model, args, kwargs)
        if not isinstance(metrics, Mapping):
            raise ClientError(
                f"{function.__name__}(), decorated with evaluate, returned a "
                f"{type(metrics).__name__}; it must return numbers by name, such as "
                "{'accuracy': 0.97}"
            )
        if session.kind == "evaluate":
            session.send(FLModel(metrics=dict(metrics)))
            session.has_scored = True
        else:
            session.metrics = metrics
        return metrics

    return scored


def _call(function: Function, model: FLModel, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call a function with a model in the place of its first argument."""
    first = next(iter(inspect.signature(function).parameters), None)
    if first is None:
        raise ClientError(
            f"{function.__name__}() takes no argument; give it one for the received model"
        )
    return function(model, *args[1:], **{k: v for k, v in kwargs.items() if k != first})
