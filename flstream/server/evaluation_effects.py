"""The effect that scores the model of a round: doing it and replaying it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flstream.client.messages import SiteTask
from flstream.client.personal_part import PersonalPart
from flstream.server.effects import result_of
from flstream.server.federation_state import FederationState
from flstream.server.program_view import Model
from flstream.server.scoring import Scoring


class EvaluationEffects:
    """Has all sites score models: does each effect that is new, and replays the others.

    Args:
        state: The state of the run.
        scoring: Has sites score models.
    """

    def __init__(self, state: FederationState, scoring: Scoring) -> None:
        self._state = state
        self._scoring = scoring

    def evaluate(self, model: Model, part: PersonalPart | None) -> dict[str, float]:
        """Have all sites score a model.

        Args:
            model: The model.
            part: What each site has a version of its own of; None for nothing.
        """
        state = self._state
        state.scores.drop_provisional()
        request = f"evaluate(model {model.version})"
        sites = state.sites
        arguments: dict[str, Any] = {"model": [model.version, model.digest], "sites": sites}
        if part is not None:
            arguments["personal"] = [part.patterns, part.is_beside]
        effect = state.journal.ask("evaluate", state.round, request, arguments)
        tasks = state.tasks.new("evaluate", sites, model.round)
        record = effect.record
        if record is None:
            plain = self._score(model, tasks, effect.number, part)
            record = state.journal.record(effect, plain, is_final=True)
        plain = result_of(record)
        state.note_failures(plain["failures"])
        state.settle_failures()
        metrics: dict[str, float] = plain["metrics"]
        state.warn(state.scores.add(model, metrics))
        if state.journal.is_live:
            state.retire_models()
        return metrics

    def evaluate_provisionally(self, model: Model, part: PersonalPart | None) -> dict[str, float]:
        """Have all sites score a model only because its round is the last.

        That is no effect, has no number, and is void once an effect follows.

        Args:
            model: The model.
            part: What each site has a version of its own of; None for nothing.
        """
        state = self._state
        tasks = state.tasks.new("evaluate", state.sites, model.round)
        metrics: dict[str, float] = self._score(model, tasks, 0, part)["metrics"]
        state.warn(state.scores.add_provisional(model, metrics))
        return metrics

    def _score(
        self,
        model: Model,
        tasks: Mapping[str, SiteTask],
        effect: int,
        part: PersonalPart | None,
    ) -> dict[str, Any]:
        stage = self._state.context.job.stages[self._state.stage]
        is_auto = stage.args.evaluate == "auto"
        return self._scoring.evaluate(model, tasks, effect, is_auto=is_auto, personal=part)
