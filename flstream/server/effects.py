"""The effects of a workflow: numbered, recorded, replayed on resume, and never caught."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from functools import wraps
from numbers import Number
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
)

import msgspec
import xxhash

from flstream.debugging import code_failed
from flstream.errors import FlstreamError, MisfitError, ReplayMismatchError, WorkflowError
from flstream.telemetry.events import UNSYNCED, EffectDone, Emit, ModelRecord
from flstream.telemetry.exact import decode_record, encode_record
from flstream.telemetry.halts import halt_at

if TYPE_CHECKING:
    from flstream.server.run_state import RunState

ResultT = TypeVar("ResultT")


def _number(value: object) -> str:
    """Return NumPy's numbers, of weights that a workflow computes, in words."""
    if isinstance(value, Number):
        return repr(value)
    raise TypeError(f"a {type(value).__name__} cannot be kept in the journal")


# In one order, so that sets and mappings that are equal have one digest.
_arguments = msgspec.msgpack.Encoder(enc_hook=_number, order="deterministic")


class Effect(NamedTuple, Generic[ResultT]):
    """An effect that is done: what the program gets to see of it.

    Attributes:
        number: Its number, from 1.
        result: What came of it, as its record has it.
        model: The model that it made; None if it made none.
        is_new: Whether it was done now.
    """

    number: int
    result: ResultT
    model: ModelRecord | None
    is_new: bool


class EffectJournal:
    """Numbers the effects of a workflow, and does each of them once.

    An effect that the journal knows is not done again: its record gives what came of it. The first
    one that it does not know is done, and from there on the run is live.

    Attributes:
        asked: Number of effects that the workflow has asked for.
        has_new: Whether an effect was done that was not on record.
        before_sync: Makes the files durable that earlier records without a sync name.
    """

    def __init__(self, records: Sequence[EffectDone], emit: Emit) -> None:
        self._records = records
        self._emit = emit
        self.before_sync: Callable[[], None] = lambda: None
        self.asked = 0
        self.has_new = False

    @property
    def is_live(self) -> bool:
        """Whether all that is on record was replayed, so that what happens now is new."""
        return self.asked >= len(self._records)

    def once(
        self,
        kind: str,
        round_number: int,
        request: str,
        arguments: object,
        do: Callable[[int], tuple[object, ModelRecord | None]],
        result_type: type[ResultT],
        *,
        is_provisional: bool = False,
    ) -> Effect[ResultT]:
        """Return the result of an effect, which is done unless the journal has it.

        Args:
            kind: Kind of the effect, such as ``fold``.
            round_number: Round in which it was requested.
            request: Description of the request, for messages.
            arguments: All that decides what comes of it: plain values, and lists and mappings of
                them.
            do: Function that does the effect of this number, leaves durable files, and returns its
                result, as :func:`encode_record` takes it, with the model that it made; None for
                none.
            result_type: Type of its result.
            is_provisional: Whether it is an evaluation that is due only as its round is the last.
        """
        digest = xxhash.xxh3_128_hexdigest(_arguments.encode(arguments))
        is_known = self.asked < len(self._records)
        self.asked += 1
        if is_known:
            record = self._records[self.asked - 1]
            _check_same(record, kind, request, digest)
            return _effect(record, result_type, is_new=False)
        result, model = do(self.asked)
        if kind not in UNSYNCED:
            self.before_sync()
        record = EffectDone(
            effect=self.asked,
            name=kind,
            round=round_number,
            request=request,
            arguments=digest,
            is_provisional=is_provisional,
            model=model,
            result=encode_record(result),
        )
        halt_at("record")
        self._emit(record)
        self.has_new = True
        return _effect(record, result_type, is_new=True)


def _check_same(record: EffectDone, kind: str, request: str, digest: str) -> None:
    """Refuse another effect than the one on record."""
    if (record.name, record.arguments) == (kind, digest):
        return
    if request == record.request:
        request += " with other sites, min_updates, timeout, meta or parts (receive, send, late)"
    raise ReplayMismatchError(
        f"effect {record.effect} of the workflow was {record.request} before the run was cut "
        f"off, and is {request} now; a workflow must decide by what effects return and "
        "draw from run.random() alone, so mend it, and start a new run (leave out --resume)"
    )


def _effect(record: EffectDone, kind: type[ResultT], *, is_new: bool) -> Effect[ResultT]:
    return Effect(record.effect, decode_record(record.result, kind), record.model, is_new)


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
