"""Lines of a journal that a later line made void: what they tell of was, or is, done again."""

from __future__ import annotations

from dataclasses import dataclass, field

from flstream.telemetry.events import (
    AnyEvent,
    EffectDone,
    Evaluated,
    ModelReady,
    RoundFinished,
    RoundStarted,
    RunResumed,
    SiteLog,
    SitesBeganAnew,
    SiteUpdate,
    UpdateTakenUp,
)

MARKERS = (b'"kind":"run_resumed"', b'"kind":"sites_began_anew"', b'"is_provisional":true')
"""Text of which a journal with void lines has at least one."""


@dataclass
class _Cut:
    """Lines from one place of the journal up to another, in bytes, and the exceptions.

    Attributes:
        begin: Where the first line begins.
        end: Where the first line after the cut begins.
        repeated: Sites and rounds of which alone the reports are void; None for all lines.
        taken_up: Sites and rounds whose reports count, as their update is not trained again.
    """

    begin: int
    end: int
    repeated: frozenset[tuple[str, int]] | None = None
    taken_up: set[tuple[str, int]] = field(default_factory=set)

    def has(self, event: AnyEvent) -> bool:
        """Whether an event between its ends is void."""
        if isinstance(event, RunResumed):
            return False  # the warnings of a resume stay
        report = (event.site, event.round) if isinstance(event, SiteLog | SiteUpdate) else None
        if self.repeated is not None:
            return report in self.repeated
        return report not in self.taken_up


class VoidLines:
    """The lines of a journal that are void, from its events in order.

    A resume makes void what came after the effect that it names, but for the reports of sites whose
    updates are taken up. Where workers were lost, the reports of sites on the task that they begin
    anew are void. An evaluation that was due only because its round was the last is void once an
    effect follows.
    """

    def __init__(self) -> None:
        self._cuts: list[_Cut] = []
        self._effect_ends: dict[int, int] = {}
        self._task_begin = 0
        self._provisional: _Cut | None = None

    def apply(self, event: AnyEvent, begin: int, end: int) -> bool:
        """Add one event; return whether earlier lines are void, or count again, because of it.

        Args:
            event: The event.
            begin: Where its line begins: a byte of the file, or any number that increases.
            end: Where the next line begins.
        """
        before = len(self._cuts)
        match event:
            case ModelReady():
                self._effect_ends[0] = self._task_begin = end
            case EffectDone():
                self._effect_ends[event.effect] = self._task_begin = end
                if self._provisional is not None:
                    self._cuts.append(self._provisional)
                self._provisional = None
            case Evaluated():
                self._provisional = _Cut(begin, end) if event.is_provisional else None
                self._task_begin = end
            case RoundStarted() | RoundFinished():
                self._task_begin = end
            case SitesBeganAnew():
                again = frozenset((site, event.round) for site in event.sites)
                self._cuts.append(_Cut(self._task_begin, begin, again))
            case RunResumed():
                self._cuts.append(_Cut(self._resume_place(event), begin))
                self._provisional = None
            case UpdateTakenUp() if self._cuts:
                resumes = (cut for cut in reversed(self._cuts) if cut.repeated is None)
                if (cut := next(resumes, None)) is not None:
                    cut.taken_up.add((event.site, event.round))
                    return True
        return len(self._cuts) > before

    def has(self, event: AnyEvent, begin: int) -> bool:
        """Return whether an event is void whose line begins at a place in bytes."""
        return any(cut.begin <= begin < cut.end and cut.has(event) for cut in self._cuts)

    def _resume_place(self, event: RunResumed) -> int:
        # The record of that effect may be damaged, where damage is passed over.
        return 0 if event.round is None else self._effect_ends.get(event.effect, 0)
