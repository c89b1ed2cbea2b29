"""What the events of a run that count add up to."""

from __future__ import annotations

from typing import Literal, NamedTuple

from flstream.runs.round_record import RoundRecord
from flstream.runs.site_scores import Columns
from flstream.telemetry.events import (
    AnyEvent,
    EffectDone,
    EndedEarly,
    Evaluated,
    Metrics,
    ModelReady,
    ModelRecord,
    ModelScored,
    RoundFinished,
    RunFinished,
    RunResumed,
    RunStarted,
    SiteBenched,
    SiteFailed,
    Transfer,
    Warned,
)

Status = Literal["running", "finished", "failed", "stopped"]

COUNTED = (
    RunStarted,
    RunResumed,
    ModelReady,
    RoundFinished,
    SiteFailed,
    SiteBenched,
    Evaluated,
    ModelScored,
    EffectDone,
    EndedEarly,
    Warned,
    RunFinished,
)
"""Kinds of events that are kept of a run: what :meth:`CountedEvents.apply` does not pass over."""


class _Before(NamedTuple):
    """What counted before an evaluation that may turn out to be void."""

    number: int
    open: RoundRecord | None
    scores: Metrics | None
    columns: Columns


class CountedEvents:
    """The state of a run: its events added up, one after another, each of which counts.

    Attributes:
        status: How the run ended; ``running`` until it has.
        error: Why it failed; empty if it did not.
        ended_early: Why there are fewer rounds than the job has; None if there are not.
        mode: How models move; empty until the run began.
        chunk_size: Longest chunk in bytes.
        model_bytes: Bytes of the model's body.
        model_tensors: Number of its tensors.
        digest: Digest of the newest durable model; empty without one.
        effects: Effects that are final, or have a final one after them.
        models: Models, oldest first; the initial one is version 0.
        rounds: Rounds that came to their end, in order.
        unfinished: Number of a round that has effects or evaluations, but no end; None if there is
            none.
        scores: Metrics of the last evaluation of each round, in order.
        is_received: Whether the last evaluation was by metrics that came with updates.
        site_scores: What each site has found in it, where that is known.
        failures: Sites that had no part in a round, in order.
        benched: Sites that are asked no more, in the order in which that came about.
        warnings: Sentences, each once.
        down: Transfers of models to the sites.
        up: Transfers of updates to the server.
    """

    def __init__(self) -> None:
        self.status: Status = "running"
        self.error = ""
        self.ended_early: str | None = None
        self.mode = ""
        self.chunk_size = 0
        self.model_bytes = self.model_tensors = 0
        self.digest = ""
        self.effects: list[EffectDone] = []
        self.models: list[ModelRecord] = []
        self.rounds: list[RoundRecord] = []
        self.unfinished: int | None = None
        self.scores: dict[int, Metrics] = {}
        self.is_received = False
        self.site_scores: dict[int, Columns] = {}
        self.failures: list[SiteFailed] = []
        self.benched: list[str] = []
        self.warnings: list[str] = []
        self.down = self.up = Transfer()
        self._pending: list[EffectDone] = []
        self._effect_numbers: set[int] = set()
        self._open: RoundRecord | None = None
        self._before_provisional: _Before | None = None
        self._failures: dict[int, list[SiteFailed]] = {}

    @property
    def last_round(self) -> int | None:
        """The last round that came to its end; 0 with only an initial model, None without one."""
        if self.rounds:
            return self.rounds[-1].number
        return 0 if self.models else None

    def has_effect(self, number: int) -> bool:
        """Whether an effect is done, final or not."""
        return number in self._effect_numbers

    def apply(self, event: AnyEvent) -> None:
        """Take one event, in the order in which they happened."""
        match event:
            case RunStarted():
                self.status, self.error, self.ended_early = "running", "", None
                self.mode, self.chunk_size = event.mode, event.chunk_size
            case ModelReady():
                self.model_bytes, self.model_tensors = event.bytes, event.tensors
                self._add_model(ModelRecord(0, 0, 0, event.digest))
            case EffectDone():
                self._add_effect(event)
            case RoundFinished():
                self._finish_round(event)
            case Evaluated():
                self._evaluate(event)
            case ModelScored():
                self.down += event.down
            case SiteFailed():
                self.failures.append(event)
                self._failures_of(event.round).append(event)
            case SiteBenched():
                self.benched.append(event.site)
            case EndedEarly():
                self.ended_early = event.reason
            case Warned():
                self._warn(event.message)
            case RunResumed():
                if event.effect is not None:
                    # It was synced, and said that these count.
                    self._settle_effects()
                for message in event.warnings:
                    self._warn(message)
            case RunFinished():
                self.status, self.error = event.status, event.error

    def _warn(self, message: str) -> None:
        # A server that goes on for another does not know what that one has warned of already.
        if message not in self.warnings:
            self.warnings.append(message)

    def _add_effect(self, event: EffectDone) -> None:
        self._effect_numbers.add(event.effect)
        self._pending.append(event)
        self._begin_round(event.round)
        if self._before_provisional is not None:
            # An evaluation that was made only because its round was the last: now it is not.
            number, self._open, scores, columns = self._before_provisional
            self.scores.pop(number, None)
            self.site_scores.pop(number, None)
            if scores is not None:
                self.scores[number] = scores
                self.site_scores[number] = columns
            self._before_provisional = None
        if event.is_final:
            # Syncing a line makes all lines before it durable, too.
            self._settle_effects()

    def _settle_effects(self) -> None:
        for effect in self._pending:
            self.effects.append(effect)
            if effect.model is not None:
                self._add_model(effect.model)
        self._pending.clear()

    def _add_model(self, model: ModelRecord) -> None:
        self.models.append(model)
        self.digest = model.digest

    def _begin_round(self, number: int) -> None:
        if number > (self.last_round or 0):
            self.unfinished = number

    def _finish_round(self, event: RoundFinished) -> None:
        number = event.round
        begun = self._open if self._open is not None and self._open.number == number else None
        record = (begun or RoundRecord(number, failures=self._failures_of(number))).finished(event)
        self.rounds.append(record)
        self._open = self.unfinished = None
        self.down += event.down
        self.up += event.up
        has_model = bool(event.weights) or event.digest != self.digest
        if has_model and not self._effect_numbers:
            # An earlier version wrote the event, and nothing else, of the round's model.
            state = event.optimizer_state
            self._add_model(ModelRecord(number, len(self.models), 0, event.digest, state))
        self.digest = event.digest

    def _evaluate(self, event: Evaluated) -> None:
        number = event.round
        if event.is_provisional:
            columns = self.site_scores.get(number, {})
            self._before_provisional = _Before(number, self._open, self.scores.get(number), columns)
        self.scores[number] = event.metrics
        self.is_received = event.received
        self.site_scores[number] = event.sites
        self.down += event.down
        places = reversed(range(len(self.rounds)))
        place = next((each for each in places if self.rounds[each].number <= number), None)
        if place is not None and self.rounds[place].number == number:
            # In journals without effects, a round is evaluated after its end.
            self.rounds[place] = self.rounds[place].evaluated(event)
        elif number > 0:
            if self._open is None or self._open.number != number:
                self._open = RoundRecord(number, failures=self._failures_of(number))
            self._open = self._open.evaluated(event)
            self._begin_round(number)

    def _failures_of(self, number: int) -> list[SiteFailed]:
        # The list itself is in the round's record, which so has those that are yet to come, too.
        return self._failures.setdefault(number, [])
