"""The history of a run: the one fold of its events, which its journal ``events.jsonl`` keeps.

A run may be cut off at any instant and go on later, any number of times. Every *sitting* but the
first begins with :class:`~flstream.telemetry.events.RunResumed`, which says what counts of the
sittings before: up to the record of an effect; or, in journals of earlier versions, up to a round.
What came after that stays in the file, but it is void: it is done again, and written again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Self

import msgspec

from flstream.runs.best import BestEvaluation, BestRound
from flstream.runs.counted_events import COUNTED, CountedEvents, Status
from flstream.runs.job_facts import JobFacts
from flstream.runs.kept_events import CountedLines, KeptEvents
from flstream.runs.round_record import RoundRecord
from flstream.runs.site_record import NamePool, SiteClock, SiteRecord, SiteWeights, site_records
from flstream.runs.site_scores import packed
from flstream.runs.timeline import Timeline
from flstream.telemetry.events import (
    AnyEvent,
    EffectDone,
    Evaluated,
    Metrics,
    ModelReady,
    ModelRecord,
    ModelWritten,
    RoundFinished,
    RunResumed,
    RunStarted,
)

_NO_RESULT = msgspec.Raw(b"null")


class History:
    """What has happened in a run, from its events in the order of the file.

    Events of kinds that add nothing to it are passed over.

    Args:
        assumed: What is known of the job until the run's first event tells it.
        keep_results: Whether the results of effects are kept, which grow with sites x rounds.
        keep_weights: Whether the weights of sites in rounds are kept, which do so, too.
        note_lines_of: Kinds of events whose lines are noted where they count; see :attr:`lines`.

    Attributes:
        facts: What is known of the job.
        started: Event that the last sitting began with; None if no server came that far.
        timeline: Sittings, phases and processes, with all that was done again later.
        damaged: Lines of the journal that could not be used, where such are passed over.
        gaps: Places in it where lines are missing, doubled or swapped, where such are passed over.
    """

    def __init__(
        self,
        assumed: JobFacts | None = None,
        *,
        keep_results: bool = True,
        keep_weights: bool = True,
        note_lines_of: Sequence[type[AnyEvent]] = (),
    ) -> None:
        self.facts = assumed or JobFacts()
        self.started: RunStarted | None = None
        self.timeline = Timeline()
        self.damaged = 0
        self.gaps = 0
        self._keeps_results = keep_results
        self._keeps_weights = keep_weights
        self._names = NamePool()
        self._written: set[tuple[int, int]] = set()
        self._events = KeptEvents()
        self._counted = CountedEvents()
        self._site_clock = SiteClock(self._names)
        self._lines = CountedLines(note_lines_of)

    @classmethod
    def of(
        cls,
        events: Iterable[AnyEvent],
        assumed: JobFacts | None = None,
        *,
        keep_results: bool = True,
        keep_weights: bool = True,
    ) -> Self:
        """A history of events that all count, such as :meth:`events_until` gives."""
        history = cls(assumed, keep_results=keep_results, keep_weights=keep_weights)
        for event in events:
            history._note(event)
            history._count(event)
        return history

    def apply(self, event: AnyEvent, offset: int = 0) -> None:
        """Take one event.

        Args:
            event: The event.
            offset: Where its line begins in the journal, in bytes, where lines are noted.

        Raises:
            ValueError: It does not follow from those before.
        """
        self._note(event)
        self._check(event)
        if isinstance(event, RunResumed):
            self._resume(event)
            self._lines.apply(event, offset)
        # A sitting that goes on from the initial model may report it once more.
        elif not (isinstance(event, ModelReady) and self._counted.models):
            self._lines.apply(event, offset)
            self._count(event)

    @property
    def is_empty(self) -> bool:
        """Whether nothing was written yet."""
        return not self.timeline.sittings

    @property
    def status(self) -> Status:
        """How the run ended; ``running`` where no end of it counts."""
        return self._counted.status

    @property
    def error(self) -> str:
        """Why it failed or was stopped; empty without a reason."""
        return self._counted.error

    @property
    def is_finished(self) -> bool:
        """Whether the run has come to its end, with every round that it was to have."""
        return self._counted.status == "finished"

    @property
    def planned_rounds(self) -> int:
        """Rounds that the last sitting was to come to; 0 if no server came so far as to tell."""
        return self.started.rounds if self.started is not None else 0

    @property
    def seconds(self) -> float:
        """Running time in seconds: the hours between two sittings do not count."""
        return self.timeline.seconds

    @property
    def totals(self) -> CountedEvents:
        """What the events that count add up to."""
        return self._counted

    @property
    def rounds(self) -> Sequence[RoundRecord]:
        """Rounds that came to their end, in order."""
        return self._counted.rounds

    @property
    def last_round(self) -> int | None:
        """The last completed round; 0 if only the initial model is there, None without that."""
        return self._counted.last_round

    @property
    def unfinished(self) -> int | None:
        """The round that was under way when the events end; None if none was."""
        if self.is_finished:
            return None
        return self.timeline.round_under_way or self._counted.unfinished

    @property
    def effects(self) -> Sequence[EffectDone]:
        """Effects that count when the run goes on: those up to the last final one."""
        return self._counted.effects

    @property
    def written(self) -> frozenset[tuple[int, int]]:
        """Round and step of every model that was written, or about to be, also of void ones."""
        return frozenset(self._written)

    @property
    def last_final_effect(self) -> int:
        """Number of the last effect that is final; 0 without one."""
        return self._counted.effects[-1].effect if self._counted.effects else 0

    @property
    def models(self) -> Sequence[ModelRecord]:
        """Models that count, oldest first; the initial one is version 0."""
        return self._counted.models

    @property
    def evaluations(self) -> Sequence[tuple[int, Metrics]]:
        """Rounds whose model was evaluated, and the metrics of each one's last evaluation."""
        return list(self._counted.scores.items())

    @property
    def best(self) -> BestEvaluation | None:
        """The best evaluation by the job's key metric; None until one has a finite value."""
        best = BestRound(self.facts.key_metric, self.facts.key_metric_mode)
        for number, metrics in self._counted.scores.items():
            best.compare(number, metrics)
        return best.best

    @property
    def lines(self) -> Sequence[int]:
        """Where lines begin whose events are of a noted kind, and count; in bytes, and rising."""
        return self._lines.offsets

    @property
    def line_count(self) -> int:
        """How many lines there are of events that are of a noted kind, and count."""
        return self._lines.count

    def lines_after(self, count: int) -> Sequence[int]:
        """Those of :attr:`lines` that came to count last, all but so many, in that order."""
        return self._lines.after(count)

    @property
    def sites(self) -> Mapping[str, SiteRecord]:
        """Sites that were asked to do anything, by name."""
        return site_records(self._site_clock.totals(), self._counted)

    def digest(self, round_number: int) -> str:
        """Digest of the model that a completed round ended with; round 0 is the initial model."""
        return self._round(round_number).digest

    def optimizer_state(self, round_number: int) -> str:
        """Digest of the server optimizer's state after a completed round; empty without one."""
        return self._round(round_number).optimizer_state

    def events(self) -> Sequence[AnyEvent]:
        """All events that count."""
        return tuple(self._events.all)

    def events_until(
        self, round_number: int | None, *, evaluated: bool = True
    ) -> Sequence[AnyEvent]:
        """The events that count if the run goes on from the model of a round.

        Args:
            round_number: A completed round; None for a run that begins anew.
            evaluated: Whether an evaluation after the round's end counts, if there is one.
        """
        end = self._events.end_of_round(round_number, evaluated=evaluated)
        return self._events.until(end)

    def events_until_effect(self, number: int) -> Sequence[AnyEvent]:
        """The events that count if the run goes on after an effect.

        Args:
            number: Number of an effect that is done; 0 for the initial model.

        Raises:
            KeyError: The effect is not done.
        """
        return self._events.until(self._events.end_of_effect(number))

    def _note(self, event: AnyEvent) -> None:
        """Take what no resume makes void."""
        self.timeline.apply(event)
        if isinstance(event, ModelWritten):
            self._written.add((event.round, event.step))
        if isinstance(event, RunStarted):
            self.started, self.facts = event, self.facts.updated(event)

    def _count(self, event: AnyEvent) -> None:
        """Take an event that counts."""
        self._site_clock.apply(event)
        if isinstance(event, COUNTED):
            event = self._packed(event)
            self._counted.apply(event)
            self._events.all.append(event)
            if isinstance(event, ModelReady | EffectDone | RoundFinished | Evaluated):
                self._site_clock.settle(len(self._events.all))
                self._lines.settle(len(self._events.all))

    def _packed(self, event: AnyEvent) -> AnyEvent:
        """An event in little memory."""
        match event:
            case EffectDone() if not self._keeps_results:
                return msgspec.structs.replace(event, result=_NO_RESULT)
            case Evaluated() if event.sites:
                return msgspec.structs.replace(event, sites=packed(event.sites))
            case RoundFinished():
                kept = event.weights if self._keeps_weights else {}
                return msgspec.structs.replace(event, weights=SiteWeights(kept, self._names))
        return event

    def _resume(self, event: RunResumed) -> None:
        if event.effect is not None and event.round is not None:
            end = self._events.end_of_effect(event.effect)
        else:
            end = self._events.end_of_round(event.round, evaluated=event.evaluated)
        self._site_clock.undo(end)
        self._lines.undo(end)
        self._events = KeptEvents([*self._events.until(end), event])
        # What is void cannot be taken away from sums. So the rest is added up again.
        self._counted = CountedEvents()
        for each in self._events.all:
            self._counted.apply(each)

    def _round(self, number: int) -> RoundRecord | ModelRecord:
        return self._counted.rounds[number - 1] if number else self._counted.models[0]

    def _check(self, event: AnyEvent) -> None:
        """Refuse an event that does not follow from those before."""
        last = self._counted.last_round
        match event:
            case ModelReady() if last is not None:
                same = event.digest == self._counted.models[0].digest
                self._refuse_unless(same, "the initial model is another one")
            case RoundFinished():
                is_next = last is not None and event.round == last + 1
                self._refuse_unless(is_next, f"round {event.round} ended")
            case Evaluated():
                has_model = last is not None and event.round <= last + 1
                self._refuse_unless(has_model, f"round {event.round} was evaluated")
            case EffectDone():
                is_new = last is not None and not self._counted.has_effect(event.effect)
                self._refuse_unless(is_new, f"effect {event.effect} was done once more")
            case RunResumed(round=None):
                pass
            case RunResumed(effect=None):
                known = last is not None and event.round is not None and 0 <= event.round <= last
                self._refuse_unless(known, f"the run went on from round {event.round}")
            case RunResumed():
                done = event.effect == 0 or self._counted.has_effect(event.effect or 0)
                known = last is not None and done
                self._refuse_unless(known, f"the run went on from effect {event.effect}")

    def _refuse_unless(self, holds: bool, what: str) -> None:
        if not holds:
            last = self._counted.last_round
            after = "before there was a model" if last is None else f"after round {last}"
            raise ValueError(f"{what} {after}")
