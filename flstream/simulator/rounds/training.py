"""One round's training: updates come in, in whatever order, and are folded in the cohort's."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from flstream.aggregation.partial_sum import PartialSum
from flstream.aggregation.rules import Rule
from flstream.client.messages import Trained, TrainedSite
from flstream.client.state import discard_after
from flstream.errors import AbortedError, UpdateRefusedError
from flstream.job import Job
from flstream.model.checkpoint import FileSource
from flstream.simulator.crew.batches import Batch, Batches
from flstream.simulator.crew.crew import REPORT_SECONDS, Crew, Lost, Retired, Say
from flstream.simulator.crew.listening import Heard, Replaced
from flstream.simulator.crew.worker import Worker
from flstream.simulator.rounds.failures import brief
from flstream.simulator.rounds.folding import RoundFold
from flstream.simulator.rounds.gathering import Gathering
from flstream.simulator.rounds.plan import RoundPlan
from flstream.simulator.rounds.reporting import TaskReport, report_heard, report_replaced
from flstream.simulator.rounds.settings import stream_settings
from flstream.simulator.rounds.spool import Spool
from flstream.simulator.rounds.tasks import Arrived, Assignment, Given, ask
from flstream.simulator.rounds.updates import Collected, Held, fetch_into_memory
from flstream.streaming.receiver import StreamSettings
from flstream.streaming.service import DownloadService
from flstream.telemetry.events import AnyEvent, Progress, SiteFailed, SiteUpdate, Transfer
from flstream.transport.channel import AbortSignal


class Delivered(NamedTuple):
    """Updates are where the server has them at hand.

    Attributes:
        updates: of the sites of one task.
        seconds: that it took to get them from the worker.
    """

    updates: Sequence[Collected]
    seconds: float


class Training:
    """The updates of one round, from when they are asked for until they are folded.

    Args:
        job: the job.
        assignment: the task.
        cohort: the sites.
        plan: how the task is spread over workers.
        base: the model that the sites start from.
        rule: how updates are combined.
        spool: where updates wait as files, if they do.
        sums: where the sum of updates is kept, if it is.
        service: offers the model.
        emit: takes events.
        abort: raised to stop the run.
        folder_of: the folder of a site's own.

    Attributes:
        told: what each site said of its update that is part of the round.
        down: the cost of the model's way to the sites.
        up: that of the updates.
        seconds: spent in getting the model down, in training, and in getting updates up; where
            workers do several sites, what a worker has spent on average.
    """

    def __init__(
        self,
        job: Job,
        assignment: Assignment,
        cohort: Sequence[str],
        plan: RoundPlan,
        base: FileSource,
        rule: Rule,
        spool: Spool | None,
        sums: PartialSum | None,
        service: DownloadService,
        emit: Callable[[AnyEvent], None],
        abort: AbortSignal,
        folder_of: Callable[[str], Path],
    ) -> None:
        clients = job.clients
        self._job = job
        self._assignment = assignment
        self._cohort = cohort
        self._plan = plan
        self._base = base
        self._spool = spool
        self._sums = sums
        self._service = service
        self._emit = emit
        self._abort = abort
        self._folder_of = folder_of
        least = clients.min_updates or len(cohort)
        self._gathering: Gathering[Collected | None] = Gathering(
            f"train round {assignment.round}", cohort, least, clients.wait_after_min
        )
        self._rule = rule
        self._report = TaskReport("train", assignment.round, base.layout.nbytes, emit)
        self._reported = 0.0
        self._fetching = 0.0
        self._folded = 0
        self._told: dict[str, TrainedSite] = {}
        self.seconds = 0.0, 0.0, 0.0
        self.up = Transfer()

    @property
    def told(self) -> Mapping[str, TrainedSite]:
        """What each site said, in the cohort's order: the last bits of a mean depend on it."""
        return {site: self._told[site] for site in self._cohort if site in self._told}

    @property
    def down(self) -> Transfer:
        """The cost of the model's way to the sites."""
        return self._report.down

    def run(self, crew: Crew) -> None:
        """Have the cohort train.

        Raises:
            SimulationError: too few sites are left; the message names the others.
            AbortedError: the run is being stopped.
        """
        began = time.monotonic()
        self._gathering.check_size()
        there = set(self._gathering.answers)
        todo = [site for site in self._cohort if site not in there]
        ahead = 2 * self._plan.group if self._plan.group else None
        own = {site: site for site in todo} if self._plan.own else None
        batches = Batches(self._cohort, self._plan.sites, ahead, own, there)
        workers = todo if self._plan.own else crew.names[: -(-len(todo) // self._plan.sites)]

        # What an earlier server left may fill the window already.
        batches.fold(self._folded)
        self._fold_ready(batches)

        def perform(worker: Worker, sites: Batch, say: Say) -> None:
            self._train(crew, worker, sites, say)

        for said in crew.perform(batches, perform, workers) if todo else ():
            self._hear(said)
            self._leave_late(crew, batches)
            if isinstance(said, Delivered | Lost):
                self._fold_ready(batches)
        assert self._gathering.settled == len(self._cohort)
        ended = time.monotonic()
        if self._plan.own:
            arrived = self._report.arrived_at
            self.seconds = arrived - began, ended - arrived, 0.0
        else:
            count = len(workers) or 1
            down, fetched = self._report.down.seconds / count, self._fetching / count
            self.seconds = down, max(ended - began - down - fetched, 0.0), fetched

    def finish(self, fold: Callable[[RoundFold, Sequence[Collected]], str]) -> str:
        """Fold what is not yet part of a sum, and return the digest of the next model."""
        left = [each for each in self._gathering.in_order.values() if each is not None]
        digest = fold(self._fold(), left)
        for each in left:
            self.up += each.cost
        return digest

    def release(self) -> None:
        """Let go of all updates: they are part of a model that is durable."""
        for each in self._gathering.answers.values():
            if each is not None:
                each.release()
        if self._spool is not None:
            self._spool.discard()

    def take_up(self) -> set[str]:
        """Go on with what an earlier server left of this round, and say whose updates that is."""
        if self._spool is None:
            return set()
        folded = self._sums.sites if self._sums is not None else ()
        for site in folded:
            told = self._spool.told(site)
            if told is not None:
                self._gathering.answer(site, None)
                self._told[site] = told.trained
                self.up += told.cost
        told_of_all = len(self._gathering.answers) == len(folded)
        in_order = tuple(folded) == tuple(self._cohort[: len(folded)])
        if self._sums is not None and not (told_of_all and in_order):
            # The sum has updates of which nothing else is known any more, or lacks one of a site
            # that had failed and is now asked again: added later, it would give other bits.
            self._sums.discard()
            self._gathering.answers.clear()
            self._told.clear()
            self.up, folded = Transfer(), ()
        self._folded = len(folded)
        left = [site for site in self._cohort if site not in folded]
        for site, update in self._spool.recover(left).items():
            self._gathering.answer(site, update)
            self._told[site] = update.trained
        return set(self._gathering.answers)

    def _train(self, crew: Crew, worker: Worker, sites: Batch, say: Say) -> None:
        """Have a worker train sites, and get their updates: on a thread of the crew."""
        answer = ask(self._assignment, crew, self._service, worker, sites, say, Trained)
        if not answer.sites:
            return
        began = time.monotonic()
        first, *_ = answer.sites
        settings = stream_settings(self._job, first.framework)
        updates: Sequence[Collected]
        if self._plan.own:
            updates = [Held(first, worker, answer.ref, settings, self._base.layout)]
        else:
            try:
                updates = self._fetch(worker, answer, settings, len(sites))
            except UpdateRefusedError as error:
                say(Lost(first.site, str(error)), first.site)  # the worker is as good as before
                return
        seconds = time.monotonic() - began
        say(Delivered(updates, seconds), *(each.trained.site for each in updates))

    def _fetch(
        self, worker: Worker, answer: Trained, settings: StreamSettings, asked: int
    ) -> Sequence[Collected]:
        if self._spool is None:
            return fetch_into_memory(worker, answer, settings, self._base.layout, asked)
        return [self._spool.fetch(worker, answer.sites[0], answer.ref, settings)]

    def _hear(self, said: object) -> None:
        match said:
            case Replaced() | Retired():
                report_replaced(said, self._emit)
            case Heard():
                report_heard(said, self._emit)
            case Given():
                self._report.given(said)
            case Arrived():
                self._report.arrived(said)
            case Delivered(updates, seconds):
                self._fetching += seconds
                for update in updates:
                    self._take(update)
            case Lost(site, reason) if site not in self._gathering.failures:
                self._lose(site, reason)
            case None:
                self._report.progress()

    def _take(self, update: Collected) -> None:
        trained = update.trained
        if trained.site in self._gathering.failures:  # it came after it was given up
            update.release("the round went on without it")
            return
        self._gathering.answer(trained.site, update)
        self._told[trained.site] = trained
        self._report.answered(trained.site)
        self._emit(
            SiteUpdate(
                round=self._assignment.round,
                site=trained.site,
                weight=trained.weight,
                metrics=trained.metrics,
            )
        )

    def _lose(self, site: str, reason: str, *, late: bool = False) -> None:
        # What it keeps for itself goes back to what it was before the round, too.
        with suppress(OSError):  # its process may be ending; a later task of the site does the rest
            discard_after(self._folder_of(site), self._assignment.round - 1)
        number, reason = self._assignment.round, brief(reason)
        self._emit(SiteFailed(round=number, site=site, reason=reason, late=late))
        self._told.pop(site, None)
        self._gathering.fail(site, reason)

    def _refuse(self, site: str, reason: str) -> None:
        """An update has turned out to be of no use."""
        self._lose(site, reason)

    def _leave_late(self, crew: Crew, batches: Batches) -> None:
        """Go on without those that are not ready once enough are."""
        late = self._gathering.late
        if not late:
            return
        self._gathering.spare(batches.close())
        asked = [site for site in late if not self._gathering.is_settled(site)]
        for name, sites in batches.taken.items():
            if set(sites) & set(asked):
                crew.end(name)
        waited = f"{self._gathering.patience:g} s"
        for site in asked:
            reason = f"it was not ready {waited} after enough others (clients.wait_after_min)"
            self._lose(site, reason, late=True)

    def _fold_ready(self, batches: Batches) -> None:
        """Add to the sum what has come in without a gap, a group at a time."""
        if not self._plan.group:
            return
        settled = self._gathering.settled
        answers = self._gathering.answers
        ready = [answers.get(site) for site in self._cohort[self._folded : settled]]
        updates = [each for each in ready if each is not None]
        # Where so many have failed that the window has no group in it, workers would wait for ever.
        is_full = settled - self._folded >= 2 * self._plan.group
        if len(updates) >= self._plan.group or is_full:
            self._folded = settled
            self._fold().add(updates)
            for update in updates:
                if update.trained.site in self._gathering.answers:
                    self._gathering.answers[update.trained.site] = None
                    self.up += update.cost
            batches.fold(settled)

    def _fold(self) -> RoundFold:
        # It refers to this object, which does not keep it: both, and with them the file of a model
        # that may have been removed since, are gone with the last reference, not some time later.
        budget = self._job.aggregation.memory_budget
        return RoundFold(self._base, self._rule, budget, self._refuse, self._on_range, self._sums)

    def _on_range(self, done: int) -> None:
        if self._abort.is_set():
            raise AbortedError("the run was stopped")
        now = time.monotonic()
        size = self._base.layout.nbytes
        if now - self._reported >= REPORT_SECONDS or done == size:
            self._reported = now
            up = dict.fromkeys(self._told, done) if self._plan.own else {}
            self._emit(Progress(down={}, up=up, size=size, folded=done))
