"""The state of a run that its effects share, and that replaying them rebuilds."""

from __future__ import annotations

import operator
import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from types import FrameType
from typing import TYPE_CHECKING

from msgspec.structs import replace

from flstream.errors import FlstreamError, WorkflowError
from flstream.job.device import NANOSECONDS
from flstream.runs.results import FoldResult, TaskCost
from flstream.runs.stopping import EarlyStopping
from flstream.server.arguments import check_sites_and_timeout
from flstream.server.collector import UNLIMITED
from flstream.server.context import ServerContext
from flstream.server.effects import EffectJournal
from flstream.server.fleet import Fleet
from flstream.server.model_store import ModelStore
from flstream.server.received import ReceivedTensors
from flstream.server.scoring import ScoringEffects, weighted_metrics
from flstream.server.site_code import SiteCode
from flstream.server.training import SiteTraining
from flstream.server.training_effects import TrainingEffects
from flstream.server.training_tasks import TrainingTasks
from flstream.server.update_store import UpdateStore
from flstream.telemetry.events import (
    AnyEvent,
    EndedEarly,
    ModelRecord,
    RoundFinished,
    SiteSuspended,
    Transfer,
    Warned,
)
from flstream.text import brief_names
from flstream.worker.messages import SiteAnswer

if TYPE_CHECKING:
    from flstream.server.collecting import ModelCollection
    from flstream.server.privacy import PrivateFolds
    from flstream.server.simulated_clock import SimulatedClock
    from flstream.server.site_history import SiteHistory


class RoundTotals:
    """Costs of a round's trainings, and results of its folds, which the end of the round adds up.

    Attributes:
        cost: What the trainings cost together, of which there may be very many.
        folds: What came of each fold or adoption, without its training.
    """

    def __init__(self) -> None:
        self.cost = TaskCost()
        self.folds: list[FoldResult] = []

    def add_cost(self, cost: TaskCost) -> None:
        """Add what a training cost."""
        self.cost = TaskCost(*map(operator.add, self.cost, cost))

    def finished(self, number: int, newest: ModelRecord, simulated: float | None) -> RoundFinished:
        """The event that ends a round, with the virtual clock's time in seconds, if any."""
        cost, folds = self.cost, self.folds
        weights, updates = dict[str, float](), Counter[str]()
        for fold in folds:
            for site, weight in fold.weights.items():
                weights[site] = weights.get(site, 0.0) + weight
            updates.update(site for _, sites in fold.updates for site in sites)
        up = sum((fold.up for fold in folds), Transfer())
        upload = cost.fetch + sum(fold.fold for fold in folds)
        private = [fold.privacy.spent for fold in folds if fold.privacy is not None]
        return RoundFinished(
            round=number,
            digest=newest.digest,
            optimizer_state=newest.optimizer_state,
            download=cost.download,
            train=cost.work,
            upload_and_fold=upload,
            checkpoint=sum(fold.checkpoint for fold in folds),
            weights=weights,
            updates={site: n for site, n in updates.items() if n > 1},
            metrics=self._means(),
            down=replace(cost.down, seconds=cost.download),
            up=replace(up, seconds=upload),
            aggregator=next((fold.at for fold in reversed(folds) if fold.at), ""),
            privacy=private[-1] if private else None,
            simulated_seconds=simulated,
        )

    def _means(self) -> dict[str, float]:
        """Means of the metrics of the folds, weighted by the sums of their updates' weights."""
        if len(self.folds) == 1:
            return dict(self.folds[0].metrics)
        return weighted_metrics([(sum(fold.weights.values()), fold.metrics) for fold in self.folds])


