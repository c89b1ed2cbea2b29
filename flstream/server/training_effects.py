"""The effect of a training: asking for it, doing it once somebody reads it, and replaying it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flstream.client.meta import pack_values
from flstream.client.personal_part import part_of
from flstream.errors import WorkflowError
from flstream.server.arguments import check_model, check_training, check_values
from flstream.server.cohort_fold import CohortFold
from flstream.server.collected_updates import CollectedUpdate
from flstream.server.collector import ResultCollector
from flstream.server.effects import Done, result_of
from flstream.server.peer_fold import PeerFold
from flstream.server.program_view import Model, Updates
from flstream.server.run_state import RunState
from flstream.server.site_tasks import with_states
from flstream.server.training import SiteTraining, TrainResult
from flstream.server.uncatchable import uncatchable
from flstream.text import brief_names


class TrainingEffects:
    """Asks for trainings, does each that is new, and replays the others.

    Args:
        state: The state of the run.

    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        # Trainings that were neither read nor folded yet.
        self._pending: list[SiteTraining] = []

    def ask(
        self,
        model: Model,
        sites: Sequence[str],
        min_updates: int | None,
        timeout: float | None,
        *,
        meta: Mapping[str, Any] | None = None,
        optimizer_params: Mapping[str, Any] | None = None,
        personal: Sequence[str] = (),
        beside: bool = False,
    ) -> Updates:
        """Ask for a training, which is done once somebody reads its updates or folds them.

        The arguments are those of :meth:`flstream.server.run.Run.train`; with ``beside``, sites
        train models of their own beside the global one.
        """
        check_model("train", model)
        check_training(sites, min_updates, timeout)
        check_values("meta", meta)
        check_values("optimizer_params", optimizer_params)
        if both := sorted((meta or {}).keys() & set(self._state.store.bodies(model))):
            raise WorkflowError(
                f"run.train() was given a value {both[0]!r} in meta, and the model has a body of "
                "that name beside it; give it another name"
            )
        part = part_of(personal, is_beside=beside)
        self._state.check_sites("train", sites)
        self._state.check_round("train")
        message = pack_values(meta or {}, optimizer_params)
        state, clients = self._state, self._state.context.job.clients
        still_asked = set(state.sites)
        names = [site for site in sites if site in still_asked]
        least = self._least(min_updates, names)
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
        arguments: dict[str, Any] = {
            "model": [model.version, model.digest],
            "sites": names,
            "min_updates": min_updates,
            "timeout": timeout,
            "meta": message,
        }
        if part is not None:
            arguments["personal"] = [part.patterns, part.is_beside]
        training = SiteTraining(
            self,
            arguments,
            f"train(model {model.version}, {brief_names(names)})",
            state.round,
            state.program_line(),
            model,
            state.tasks.new("train_beside" if beside else "train", names, state.round),
            collector,
            clients.round_timeout if timeout is None else float(timeout),
            message,
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

    def _least(self, min_updates: int | None, names: Sequence[str]) -> int:
        """How many updates have to come of the sites that are asked."""
        state = self._state
        if min_updates is not None:
            return min_updates
        least = state.context.job.clients.min_updates or len(names) or 1
        if state.private is not None and state.private.is_draw(names, state.round):
            return min(least, len(names))  # by chance, nobody may be drawn
        return least

    @uncatchable
    def do(self, training: SiteTraining) -> None:
        """Have the sites of a training train now, as its updates are read: an effect of its own."""
        record = self._state.journal.once(
            "train",
            training.round,
            training.request,
            training.arguments,
            lambda number: Done(self.perform(training, number).plain()),
        )
        self.take(training, TrainResult.from_plain(result_of(record)), record.effect)

    def perform(
        self, training: SiteTraining, number: int, fold: CohortFold | PeerFold | None = None
    ) -> TrainResult:
        """Have the sites of a training train.

        Args:
            training: One that is not done.
            number: Number of the effect.
            fold: Takes the updates as they come; None has them wait in files, which are durable on
                return.

        Raises:
            SimulationError: Too few sites are left; the message names the others.
        """
        state, trainer = self._state, self._state.trainer
        training.number = number
        state.retire_models()
        training.tasks = state.tasks.up_to_date(training.tasks)
        training.oldest = state.oldest_effect
        if fold is not None:
            run = fold.train(training)
        else:
            run, _ = trainer.begin(training, is_read=True)
            for _ in run.progress():
                pass
        trainer.check_states(training.tasks, run.collector.failures)
        training.bodies |= run.updates
        files = {} if fold is not None else trainer.keep(training)
        answers = run.in_order
        state.warn_of_late(answers.values())
        asks = state.asked.first_kinds(answers.values())
        stage = state.context.job.stages[state.stage]
        state.warn(state.sent.unread(stage, training.round, answers.values()))
        return TrainResult.of(
            answers, run.collector.failures, run.late, run.cost, training.tasks, asks
        )._replace(files=files)

    def take(self, training: SiteTraining, result: TrainResult, number: int) -> None:
        """Take in what came of a training, by the record of the effect of a number."""
        state = self._state
        self._pending.remove(training)
        training.result, training.number = result, number
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
