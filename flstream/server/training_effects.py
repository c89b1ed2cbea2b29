"""The effect of a training: asking for it, doing it once somebody reads it, and replaying it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from flstream.client.personal_part import PersonalPart
from flstream.errors import WorkflowError
from flstream.server.cohort_fold import CohortFold
from flstream.server.collected_updates import CollectedUpdate
from flstream.server.collector import ResultCollector
from flstream.server.effects import Effect, result_of
from flstream.server.federation_state import FederationState, uncatchable
from flstream.server.peer_fold import PeerFold
from flstream.server.program_view import Model, Updates
from flstream.server.site_tasks import with_states
from flstream.server.training import SiteTraining, TrainResult
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
        # Trainings that were neither read nor folded yet.
        self._pending: list[SiteTraining] = []

    def ask(self, asked: TrainRequest) -> Updates:
        """Ask for a training, which is done once somebody reads its updates or folds them."""
        state, clients = self.state, self.state.context.job.clients
        model, part = asked.model, asked.personal
        still_asked = set(state.sites)
        names = [site for site in asked.sites if site in still_asked]
        least = self._least(asked, names)
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
        training = SiteTraining(
            self,
            asked.arguments(names),
            f"train(model {model.version}, {brief_names(names)})",
            state.round,
            state.program_line(),
            model,
            state.tasks.new("train_beside" if is_beside else "train", names, state.round),
            collector,
            clients.round_timeout if asked.timeout is None else float(asked.timeout),
            asked.message,
            part,
        )
        if part is not None and state.journal.is_live:
            part.names(state.store.source(model).layout)
        self._pending.append(training)
        return Updates(training)

    def check_done(self) -> None:
        """Refuse to end a workflow with trainings that nobody has read or folded.

        Raises:
            WorkflowError: There is one; the message names its line.
        """
        if not self._pending:
            return
        training = self._pending[0]
        place = "" if training.line is None else f", line {training.line} of the workflow,"
        raise WorkflowError(
            f"{training.request} of round {training.round}{place} was neither read nor folded, so "
            "nobody has trained; pass it to run.fold() or run.adopt(), or leave it out"
        )

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
    def do(self, training: SiteTraining) -> None:
        """Have the sites of a training train now, as its updates are read: an effect of its own."""
        journal = self.state.journal
        effect = journal.ask("train", training.round, training.request, training.arguments)
        self.begin(training, effect)
        record = effect.record
        if record is None:
            result = self.perform(training)
            record = journal.record(effect, result.plain())
        self.take(training, TrainResult.from_plain(result_of(record)))

    def begin(self, training: SiteTraining, effect: Effect) -> None:
        """Note the effect that does a training."""
        training.number = effect.number
        self._pending.remove(training)

    def perform(
        self, training: SiteTraining, fold: CohortFold | PeerFold | None = None
    ) -> TrainResult:
        """Have the sites of a training train.

        Args:
            training: One that is not done.
            fold: Takes the updates as they come; None has them wait in files, which are durable on
                return.

        Raises:
            SimulationError: Too few sites are left; the message names the others.
        """
        state, trainer = self.state, self.state.trainer
        state.retire_models()
        training.tasks = state.tasks.up_to_date(training.tasks)
        training.oldest = state.oldest_effect
        if fold is not None:
            run = fold.train(training)
        else:
            run = trainer.begin(training, trainer.plan(training, is_read=True))
            for _ in run.progress():
                pass
        trainer.check_states(training.tasks, run.collector.failures)
        training.bodies |= run.updates
        files = {} if fold is not None else trainer.make_durable(training)
        answers = run.in_order
        state.warn_of_late(answers.values())
        asks = state.asked.first_kinds(answers.values())
        stage = state.context.job.stages[state.stage]
        state.warn(state.sent.unread(stage, training.round, answers.values()))
        return TrainResult.of(
            answers, run.collector.failures, run.late, run.cost, training.tasks, asks
        )._replace(files=files)

    def take(self, training: SiteTraining, result: TrainResult) -> None:
        """Take in what came of a training that is on record."""
        state = self.state
        training.result = result
        training.collector.restore(result.answers, result.failures)
        if result.answers:
            bodies = () if training.is_beside else state.store.bodies(training.base)
            state.sent.note(training.meta, bodies)
        training.tasks = with_states(training.tasks, result.bases)
        state.tasks.left(result.states)
        if result.files:
            state.trainer.keep_files(training)
        state.asked.record(result.asks)
        if state.totals is not None:  # it may be read after the last round, for its metrics
            state.totals.add_task(result.cost)
        state.note_failures(site for site in result.failures if site not in result.late)
