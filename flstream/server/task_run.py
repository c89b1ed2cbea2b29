"""One task over its cohort: given to workers, answered in whatever order, settled site by site."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Literal

import msgspec

from flstream.aggregation.update import CollectedUpdate
from flstream.aggregation.update_body import RemoteBody
from flstream.errors import (
    ChannelClosedError,
    SimulationError,
    UpdateRefusedError,
    WorkerLostError,
)
from flstream.runs.results import TaskCost
from flstream.runs.site_states import discard_site_state_after
from flstream.server.collector import START_KEY, ResultCollector, SiteLost
from flstream.server.context import ServerContext
from flstream.server.pooled_worker import ReportCallback
from flstream.server.site_queue import SiteBatch, SiteQueue
from flstream.server.task_plan import TaskPlan
from flstream.server.tasks import LateTensors, ModelOffer, TaskSpec
from flstream.server.updates import UpdateFiles, update_in_answer, update_of
from flstream.server.worker_handle import TIMEOUT_KEY, WorkerHandle
from flstream.streaming.refs import Delivery
from flstream.streaming.settings import stream_settings
from flstream.telemetry.events import (
    LateReceived,
    SitePhaseChanged,
    SiteUpdate,
    Transfer,
    WorkerActivity,
)
from flstream.worker.messages import (
    SUBMIT_MODEL,
    Answered,
    Failed,
    InlineUpdate,
    OfferedUpdate,
    Progress,
    SiteAnswer,
    TaskKind,
    WrittenUpdate,
    is_weight,
)

if TYPE_CHECKING:
    from flstream.server.simulated_clock import SiteClock, SiteTime

# Bytes of an update that are checked at a time.
_CHECKED_BYTES = 1 << 20


_Result = tuple[SiteAnswer, CollectedUpdate | None]  # no update where it is an evaluation
_Working = Literal["training", "evaluating", "submitting"]
_AT_WORK: dict[TaskKind, _Working] = {
    "train": "training",
    "evaluate": "evaluating",
    "submit_model": "submitting",
}


@dataclass
class WorkerTurn:
    """The turn of a worker at a task, for one site after another. Any thread may look.

    Attributes:
        worker: Name of the worker.
        sites: The sites.
        delivery: What the worker was sent of the model so far.
        state: What the worker does.
        since: When it began with that, or with its current site, in seconds since the epoch.
        begun: Number of sites that it has begun with.
        failures: Number of sites that have failed.
    """

    worker: str
    sites: SiteBatch
    delivery: Delivery
    state: Literal["downloading", "ready"] | _Working
    since: float
    begun: int = 0
    failures: int = 0

    def activity(self) -> WorkerActivity:
        """Return what the worker does as a snapshot's record."""
        is_own = self.sites == (self.worker,)
        over = 0 if is_own else min(max(self.begun - 1, 0), len(self.sites) - 1)
        site, done = "" if is_own else self.sites[over], max(over - self.failures, 0)
        return WorkerActivity(
            self.worker, self.state, self.since, site, done, len(self.sites), self.delivery.bytes
        )


