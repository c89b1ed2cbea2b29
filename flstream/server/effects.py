"""The effects of a workflow: numbered, recorded, and replayed when a run is resumed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import xxhash

from flstream.errors import FlstreamError, ReplayMismatchError
from flstream.server.context import Emit
from flstream.telemetry.events import EffectDone, ModelRecord
from flstream.telemetry.exact import decode_exact, encode_exact
from flstream.telemetry.halts import halt_at


@dataclass(frozen=True)
class Effect:
    """An effect that a workflow has asked for.

    Attributes:
        number: From 1, in the order in which the program asks.
        name: What it is, such as ``train``.
        round: Round in which it was asked for.
        request: What was asked for, in words.
        arguments: Digest of all its arguments.
        record: What came of it, where the journal knows; None where it is still to be done.
    """

    number: int
    name: str
    round: int
    request: str
    arguments: str
    record: EffectDone | None = None


class EffectFailedError(BaseException):
    """An effect failed: it passes through a workflow, whatever that catches, and ends the run.

    Attributes:
        error: Why.
    """

    def __init__(self, error: FlstreamError) -> None:
        super().__init__(str(error))
        self.error = error


class EffectJournal:
    """Numbers the effects that a workflow asks for, and keeps what came of each.

    An effect that the journal knows is not done again: its record gives what came of it. The first
    one that it does not know is done, and from there on the run is live.

    Args:
        records: Of the effects that count, in the order in which they were written.
        emit: Takes the records of effects that are done.

    Attributes:
        asked: Number of effects that the workflow has asked for.
    """

    def __init__(self, records: Iterable[EffectDone], emit: Emit) -> None:
        self._records = {record.effect: record for record in records}
        self._emit = emit
        self.asked = 0

    @property
    def is_live(self) -> bool:
        """Whether all that is on record was replayed, so that what happens now is new."""
        return self.asked >= len(self._records)

    def ask(self, name: str, round_number: int, request: str, arguments: object) -> Effect:
        """Number an effect, and look up what came of it.

        Args:
            name: What the program asks for.
            round_number: The current round.
            request: The same in words, with what tells it from others.
            arguments: All that decides what comes of it, as :func:`encode_exact` takes it.

        Raises:
            ReplayMismatchError: Before, the program asked for another effect here.
        """
        self.asked += 1
        number = self.asked
        digest = xxhash.xxh3_128_hexdigest(encode_exact(arguments))
        record = self._records.get(number)
        if record is not None and (record.name, record.arguments) != (name, digest):
            if request == record.request:
                request += " with other sites, min_updates, timeout or meta"
            raise ReplayMismatchError(
                f"effect {number} of the workflow was {record.request} before the run was cut "
                f"off, and is {request} now; a workflow must decide by what effects return and "
                "draw from run.random() alone, so mend it, and start a new run (leave out --resume)"
            )
        return Effect(number, name, round_number, request, digest, record)

    def record(
        self,
        effect: Effect,
        result: object,
        *,
        is_provisional: bool = False,
        model: ModelRecord | None = None,
    ) -> EffectDone:
        """Write the record of an effect, which is synced.

        Args:
            effect: The effect, which was not on record.
            result: What came of it, as :func:`encode_exact` takes it.
            is_provisional: Whether it is an evaluation that was due only as its round is the last.
            model: The model that it made, which is durable.

        Returns:
            The record, which is all that the program gets to see of the effect.
        """
        done = EffectDone(
            effect=effect.number,
            name=effect.name,
            round=effect.round,
            request=effect.request,
            arguments=effect.arguments,
            is_provisional=is_provisional,
            model=model,
            result=encode_exact(result),
        )
        halt_at("record")
        self._emit(done)
        return done


def result_of(record: EffectDone) -> Any:
    """What came of an effect, decoded from its record."""
    return decode_exact(record.result)
