"""One task over its cohort: given to workers, answered in whatever order, settled site by site."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import NamedTuple

import msgspec

from flstream.aggregation.adoption import expect_sound
from flstream.errors import AbortedError, SimulationError, UpdateRefusedError
from flstream.runs.site_states import discard_site_state_after
from flstream.server.collected_updates import (
    CollectedUpdate,
    RemoteUpdate,
    UpdateCollection,
    update_in_answer,
)
from flstream.server.collector import PROGRESS_KEY, ResultCollector, TaskWaits
from flstream.server.context import ServerContext
from flstream.server.failures import brief, site_failed
from flstream.server.model_offers import hint_at_pull
from flstream.server.pooled_worker import Report, SiteLost
from flstream.server.reporting import TaskReport
from flstream.server.site_queue import SiteBatch, SiteQueue
from flstream.server.stream_settings import stream_settings
from flstream.server.task_plan import TaskPlan
from flstream.server.tasks import ModelArrived, TaskGiven, TaskSpec, WorkerGone, ask
from flstream.server.training import TaskCost
from flstream.server.update_files import UpdateFiles
from flstream.server.worker_handle import WorkerHandle
from flstream.streaming.settings import limits_for_updates
from flstream.telemetry.events import SiteUpdate, Transfer, WorkerActivity
from flstream.text import brief_names
from flstream.units import format_seconds
from flstream.worker.messages import InlineUpdate, OfferedUpdate, SiteAnswer, WrittenUpdate

# Bytes of an update that are checked at a time.
_CHECKED_BYTES = 1 << 20


class SiteResult(NamedTuple):
    """A site's result in a task.

    Attributes:
        answer: What the site answered.
        update: Its update; None for an evaluation.
    """

    answer: SiteAnswer
    update: CollectedUpdate | None = None


class ResultsDelivered(NamedTuple):
    """Results of one worker are at hand.

    Attributes:
        results: Of the sites of its task.
        seconds: How long it took to get their updates from the worker.
    """

    results: Sequence[SiteResult]
    seconds: float = 0.0


class TaskRun:
    """A task in progress.

    Args:
        context: The server.
        spec: The task.
        plan: How it is spread over workers.
        collector: Takes the sites' results, and knows how many have to come.
        files: Where updates wait as files; None where they do not.

    Attributes:
        collector: As given.
        answers: What each site has answered that has not failed since.
        late: Sites that were not waited for any longer.
        cost: What it cost; known once it is over.
    """

    def __init__(
        self,
        context: ServerContext,
        spec: TaskSpec,
        plan: TaskPlan,
        collector: ResultCollector[CollectedUpdate | None],
        files: UpdateFiles | None = None,
    ) -> None:
        self.collector = collector
        self.answers: dict[str, SiteAnswer] = {}
        self.cost = TaskCost()
        self._context = context
        self._spec = spec
        self._plan = plan
        self._files = files
        self.late: list[str] = []
        self._report = TaskReport(spec.kind, spec.round, context)
        self._fetching = 0.0
        # Bytes of a mapped model that each site's training wrote to.
        self._copied: dict[str, int] = {}
        ahead = 2 * plan.group if plan.group else None
        self._queue = SiteQueue(spec.cohort, plan.sites, ahead, own=plan.own)

    @property
    def unsettled(self) -> Sequence[str]:
        """Sites that have neither answered nor failed, in the cohort's order."""
        return [site for site in self._spec.cohort if not self.collector.is_settled(site)]

    @property
    def updates(self) -> Mapping[str, CollectedUpdate]:
        """The updates at hand, by site."""
        return {
            site: update for site, update in self.collector.in_order.items() if update is not None
        }

    def activities(self) -> list[WorkerActivity]:
        """Activities of the workers that have the task."""
        return self._report.activities()

    @property
    def down(self) -> Transfer:
        """The cost of the model's way to the sites."""
        return self._report.down

    @property
    def in_order(self) -> Mapping[str, SiteAnswer]:
        """The answers in the cohort's order, on which the last bits of a mean depend."""
        return {site: self.answers[site] for site in self._spec.cohort if site in self.answers}

    def progress(self) -> Iterator[None]:
        """Give the task to workers until every site has answered or failed.

        Yields:
            Whenever results have come, or a site has failed.

        Raises:
            SimulationError: Too few sites are left; the message names the others.
            AbortedError: The run is being stopped.
        """
        began = moved = time.monotonic()
        self._report.begin(len(self._spec.cohort))
        if workers := self._workers():
            for event in self._context.pool.perform(self._queue, self.perform, workers):
                moved = moved if event is None else time.monotonic()
                self._expect_progress(time.monotonic() - moved)
                self.take(event)
                self._leave_late()
                if isinstance(event, ResultsDelivered | SiteLost):
                    yield
        assert self.collector.settled == len(self._spec.cohort)
        self.cost = self._cost(began, len(workers))
        hint = hint_at_pull(
            self._context, self._spec.round, self._spec.model.layout.nbytes, self._copied
        )
        if hint is not None:
            self._context.hint("pull", hint)

    def folded(self, count: int) -> None:
        """Release the room of the first ``count`` sites: workers take sites further ahead."""
        self._queue.fold(count)

    def fail(
        self, site: str, reason: str, exit_code: int | None = None, *, late: bool = False
    ) -> None:
        """Leave a site out of the task, with all that it kept for itself.

        Args:
            site: Name of the site.
            reason: Clause that says why.
            exit_code: Exit code of its process if that ended, or minus the signal that killed it.
            late: Whether the only reason is that the round does not wait longer.

        Raises:
            SimulationError: Too few sites are left.
        """
        spec, context = self._spec, self._context
        # A later task does the rest: a late one's process may be ending, or its state on its way.
        if spec.kind == "train" and spec.keeps_state and not late:
            with suppress(SimulationError):
                discard_site_state_after(
                    context.run.site(site), spec.effect - 1, spec.sites[site].state
                )
        reason = brief(reason)
        self._report.failed(site)
        if late:
            self.late.append(site)
        context.emit(site_failed(spec.round, site, reason, exit_code, late=late))
        self.answers.pop(site, None)
        self.collector.fail(site, reason)

    def _workers(self) -> Sequence[str]:
        cohort = self._spec.cohort
        if self._plan.own:
            return cohort
        return self._context.pool.free_first(-(-len(cohort) // self._plan.sites))

    def perform(self, worker: WorkerHandle, sites: SiteBatch, report: Report) -> None:
        """Run the task for some sites on a worker, and collect their updates; on a pool's thread.

        A site whose update is of no use has failed; its worker is as good as before.
        """
        answer = ask(self._context, self._spec, worker, sites, report)
        if not answer.sites:
            return
        if self._spec.kind == "train":
            self._copied[answer.sites[0].site] = answer.copied
        sent = [each for each in answer.sites if each.has_params and self._spec.has_updates]
        if others := [each for each in answer.sites if each not in sent]:
            results = [SiteResult(each) for each in others]
            report(ResultsDelivered(results), *(each.site for each in others))
        if not sent:
            return
        began, results = time.monotonic(), []
        for each in sent:
            try:
                update = self._collect(worker, each)
                self._expect_sound(update)
            except UpdateRefusedError as error:
                report(SiteLost(each.site, str(error)), each.site)
            else:
                results.append(SiteResult(update.answer, update))
        delivered = ResultsDelivered(results, time.monotonic() - began)
        report(delivered, *(each.answer.site for each in results))

    def _expect_sound(self, update: CollectedUpdate) -> None:
        """Refuse an update that the workflow reads, and that cannot be folded."""
        if self._spec.is_checked:
            source = update.source(_CHECKED_BYTES)
            try:
                expect_sound(self._spec.model, source, _CHECKED_BYTES, self._check)
            except UpdateRefusedError as error:
                update.release(str(error))
                raise

    def _check(self, _: int) -> None:
        if self._context.abort.is_set():
            raise AbortedError("the run was stopped")

    def _collect(self, worker: WorkerHandle, answer: SiteAnswer) -> CollectedUpdate:
        """Take a site's update: as it lies in its worker, or into a file or memory."""
        place, answer = answer.update, msgspec.structs.replace(answer, update=None)
        files, form = self._files, self._spec.form
        match place:
            case InlineUpdate():
                update = update_in_answer(answer, place, form)
                return update if files is None else files.store(update)
            case WrittenUpdate():
                assert files is not None
                return files.take(answer, place)
            case OfferedUpdate(token):
                settings = stream_settings(self._context.job, answer.framework)
                worker.up.limits = limits_for_updates(self._spec.model.layout)
                collection = UpdateCollection(worker, token, settings, form)
                if files is not None:
                    return files.fetch(answer, collection)
                return RemoteUpdate(answer, collection)
        raise AssertionError("an answer without an update was refused")

    def take(self, event: object) -> None:
        """Take in an event of the pool.

        Raises:
            SimulationError: Too few sites are left; the message names the others.
        """
        match event:
            case WorkerGone(worker):
                self._report.lost(worker)
            case TaskGiven():
                self._report.given(event)
            case ModelArrived():
                self._report.arrived(event)
            case ResultsDelivered(results, seconds):
                self._fetching += seconds
                self._take_results(results)
            case SiteLost(site, reason, code) if site not in self.collector.failures:
                self.fail(site, reason, code)
            case None:
                self._report.progress(at_once=True)

    def _take_results(self, results: Sequence[SiteResult]) -> None:
        taken: list[SiteAnswer] = []
        for answer, update in results:
            if answer.site in self.collector.failures:  # it came after it was given up
                if update is not None:
                    update.release("the round went on without it")
                continue
            self.collector.answer(answer.site, update)
            self.answers[answer.site] = answer
            self._report.answered(answer.site, update.cost.bytes if update is not None else 0)
            taken.append(answer)
        self._report.progress()
        if taken and self._spec.has_updates:
            number = self._spec.round
            self._context.emit(
                *(
                    SiteUpdate(
                        round=number, site=each.site, weight=each.weight, metrics=each.metrics
                    )
                    for each in taken
                    if each.has_params
                )
            )

    def _leave_late(self) -> None:
        """Go on without those that are not ready some time after enough others are."""
        late = self.collector.late
        if not late:
            return
        self.collector.spare(self._queue.close())
        asked = [site for site in late if not self.collector.is_settled(site)]
        for name, sites in self._queue.taken.items():
            if set(sites) & set(asked):
                self._context.pool.end(name)
        waited = f"{self.collector.patience:g} s"
        for site in asked:
            reason = f"it was not ready {waited} after enough others (clients.wait_after_min)"
            self.fail(site, reason, late=True)

    def _expect_progress(self, seconds: float) -> None:
        spec = self._spec
        expect_progress(spec.waits, seconds, f"{spec.kind} task", spec.round, self.unsettled)

    def _cost(self, began: float, workers: int) -> TaskCost:
        ended = time.monotonic()
        if self._plan.own:
            arrived = max(self._report.arrived_at, began)
            return TaskCost(arrived - began, ended - arrived, down=self.down)
        count = workers or 1
        down, fetched = self.down.seconds / count, self._fetching / count
        return TaskCost(down, max(ended - began - down - fetched, 0.0), fetched, self.down)


def expect_progress(
    waits: TaskWaits, seconds: float, task: str, round_number: int, sites: Sequence[str]
) -> None:
    """Give the run up if nothing has come of a task for too long.

    Args:
        waits: How long that may be.
        seconds: How long it has been.
        task: The task in words.
        round_number: Its round.
        sites: Sites that are waited for.

    Raises:
        SimulationError: The message names them.
    """
    if waits.progress is not None and seconds > waits.progress:
        raise SimulationError(
            f"nothing came of the {task} of round {round_number} for "
            f"{format_seconds(waits.progress)} ({PROGRESS_KEY}); "
            f"{brief_names(sites)} did not answer: see their logs, or allow more"
        )