class TaskRun:
    """A task in progress.

    Args:
        context: The server.
        spec: The task.
        plan: How it is spread over workers.
        collector: Takes the sites' results, and knows how many have to come.
        files: Where updates wait as files; None where they do not.
        clocks: Simulated clocks of the sites, by name; none on the wall clock.

    Attributes:
        spec, collector: As given.
        ended: When it has ended, by these; None before.
        late: Sites that were not waited for any longer.
        cost: What it cost; known once it is over.
        down: Cost of the model's way to the sites so far.
        arrived_at: When the model had arrived at the last worker so far, by the monotonic clock.
        late_tensors: Tensors that a site is sent while it trains; None where it is sent none.
        declared: Takes the work that a site has declared, on the thread that makes decisions.
    """

    def __init__(
        self,
        context: ServerContext,
        spec: TaskSpec,
        plan: TaskPlan,
        collector: ResultCollector,
        files: UpdateFiles | None = None,
        clocks: Mapping[str, SiteClock] | None = None,
    ) -> None:
        self.collector = collector
        self._clocks = clocks or {}
        self.ended: int | None = None
        self.late: list[str] = []
        self.cost = TaskCost()
        self.down = Transfer()
        self._context = context
        self._picture = context.picture
        self.spec = spec
        self._plan = plan
        self._files = files
        self.arrived_at = time.monotonic()
        self._fetching = 0.0
        # Of each site that a worker has, until it has answered or failed; of a site's own worker to
        # the end of the task.
        self._turns: dict[str, WorkerTurn] = {}
        # By site, why it never trains.
        self._away: dict[str, SiteTime] = {}
        for site, clock in self._clocks.items():
            if (absent := clock.arrive(spec.bytes_down(site))) is not None:
                self._away[site] = absent
        ahead = 2 * plan.sum_group if plan.sum_group else None
        self._queue = SiteQueue(
            spec.cohort, plan.batch_size, ahead, own=plan.has_own_workers, absent=self._away.keys()
        )
        parts, self.late_tensors = spec.task.parts, None
        if parts is not None and parts.is_late:
            self.late_tensors = LateTensors(context, spec)
        self.declared: Callable[[str, float], None] = lambda *_: None

    def activities(self) -> list[WorkerActivity]:
        """Activities of the workers that have the task."""
        turns = {turn.worker: turn for turn in list(self._turns.values())}
        return [turn.activity() for turn in turns.values()]

    def run(self) -> None:
        """Give the task to workers until every site has answered or failed."""
        for _ in self.progress():
            pass

    def progress(self) -> Generator[None]:
        """Run the task as :meth:`run` does, and yield after each event; close it at the end."""
        spec, began = self.spec, time.monotonic()
        self._picture.begin(_AT_WORK[spec.kind], spec.task.round, len(spec.cohort), self.activities)
        self.leave_out_away()
        workers = self._workers()
        if workers:
            # Closed also where the run fails here: else workers would be given what is left.
            with closing(self._context.pool.perform(self._queue, self, workers)) as events:
                for has_moved in spec.waits.expecting(
                    events, f"{spec.kind} task", spec.task.round, self._unsettled
                ):
                    self._picture.emit_snapshot(at_once=not has_moved)
                    self._leave_late()
                    yield
        assert self.collector.settled == len(spec.cohort)
        self._leave_stragglers()
        self.cost = self._cost(began, len(workers))

    def leave_out_away(self) -> None:
        """Leave out the sites that never train, as the virtual clock has it."""
        for site, end in self._away.items():
            self.fail(site, end.failure, late=end.is_absence)

    def _leave_stragglers(self) -> None:
        """Leave out the sites whose answers come too late on the virtual clock."""
        if not self._clocks:
            return
        from flstream.server.simulated_clock import late_answers

        self.ended, late = late_answers(
            self._clocks, list(self.collector.in_order), self.collector.end
        )
        for site in late:
            update = self.collector.updates.get(site)
            self.fail(site, self._context.job.straggler_reason, late=True)
            if update is not None:
                update.body.release("the round went on without it")

    def folded(self, count: int) -> None:
        """Release the room of the first ``count`` sites: workers take sites further ahead."""
        self._queue.fold(count)

    def lose(self, lost: SiteLost) -> None:
        """Record that a site has failed, unless it had before."""
        if lost.site not in self.collector.failures:
            self.fail(*lost)

    def fail(
        self, site: str, reason: str, exit_code: int | None = None, *, late: bool = False
    ) -> None:
        """Leave a site out of the task, with all that it kept for itself."""
        spec, context = self.spec, self._context
        # A later task does the rest: a late one's process may be ending, or its state on its way.
        if spec.kind == "train" and spec.task.keeps_state and not late:
            with suppress(SimulationError):
                effect = spec.sites[site].effect or spec.task.effect
                discard_site_state_after(context.run.site(site), effect - 1, spec.sites[site].state)
        self._picture.failed()
        if (turn := self._turns.pop(site, None)) is not None:
            turn.failures += 1
        if late:
            self.late.append(site)
        elif self._clocks:
            self._clocks[site].fail(reason)
        context.emit(SiteLost(site, reason, exit_code).event(spec.task.round, late=late))
        self.collector.fail(site, reason)

    def _workers(self) -> Sequence[str]:
        cohort = [site for site in self.spec.cohort if site not in self._away]
        if self._plan.has_own_workers:
            return cohort
        return self._context.pool.free_first(-(-len(cohort) // self._plan.batch_size))

    def perform(self, worker: WorkerHandle, sites: SiteBatch, report: ReportCallback) -> None:
        """Run the task for some sites on a worker, and collect their updates; on a pool's thread.

        A site whose update is of no use has failed; its worker is as good as before.
        """
        answer = self._ask(worker, sites, report)
        if not answer.sites:
            return
        sent, others = list[SiteAnswer](), list[SiteAnswer]()
        for site_answer in answer.sites:
            (sent if site_answer.has_params and self.spec.has_updates else others).append(
                site_answer
            )
        if others:
            plain: list[_Result] = [(site_answer, None) for site_answer in others]
            report(
                partial(self._deliver, plain, 0.0), *(site_answer.site for site_answer in others)
            )
        if not sent:
            return
        began, results = time.monotonic(), list[_Result]()
        for site_answer in sent:
            try:
                update = self._collect(worker, site_answer)
                self._expect_sound(update)
            except UpdateRefusedError as error:
                report(partial(self.lose, SiteLost(site_answer.site, str(error))), site_answer.site)
            else:
                results.append((msgspec.structs.replace(site_answer, update=None), update))
        deliver = partial(self._deliver, results, time.monotonic() - began)
        report(deliver, *(site_answer.site for site_answer, _ in results))

    def _ask(self, worker: WorkerHandle, sites: SiteBatch, report: ReportCallback) -> Answered:
        """Give a worker the task for some sites, and wait for the answer."""
        spec, began = self.spec, monotonic()
        offers = spec.offers(self._context, worker, sites)
        deadline, key = began + spec.seconds, TIMEOUT_KEY
        if spec.waits.start is not None and spec.waits.start < spec.seconds:
            deadline, key = began + spec.waits.start, START_KEY
        at_work = sites[0] if len(sites) == 1 else None
        acknowledged = False
        try:
            offer = _next_offer(offers)
            turn = WorkerTurn(worker.name, sites, offer.delivery, "downloading", time.time())
            if spec.kind == SUBMIT_MODEL:  # which comes with none
                turn.state = "submitting"
            # A worker that has just ended has most likely said why: that is still to be received.
            with suppress(ChannelClosedError):
                worker.control.send(spec.message(offer, sites))
                if self.late_tensors is not None:
                    self.late_tensors.give(worker)
            report(partial(self._give, turn))
            failed: set[str] = set()
            while True:
                message = worker.next_message(deadline, f"answer its {spec.kind} task", key)
                match message:
                    case Progress(spec.task.effect, "taken"):
                        if not acknowledged:
                            deadline, key = began + spec.seconds, TIMEOUT_KEY
                        acknowledged = True
                    case Progress(spec.task.effect, "host lost") if spec.hosts:
                        offer = _next_offer(offers)
                        with suppress(ChannelClosedError):
                            worker.control.send(spec.message(offer, sites))
                    case Progress(spec.task.effect, "declared", site, units=units) if site in sites:
                        report(partial(self.declared, site, units))
                    case Progress(_, "turn", site) if site in sites:
                        # Each has as long as if it were alone.
                        at_work, deadline = site, monotonic() + spec.seconds
                        turn.begun, turn.since = turn.begun + 1, time.time()
                        if spec.waits.progress is not None:  # which this is, though nothing came
                            report(lambda: None)
                    case Progress(spec.task.effect, "received", cost=cost):
                        report(partial(self._arrive, turn, cost))
                    case Progress(spec.task.effect, "late", cost=cost, waited=waited):
                        report(partial(self._take_late, sites[0], cost, waited))
                    case Failed(site, _, reason, code) if site in sites and site not in failed:
                        failed.add(site)
                        report(partial(self.lose, SiteLost(site, reason, code)), site)
                    case Failed(reason=reason, exit_code=code):
                        raise WorkerLostError(reason, exit_code=code)
                    case Answered():
                        _check(spec, message, {*sites} - failed)
                        return message
                    case _:
                        raise WorkerLostError(f"it sent {type(message).__name__}, out of turn")
        except WorkerLostError as error:
            error.site = at_work
            error.is_acknowledged = acknowledged
            report(partial(self._end_turn, sites))
            raise
        finally:
            offers.close()
            if self.late_tensors is not None:
                self.late_tensors.withdraw()

    def _expect_sound(self, update: CollectedUpdate) -> None:
        """Refuse an update that the workflow reads, and that cannot be folded."""
        if self.spec.is_checked:
            from flstream.aggregation.adoption import expect_sound

            try:
                expect_sound(self.spec.model, update, _CHECKED_BYTES, self._context.expect_on)
            except UpdateRefusedError as error:
                update.body.release(str(error))
                raise

    def _collect(self, worker: WorkerHandle, answer: SiteAnswer) -> CollectedUpdate:
        """Take a site's update: as it lies in its worker, or into a file or memory."""
        assert self.spec.form is not None
        files, form = self._files, self.spec.form(answer.site)
        match answer.update:
            case WrittenUpdate() as written:
                assert files is not None
                return files.take(answer, written)
            case InlineUpdate() as sent:
                update = update_in_answer(answer, sent, form)
                if files is not None:
                    files.store(update)
                return update
            case OfferedUpdate(token):
                settings = stream_settings(self._context.job, answer.framework)
                update = update_of(answer, RemoteBody(worker.up, token, settings), form)
                if files is not None:
                    files.fetch(update)
                return update
        raise AssertionError("an answer without an update was refused")

    def _give(self, turn: WorkerTurn) -> None:
        """Record that a worker was given the task, and is fetching the model."""
        self._turns.update(dict.fromkeys(turn.sites, turn))
        self._tell(turn)

    def _end_turn(self, sites: SiteBatch) -> None:
        """Record that a worker is lost that had the task for some sites."""
        for site in sites:
            self._turns.pop(site, None)

    def _arrive(self, turn: WorkerTurn, cost: Transfer) -> None:
        """Record that the model has arrived at a worker."""
        self.down += cost
        self.arrived_at = time.monotonic()
        self._picture.arrived(cost.bytes)
        turn.state, turn.since = _AT_WORK[self.spec.kind], time.time()
        self._tell(turn)

    def _take_late(self, site: str, cost: Transfer, waited: float) -> None:
        """Record that a site has received tensors while it trained."""
        self.down += cost
        number = self.spec.task.round
        self._context.emit(
            LateReceived(
                round=number, site=site, bytes=cost.bytes, seconds=cost.seconds, waited=waited
            )
        )

    def _tell(self, turn: WorkerTurn) -> None:
        # A worker is done with many small sites in a moment: an event for each would cost more.
        if len(turn.sites) == 1:
            (site,), number = turn.sites, self.spec.task.round
            self._context.emit(SitePhaseChanged(round=number, site=site, state=turn.state))

    def _deliver(self, results: Sequence[_Result], seconds: float) -> None:
        """Record results of one worker, and how long it took to get its updates."""
        self._fetching += seconds
        taken: list[SiteAnswer] = []
        for answer, update in results:
            if answer.site in self.collector.failures:  # it came after it was given up
                if update is not None:
                    update.body.release("the round went on without it")
                continue
            if self._clocks and (end := self._clocks[answer.site].answer(answer)).failure:
                self.fail(answer.site, end.failure, late=end.is_absence)
                if update is not None:
                    update.body.release(end.failure)
                continue
            self.collector.answer(answer, update)
            self._picture.answered(update.body.cost.bytes if update is not None else 0)
            if (turn := self._turns.get(answer.site)) is not None:
                turn.state, turn.since = "ready", time.time()
                if turn.sites != (turn.worker,):  # which goes on to other sites
                    del self._turns[answer.site]
                self._tell(turn)
            taken.append(answer)
        if taken and self.spec.has_updates:
            number = self.spec.task.round
            self._context.emit(
                *(
                    SiteUpdate(
                        round=number,
                        site=site_answer.site,
                        weight=site_answer.weight,
                        metrics=site_answer.metrics,
                    )
                    for site_answer in taken
                    if site_answer.has_params
                )
            )

    def _unsettled(self) -> Sequence[str]:
        """Sites that have neither answered nor failed, in the cohort's order."""
        return [site for site in self.spec.cohort if not self.collector.is_settled(site)]

    def _leave_late(self) -> None:
        """Go on without those that are not ready some time after enough others are."""
        # Inline, sites wait for each other.
        if self._clocks or self._context.job.engine.is_inline or not (late := self.collector.late):
            return
        self.collector.spare(self._queue.close())
        waited_for = [site for site in late if not self.collector.is_settled(site)]
        for name, sites in self._queue.taken.items():
            if set(sites) & set(waited_for):
                self._context.pool.end(name)
        for site in waited_for:
            self.fail(site, self._context.job.straggler_reason, late=True)

    def _cost(self, began: float, workers: int) -> TaskCost:
        ended = time.monotonic()
        if self._plan.has_own_workers:
            arrived = max(self.arrived_at, began)
            return TaskCost(arrived - began, ended - arrived, down=self.down)
        count = workers or 1
        down, fetched = self.down.seconds / count, self._fetching / count
        return TaskCost(down, max(ended - began - down - fetched, 0.0), fetched, self.down)


def _next_offer(offers: Generator[ModelOffer]) -> ModelOffer:
    offer = next(offers, None)
    if offer is None:
        raise WorkerLostError("it received the model from no other worker, nor from the file")
    return offer


def _check(spec: TaskSpec, answer: Answered, sites: set[str]) -> None:
    if answer.effect != spec.task.effect:
        raise WorkerLostError(f"it answered task {answer.effect}, which it was not given")
    if {site_answer.site for site_answer in answer.sites} != sites or len(answer.sites) != len(
        sites
    ):
        raise WorkerLostError("it answered for sites that it was not asked for")
    for site_answer in answer.sites:  # what it runs may have had a hand in that
        if not is_weight(site_answer.weight):
            raise WorkerLostError(
                f"it gave the update of {site_answer.site} the weight {site_answer.weight:g}"
            )
    for site_answer in answer.sites if spec.has_updates else ():
        needs_update = spec.kind == "train" and spec.task.needs_update
        if site_answer.update is None and (site_answer.has_params or needs_update):
            raise WorkerLostError(f"it answered a {spec.kind} task without a model")
