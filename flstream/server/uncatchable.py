"""Calls of a workflow whose errors pass through it, whatever it catches."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from flstream.debugging import code_failed
from flstream.errors import FlstreamError, MisfitError, WorkflowError

if TYPE_CHECKING:
    from flstream.server.run_state import RunState


class EffectFailedError(BaseException):
    """An effect failed: it passes through a workflow, whatever that catches, and ends the run.

    Attributes:
        error: Why.
    """

    def __init__(self, error: FlstreamError) -> None:
        super().__init__(str(error))
        self.error = error


class _HasState(Protocol):
    @property
    def _state(self) -> RunState: ...


_OwnerT = TypeVar("_OwnerT", bound=_HasState)
_ParamsT = ParamSpec("_ParamsT")
_ResultT = TypeVar("_ResultT")


def uncatchable(
    effect: Callable[Concatenate[_OwnerT, _ParamsT], _ResultT],
) -> Callable[Concatenate[_OwnerT, _ParamsT], _ResultT]:
    """Fail the run; workflow code cannot catch this."""

    @wraps(effect)
    def sealed(owner: _OwnerT, /, *args: _ParamsT.args, **kwargs: _ParamsT.kwargs) -> _ResultT:
        state = owner._state
        if state.failure is None:
            try:
                return effect(owner, *args, **kwargs)
            except FlstreamError as error:
                state.failure = error
            except Exception as error:
                # Not of a kind that is expected, and all the more not to be gone on after.
                code_failed(error)
                state.failure = _misuse(effect, owner, args, kwargs) or WorkflowError(
                    f"run.{effect.__name__}() failed with {type(error).__name__}: {error}; see "
                    "server.log"
                )
                state.failure.__cause__ = error
        raise EffectFailedError(state.failure) from state.failure

    return sealed


def _misuse(
    effect: Callable[..., object], owner: object, args: Sequence[object], names: Mapping[str, Any]
) -> MisfitError | None:
    """Return the error of a call whose arguments are not those of an effect; None if they are."""
    signature = inspect.signature(effect)
    try:
        signature.bind(owner, *args, **names)
    except TypeError as error:
        unknown = next((name for name in names if name not in signature.parameters), "")
        close = get_close_matches(unknown, signature.parameters, 1)
        hint = f"did you mean {close[0]}?" if close else f"it takes {signature}"
        return MisfitError(f"run.{effect.__name__}() {error}; {hint}")
    return None