class RunState:
    """The state of a run: it is the same, whether its effects were done or replayed.

    Args:
        context: The server.
        journal: The effects.
        store: The models.

    Attributes:
        context: The server.
        journal: The effects.
        store: The models.
        update_store: The updates that are not settled yet.
        tasks: Makes the tasks of trainings.
        received: What sites have of models of which they were sent parts.
        trainings: The effects of trainings.
        unchanged: Sites that have sent the model that they received, of which there was a warning.
        scoring: The effects of scores, and the best model by them.
        fleet: The sites: who may be asked, who is idle, their parts of tasks and their states.
        clock: The virtual clock; None where that on the wall counts.
        in_flight: The trainings of single sites that were started, and whose answers were not taken
            yet, by site in the order of their starts.
        site_history: What sites have done; None where the sampler needs none of it.
        site_code: What sites' code asks, and reads of what it was sent.
        last_models: By site, the digest of the last model that it has sent, and the number of the
            fold that took it; where a workflow collects models.
        private: Makes folds private; None where the job is not.
        round: The current round, from 1; 0 before the first.
        stage: Place of the current workflow among those of the job, from 0.
        stopping: Judges by the scores of its models whether it goes on.
        totals: Of the round under way; None before the first one of a stage, and after its last.
        failure: What an effect has failed with; None while none has.
    """

    def __init__(self, context: ServerContext, journal: EffectJournal, store: ModelStore) -> None:
        job = context.job
        self.context = context
        self.journal = journal
        self.store = store
        self.received = ReceivedTensors(store)
        self.update_store = UpdateStore(context, store, self.received)
        self.tasks = TrainingTasks(context, store, self.update_store, self.received)
        self.fleet = Fleet(job)
        self.clock: SimulatedClock | None = None
        if job.time.is_virtual:
            from flstream.server.simulated_clock import SimulatedClock

            self.clock = SimulatedClock(job, self.fleet)
        self.in_flight: dict[str, SiteTraining] = {}
        self.site_history: SiteHistory | None = None
        if not job.clients.sampler.is_uniform:
            from flstream.server.site_history import SiteHistory

            self.site_history = SiteHistory(job.seed)
        self.site_code = SiteCode()
        self.last_models: dict[str, tuple[str, int]] = {}
        self.round = 0
        self.stage, self.stopping = 0, EarlyStopping(job)
        self.private: PrivateFolds | None = None
        if job.privacy.is_on:
            from flstream.server.privacy import PrivateFolds

            self.private = PrivateFolds(job, self.stopping)
        # By round, the number of the last effect that counted at its end.
        self._round_ends: list[int] = []
        self.unchanged: set[str] = set()
        self.trainings = TrainingEffects(self)
        self.scoring = ScoringEffects(self)
        self._program_path = ""
        self.totals: RoundTotals | None = None
        self.failure: FlstreamError | None = None

    @cached_property
    def collection(self) -> ModelCollection:
        """The models that sites were asked for."""
        from flstream.server.collecting import ModelCollection

        return ModelCollection(self)

    @property
    def sites(self) -> list[str]:
        """The sites that are still asked, in their fixed order."""
        return self.fleet.sites

    @property
    def now(self) -> int:
        """Nanoseconds since the run began, by the virtual clock; 0 by that on the wall."""
        return 0 if self.clock is None else self.clock.now

    @property
    def evaluators(self) -> list[str]:
        """Sites to send an evaluation, where one is due."""
        if self.context.job.is_scored_centrally and self.site_code.source == "auto":
            return []
        # Without going over the fleet in each round where nobody is asked.
        return [] if self.site_code.is_received else self.site_code.evaluators(self.sites)

    def program_line(self) -> int | None:
        """Line of the workflow's file that is being run; None if that is not known."""
        path = self._program_path
        frame: FrameType | None = sys._getframe()
        while frame is not None and frame.f_code.co_filename != path:
            frame = frame.f_back
        return None if frame is None else frame.f_lineno

    @property
    def oldest_effect(self) -> int:
        """Last effect that counted at the end of the oldest round to which the run may go back."""
        return self._round_ends[self.oldest_round]

    @property
    def oldest_round(self) -> int:
        """The oldest round whose model stays until this one has made its own."""
        return self.store.retention.oldest(self.round - 1)

    def begin_stage(self, place: int) -> None:
        """Begin with the next workflow, by its place among those of the job, from 0."""
        self.stage, self.stopping = place, EarlyStopping(self.context.job)
        self._program_path = str(self.context.job.stages[place].program_file)
        self.tasks.waits = UNLIMITED
        self.site_code.source = self.context.job.stages[place].args.evaluate
        if self.private is not None:
            self.private.begin_stage(self.stopping)

    def end_stage(self, reason: str | None) -> None:
        """End the current workflow's last round.

        Args:
            reason: Why it has had fewer rounds than the job; None if it has not.
        """
        self.end_round()
        if reason is not None:
            self.emit_live(EndedEarly(round=self.round, reason=reason))

    def begin_round(self) -> None:
        """Begin the next round, and end the current one."""
        self.end_round()
        self.hold_models()
        # What was in flight came to count later, whatever the number of its start. The first of
        # them was started first.
        first = next(iter(self.in_flight.values()), None)
        self._round_ends.append(self.journal.asked if first is None else first.number - 1)
        self.round += 1
        self.totals = RoundTotals()
        self.fleet.begin_round()

    def hold_models(self) -> None:
        """Keep what trainings in flight and waiting updates start from at the end of this round."""
        if self.store.retention.keep == "all":
            return
        in_flight = {training.base.version for training in self.in_flight.values()}
        in_flight |= {training.trained_from.version for training in self.in_flight.values()}
        received = self.received.needed()
        self.store.hold(self.round, in_flight | self.update_store.waiting_bases() | received)

    def end_round(self) -> None:
        """End the current round, if there is one, and tell what it cost, unless that is known."""
        totals, self.totals = self.totals, None
        if totals is not None:
            self.store.name_round(self.round)
            simulated = None if self.clock is None else self.clock.now / NANOSECONDS
            self.emit_live(totals.finished(self.round, self.store.newest.record, simulated))

    def asked_sites(
        self, method: str, sites: Sequence[str], timeout: float | None
    ) -> tuple[list[str], float]:
        """The sites of an effect that are still asked, and the seconds that each may take."""
        check_sites_and_timeout(method, sites, timeout)
        self.check_sites(method, sites)
        still_asked, default = set(self.sites), self.context.job.clients.round_timeout
        names = [site for site in sites if site in still_asked]
        return names, default if timeout is None else float(timeout)

    @property
    def keeps_last_models(self) -> bool:
        """Whether the last model of each site is kept: a workflow from here on collects them."""
        return any(program.collected for program in self.context.programs[self.stage :])

    def check_round(self, method: str) -> None:
        """Refuse what a workflow does before its first round.

        Raises:
            WorkflowError: There is no round; the message names the method.
        """
        if self.totals is None:
            raise WorkflowError(
                f"run.{method}() was called before the first round; call it in the loop over "
                "run.rounds()"
            )

    def check_sites(self, method: str, names: Sequence[str]) -> None:
        """Refuse names that are no sites of the job, or that stand there twice."""
        known, seen = self.fleet.numbers, set[str]()
        for name in names:
            if name not in known:
                raise WorkflowError(
                    f"run.{method}() was given {name!r}, which is no site of the job; "
                    f"its sites are {brief_names(list(known))} (run.all_sites)"
                )
            if name in seen:
                raise WorkflowError(f"run.{method}() was given {name} twice; name each site once")
            seen.add(name)

    def settle_failures(self, contributed: Iterable[str] | None = None) -> None:
        """Ask sites no more that failed too often.

        Args:
            contributed: Sites whose updates are part of a model that was made; None without one.
        """
        count = self.context.job.clients.suspend_after
        for site in self.fleet.settle_failures(contributed):
            self.emit_live(SiteSuspended(round=self.round, site=site, failures=count))

    def retire_models(self) -> None:
        """Remove the files of models that nothing needs any more."""
        self.store.retire(self.scoring.best_versions, self.received.needed())

    def warn_of_late(self, answers: Iterable[SiteAnswer]) -> None:
        """Warn of sites whose code asks about evaluations after its first task."""
        if self.context.job.is_scored_centrally:
            return
        if late := self.site_code.take_late(answers):
            first = "its first task" if len(late) == 1 else "their first tasks"
            self.warn(
                [
                    f"the code of {brief_names(late)} asked in round {self.round}, and not in "
                    f"{first}, which task it has, so it is sent no evaluations; ask in every task, "
                    "or set workflow.args.evaluate = task"
                ]
            )

    def warn(self, messages: Iterable[str]) -> None:
        """Emit warnings, a sentence each, unless they are replayed."""
        self.emit_live(*(Warned(message=message) for message in messages))

    def emit_live(self, *events: AnyEvent) -> None:
        """Emit events, unless what they tell of is replayed, and was told of before."""
        if events and self.journal.is_live:
            self.context.emit(*events)
