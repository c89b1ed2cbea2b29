"""The events of a run that count, in order, and how many of them count where it goes on."""

from __future__ import annotations

from collections.abc import Sequence

from flstream.telemetry.events import (
    AnyEvent,
    EffectDone,
    Evaluated,
    ModelReady,
    RoundFinished,
    RunResumed,
)


class KeptEvents:
    """Events that count, in the order in which they happened.

    Args:
        events: Events so far.

    Attributes:
        all: All of them.
    """

    def __init__(self, events: Sequence[AnyEvent] = ()) -> None:
        self.all: list[AnyEvent] = list(events)

    def until(self, end: int) -> tuple[AnyEvent, ...]:
        """The first ``end`` events, and what later resumes warned of: that stays said."""
        later = [event for event in self.all[end:] if isinstance(event, RunResumed)]
        return (*self.all[:end], *later)

    def end_of_effect(self, number: int) -> int:
        """How many events there are up to the record of an effect; 0 is the initial model.

        Raises:
            KeyError: The effect is not done.
        """
        for place, event in enumerate(self.all):
            match event:
                case ModelReady() if number == 0:
                    return place + 1
                case EffectDone(effect=effect) if effect == number:
                    return place + 1
        raise KeyError(number)

    def end_of_round(self, number: int | None, *, evaluated: bool) -> int:
        """How many events there are up to the end of a round; none without a round.

        Args:
            number: Number of a completed round; 0 is the initial model.
            evaluated: Whether its evaluation belongs to it that came after its end, if there is
                one.
        """
        end = 0
        for place, event in enumerate(self.all):
            match event:
                case ModelReady() if number == 0:
                    end = place + 1
                case RoundFinished() if event.round == number:
                    end = place + 1
                case RoundFinished() if end:
                    break
                case Evaluated() if end and evaluated and event.round == number:
                    end = place + 1
        return end
