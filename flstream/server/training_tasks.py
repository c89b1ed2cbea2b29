"""Tasks of trainings: which model, tensors and values sites are sent, and how they are spread."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from msgspec.structs import replace

from flstream.errors import WorkflowError
from flstream.model.composed import part_of
from flstream.model.layout import Layout
from flstream.model.order import ORDER
from flstream.model.selection import Selection
from flstream.model.source import Source
from flstream.runs.model_files import CHANGES
from flstream.runs.site_states import present_state_bytes
from flstream.server.collector import UNLIMITED, ResultCollector
from flstream.server.context import ServerContext
from flstream.server.disk import check_round
from flstream.server.fleet import check_states_of
from flstream.server.model_store import ModelStore
from flstream.server.received import ReceivedTensors
from flstream.server.task_plan import RECORD_BYTES, TaskPlan, plan_disk, plan_task
from flstream.server.task_run import TaskRun
from flstream.server.tasks import TaskSpec
from flstream.server.training import SiteTraining
from flstream.server.update_store import UpdateStore
from flstream.telemetry.events import RoundStarted
from flstream.worker.messages import SiteTask, Task, TaskDeadline, TaskParts

if TYPE_CHECKING:
    from flstream.server.simulated_clock import SiteClock


class TrainingTasks:
    """Makes the tasks of a run's trainings.

    Args:
        context: The server.
        store: The models.
        updates: The updates that wait.
        received: What sites have of models of which they were sent parts.

    Attributes:
        waits: How long there may be nothing from the sites of a task.
    """

    def __init__(
        self,
        context: ServerContext,
        store: ModelStore,
        updates: UpdateStore,
        received: ReceivedTensors,
    ) -> None:
        self._context = context
        self._store = store
        self._updates = updates
        self._received = received
        self.waits = UNLIMITED
        # Bytes of sites' last models and states, and the sites that were asked since that count.
        self._counted: int | None = None
        self._asked_since: set[str] = set()

    def begin(
        self,
        training: SiteTraining,
        *,
        is_read: bool,
        at: Sequence[str] = (),
        combines: bool = False,
    ) -> tuple[TaskRun, TaskPlan]:
        """A task for the sites of a training, and how it is spread over workers.

        Args:
            training: The training.
            is_read: Whether its updates are read before a fold, so that they wait in durable files.
            at: Sites of which one folds the updates; none for the server.
            combines: Whether the fold combines groups of whole tensors.

        Raises:
            SimulationError: There is too little disk for what the round writes.
        """
        context, cohort = self._context, list(training.tasks)
        base, number = self._store.joined(training.base), training.round
        rule = context.rule
        plan = plan_task(
            context.job,
            base.layout,
            len(cohort),
            needs_all_updates=rule.needs_all_updates,
            is_read=is_read,
            at=at,
            is_partial=training.parts is not None,
            combines=combines or rule.combines_groups,
        )
        collector = training.collector()
        collector.check_size()
        disk = plan_disk(
            context.job,
            base.layout,
            len(cohort),
            context.programs,
            plan,
            context.base_bytes,
            is_started=training.is_started,
        )
        check_round(
            disk,
            context.run.path,
            number,
            present=self._store.present_bytes(number) + self._kept_bytes(cohort),
        )
        context.emit(RoundStarted(round=number, sites=cohort))
        is_durable = is_read and not training.is_started
        files = self._updates.files(training, durable=is_durable) if plan.in_files else None
        spec = self._spec(training, plan, is_read=is_read)
        clocks, deadline = training.clocks, context.job.stragglers.deadline
        if deadline is not None and not training.is_started:
            spec = dataclasses.replace(spec, sites=_with_deadlines(spec, clocks, deadline))
        run = TaskRun(context, spec, plan, collector, files, clocks)
        return run, plan

    def begin_small(self, group: Sequence[SiteTraining]) -> TaskRun:
        """One task for trainings that were started alike, whose updates are small."""
        context, first = self._context, group[0]
        tasks = {
            site: replace(task, effect=training.number)
            for training in group
            for site, task in training.tasks.items()
        }
        number = first.round
        collector = ResultCollector(f"train round {number}", list(tasks), 0)
        context.emit(RoundStarted(round=number, sites=list(tasks)))
        plan = TaskPlan(False, len(tasks), is_inline=True, in_files=False, sum_group=0)
        spec = self._spec(first, plan, tasks, is_read=True)
        clocks = {site: clock for training in group for site, clock in training.clocks.items()}
        return TaskRun(context, spec, plan, collector, None, clocks)

    def small_batch(self, training: SiteTraining, in_flight: int) -> int:
        """How many trainings like a started one a worker may have in one task; 0 for it alone."""
        layout = self._store.joined(training.base).layout
        if training.parts is not None or layout.nbytes > RECORD_BYTES:
            return 0
        plan = plan_task(self._context.job, layout, in_flight, is_read=True)
        return plan.batch_size if plan.is_inline else 0

    def bytes_down(self, training: SiteTraining) -> int:
        """Bytes of the model that a started training of a small model sends its site."""
        model, lossy = self._store.joined(training.base), self._context.model_codecs.lossy
        return (model if lossy is None else lossy.encode(model)).layout.nbytes

    def train_again(
        self, training: SiteTraining, lost: Sequence[str], plan: TaskPlan
    ) -> Mapping[str, str]:
        """Repeat the trainings of sites whose updates were lost with their workers in a fold.

        Such a task is the same as before: its model, its seeds, and the state that its sites begin
        with; what it leaves in their state is on disk already.

        Returns:
            By site the reason why one could not be made again.
        """
        tasks = {site: training.tasks[site] for site in lost}
        collector = ResultCollector(f"train round {training.round} again", lost, 0)
        spec = self._spec(training, plan, tasks, keeps_state=False)
        files = self._updates.files(training) if plan.in_files else None
        run = TaskRun(self._context, spec, plan, collector, files)
        run.run()
        training.collected |= collector.updates
        check_states_of(self._context.run, tasks, collector.failures)
        return collector.failures

    def _kept_bytes(self, cohort: Collection[str]) -> int:
        """Bytes of the sites' last models and states, which the next ones replace.

        All sites are counted again once one of the cohort has been asked since the last count, and
        not each time: where sites start one by one, that would be the square of their number.
        """
        if self._counted is not None and self._asked_since.isdisjoint(cohort):
            self._asked_since.update(cohort)
            return self._counted
        job, run, programs = self._context.job, self._context.run, self._context.programs
        counted = 0
        if any(program.has_replicas for program in programs):
            counted = present_state_bytes(run, job.clients.site_names)
        if any(program.collected for program in programs):
            paths = [run.last_model(site) for site in job.clients.site_names]
            counted += sum(path.stat().st_size for path in paths if path.is_file())
        self._counted, self._asked_since = counted, set(cohort)
        return counted

    def late_part(self, training: SiteTraining, site: str) -> tuple[Source, Source | None]:
        """The tensors of a model that a site is sent while it trains, and their changes, if any.

        Args:
            training: The training.
            site: The site; its changes are left out where it has not what they are added to.
        """
        parts, model = training.parts, training.late_model
        assert parts is not None
        assert parts.late is not None
        assert model is not None
        source, changes = self._store.source(model), self._store.beside(model, CHANGES)
        if changes is not None and not self._received.has_late_base(training, site):
            changes = None
        late = parts.late
        return (
            self._part(source, "late", late),
            None if changes is None else self._part(changes, "late", late),
        )

    def _changes(self, training: SiteTraining) -> tuple[Source | None, frozenset[str]]:
        """The changes that sites are sent in the place of a model, and the sites."""
        parts, changes = training.parts, self._store.beside(training.base, CHANGES)
        if parts is None or changes is None:
            return None, frozenset()
        following = frozenset(
            site
            for site in training.tasks
            if self._received.has_base(site, training.base, parts.receive)
        )
        receive = parts.receive
        part = changes if receive is None else self._part(changes, "receive", receive)
        return part, following - (training.whole or frozenset())

    def _part(self, source: Source, what: str, selection: Selection) -> Source:
        names = self._received.names(what, selection)
        ties = (alias for alias, name in source.layout.aliases.items() if name in names)
        return part_of(source, names.union(ties))

    def _parts(self, training: SiteTraining, layout: Layout) -> TaskParts | None:
        """The tensors that workers receive and send back, as their task names them."""
        if (parts := training.parts) is None:
            return None
        selected = self._context.rule.selected(layout)
        names = selected if parts.send is None else self._received.names("send", parts.send)
        if not (sent := names & selected):
            raise WorkflowError(
                "the training of round "
                f"{training.round} sends back tensors that aggregation.include and exclude leave "
                "out; name others as send"
            )
        ties = {alias: name for alias, name in layout.aliases.items() if name in sent}
        return TaskParts(
            send=[name for name in layout.by_name if name in sent],
            ties=ties,
            is_late=parts.late is not None,
        )

    def _spec(
        self,
        training: SiteTraining,
        plan: TaskPlan,
        tasks: Mapping[str, SiteTask] | None = None,
        *,
        keeps_state: bool = True,
        is_read: bool = False,
    ) -> TaskSpec:
        context = self._context
        source, bodies = self._store.joined(training.base), self._store.bodies(training.base)
        sites = training.tasks if tasks is None else tasks
        lossy = context.model_codecs.lossy
        # Files of updates that are read are durable, and may become a model as they are.
        is_near = context.job.is_on_one_disk and not is_read
        parts, part = self._parts(training, source.layout), None
        if training.parts is not None and training.parts.receive is not None:
            part = self._part(source, "receive", training.parts.receive)
        is_written = plan.in_files and (bool(plan.at) or is_near)
        task = Task(
            "train",
            training.number,
            training.round,
            context.job.planned_rounds,
            keeps_state=keeps_state,
            oldest=training.oldest,
            meta=training.meta,
            order=self._store.source(training.base).metadata.get(ORDER, ""),
            joined=list(bodies),
            # Nothing is to be fetched then, and a file is not copied.
            folder=str(context.run.updates(training.number)) if is_written else "",
            inline=plan.inline_bytes(source.layout),
            parts=parts,
            # What is folded as it comes is updates alone.
            needs_update=not (training.is_asked and is_read),
            base=self._store.base_path(training.base),
        )
        changes, following = self._changes(training)
        return TaskSpec(
            task,
            model=source,
            changes=changes,
            following=following,
            part=part,
            whole=training.whole or frozenset(),
            sites=sites,
            own_meta=training.own_meta,
            seconds=training.real_seconds,
            # Those that are to fold offer the model, if none has made it.
            hosts=() if parts is not None else self._store.hosts(training.base) or plan.at,
            waits=self.waits,
            name=training.base.digest,
            form=self._updates.form_of(training),
            encoder=self._store.encoder(
                training.base.digest, source if part is None else part, lossy, part is None
            ),
            lossy=lossy,
            # What a workflow reads is sound: it may choose weights by who has sent something.
            is_checked=is_read and context.rule.on_nonfinite == "reject",
        )


def _with_deadlines(
    spec: TaskSpec, clocks: Mapping[str, SiteClock], seconds: float
) -> Mapping[str, SiteTask]:
    """The sites' parts of a task, with the time that each may train for."""
    if not clocks:
        limit = TaskDeadline(seconds)
        return {site: replace(task, deadline=limit) for site, task in spec.sites.items()}
    tasks = {}
    for site, task in spec.sites.items():
        clocks[site].arrive(spec.bytes_down(site))
        limit = clocks[site].deadline(seconds, spec.model.layout.nbytes)
        tasks[site] = replace(task, deadline=limit)
    return tasks
