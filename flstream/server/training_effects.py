"""The effect of a training: asking for it, doing it once somebody reads it, and replaying it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flstream.client.personal_part import PersonalPart
from flstream.errors import WorkflowError
from flstream.server.cohort_fold import CohortFold
from flstream.server.collected_updates import CollectedUpdate
from flstream.server.collector import ResultCollector
from flstream.server.effects import result_of
from flstream.server.federation_state import FederationState, uncatchable
from flstream.server.peer_fold import PeerFold
from flstream.server.program_view import Model, Updates
from flstream.server.site_tasks import with_states
from flstream.server.training import SiteTraining, TrainResult
from flstream.telemetry.events import EffectDone
from flstream.text import brief_names


class TrainRequest(NamedTuple):
    """What a workflow has given to ``run.train``.

    Attributes:
        model: The model that the sites start from.
        sites: The sites, in order; those that are asked no more are left out.
        min_updates: How many updates have to come; None for what the job says.
        timeout: Seconds that a site may take; None for what the job says.
        message: Payload message of the values sent along.
        personal: What each site has a version of its own of; None for nothing.
    """

    model: Model
    sites: Sequence[str]
    min_updates: int | None
    timeout: float | None
    message: bytes
    personal: PersonalPart | None

    def arguments(self, names: Sequence[str]) -> dict[str, Any]:
        """What identifies the training, given the sites that are asked."""
        arguments: dict[str, Any] = {
            "model": [self.model.version, self.model.digest],
            "sites": names,
            "min_updates": self.min_updates,
            "timeout": self.timeout,
            "meta": self.message,
        }
        if self.personal is not None:
            arguments["personal"] = [self.personal.patterns, self.personal.is_beside]
        return arguments


class TrainingEffects:
    """Asks for trainings, does each that is new, and replays the others.

    Args:
        state: The state of the run.

    Attributes:
        state: The state of the run.
    """

    def __init__(self, state: FederationState) -> None:
        self.state = state

    def ask(self, asked: TrainRequest) -> Updates:
        """Ask for a training, which is done once somebody reads its updates or folds them.

        Raises:
            WorkflowError: None of its sites is still asked.
        """
        state, clients = self.state, self.state.context.job.clients
        model, part = asked.model, asked.personal
        still_asked = set(state.sites)
        names = [site for site in asked.sites if site in still_asked]
        least = self._least(asked, names)
        seconds = clients.round_timeout if asked.timeout is None else float(asked.timeout)
        request = f"train(model {model.version}, {brief_names(names)})"
        effect = state.journal.ask("train", state.round, request, asked.arguments(names))
        if not names and least:
            raise WorkflowError(
                f"run.train() was given no site that is still asked in round {state.round}; "
                "give it at least one of run.sites, or min_updates=0"
            )
        collector: ResultCollector[CollectedUpdate | None] = ResultCollector(
            f"train round {state.round}",
            names,
            min(least, len(names)),
            # Inline, sites wait for each other.
            None if state.context.job.engine.is_inline else clients.wait_after_min,
        )
        is_beside = part is not None and part.is_beside
        tasks = state.tasks.new("train_beside" if is_beside else "train", names, state.round)
        training = SiteTraining(self, effect, model, tasks, collector, seconds, asked.message, part)
        if effect.record is None and part is not None:
            part.names(state.store.source(model).layout)
        if effect.record is not None:
            self._finish(training, effect.record)
        return Updates(training)

    def _least(self, asked: TrainRequest, names: Sequence[str]) -> int:
        """How many updates have to come of the sites that are asked."""
        state = self.state
        if asked.min_updates is not None:
            return asked.min_updates
        least = state.context.job.clients.min_updates or len(names) or 1
        if state.private is not None and state.private.is_draw(names, state.round):
            return min(least, len(names))  # by chance, nobody may be drawn
        return least

    @uncatchable
    def do(self, training: SiteTraining, fold: CohortFold | PeerFold | None = None) -> None:
        """Have the sites of a training train now.

        Args:
            training: One that is not done.
            fold: Takes the updates as they come; None lets them wait.

        Raises:
            SimulationError: Too few sites are left; the message names the others.
        """
        state, trainer = self.state, self.state.trainer
        state.retire_models()
        training.tasks = state.tasks.up_to_date(training.tasks)
        if fold is not None:
            run = fold.train(training)
        else:
            run = trainer.begin(training, trainer.plan(training, is_lazy=False))
            for _ in run.progress():
                pass
        trainer.check_states(training.tasks, run.collector.failures)
        training.bodies |= run.updates
        trainer.forget_empty(training)
        failures = run.collector.failures
        answers = run.in_order
        state.warn_of_late(answers.values())
        asks = state.asked.first_kinds(answers.values())
        result = TrainResult.of(answers, failures, run.late, run.cost, training.tasks, asks)
        stage, number = state.context.job.stages[state.stage], training.effect.round
        state.warn(state.sent.unread(stage, number, answers.values()))
        record = state.journal.record(training.effect, result.plain(), is_final=False)
        self._finish(training, record)

    def _finish(self, training: SiteTraining, record: EffectDone) -> None:
        """Take in what came of a training that is on record."""
        state = self.state
        result = training.result = TrainResult.from_plain(result_of(record))
        training.collector.restore(result.answers, result.failures)
        if result.answers:
            is_beside = training.personal is not None and training.personal.is_beside
            bodies = () if is_beside else state.store.bodies(training.base)
            state.sent.note(training.meta, bodies)
        training.tasks = with_states(training.tasks, result.bases)
        state.tasks.left(result.states, state.journal.place(record.effect))
        if state.totals is not None:  # it may be read after the last round, for its metrics
            state.totals.add_task(result.cost)
        state.note_failures(site for site in result.failures if site not in result.late)
