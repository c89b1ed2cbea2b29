"""The updates of a run, from the training that they come of until a fold has settled them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence

from flstream.codecs.update_form import UpdateForm
from flstream.errors import CheckpointError
from flstream.model.order import ORDER
from flstream.runs.site_states import check_states
from flstream.server.collected_updates import CollectedUpdate
from flstream.server.collector import UNLIMITED, ResultCollector
from flstream.server.context import ServerContext
from flstream.server.disk import check_round
from flstream.server.model_store import ModelStore
from flstream.server.stored_model import UnsoundModelError
from flstream.server.task_plan import TaskPlan, plan_disk, plan_task
from flstream.server.task_run import TaskRun
from flstream.server.tasks import TaskSpec
from flstream.server.training import SiteTraining, UpdateRecord, UpdateWait
from flstream.server.update_files import UpdateFiles
from flstream.server.updates_to_fold import UpdatesToFold
from flstream.telemetry.events import RoundStarted
from flstream.worker.messages import SiteTask, Task


class UpdateStore:
    """The updates of a run: trained, kept in memory or files, read by folds, and settled.

    Args:
        context: The server.
        store: The models.

    Attributes:
        waits: How long there may be nothing from the sites of a task.
    """

    def __init__(self, context: ServerContext, store: ModelStore) -> None:
        self._context = context
        self._store = store
        # Of trainings whose files wait for nobody any more.
        self._dropped: list[UpdateWait] = []
        # Those that waited at the end of a round to which the run may go back.
        self._kept: list[UpdateWait] = []
        # Trainings whose files the workflow refers to.
        self._waiting: weakref.WeakSet[SiteTraining] = weakref.WeakSet()
        # Files that are not durable yet, by number of the training.
        self._unsynced: dict[int, tuple[UpdateFiles, Sequence[str]]] = {}
        self.waits = UNLIMITED

    def begin(self, training: SiteTraining, *, is_read: bool) -> tuple[TaskRun, TaskPlan]:
        """A task for the sites of a training, and how it is spread over workers.

        Args:
            training: The training.
            is_read: Whether its updates are read before a fold, so that they wait in durable files.

        Raises:
            SimulationError: There is too little disk for what the round writes.
        """
        context, cohort = self._context, list(training.tasks)
        plan = self._plan(training, is_read=is_read)
        base, number = self._store.joined(training.base), training.round
        training.collector.check_size()
        check_round(
            plan_disk(context.job, base.layout, len(cohort), context.programs, plan),
            context.run.path,
            number,
            present=self._store.present_bytes(number) + self._kept_bytes(),
        )
        context.emit(RoundStarted(round=number, sites=cohort))
        is_durable = is_read and not training.is_started
        files = self.files(training, durable=is_durable) if plan.in_files else None
        spec = self._spec(training, plan, is_read=is_read)
        run = TaskRun(context, spec, plan, training.collector, files)
        return run, plan

    def _plan(self, training: SiteTraining, *, is_read: bool = False) -> TaskPlan:
        return plan_task(
            self._context.job,
            self._store.joined(training.base).layout,
            len(training.tasks),
            needs_all_updates=self._context.rule.needs_all_updates,
            is_read=is_read,
            at_site=bool(training.at),
            combines=training.combines or self._context.rule.combines_groups,
        )

    def keep(self, training: SiteTraining) -> Mapping[str, UpdateRecord]:
        """Keep the updates of a training in their files; return the record of each by site."""
        files = self.files(training, durable=not training.is_started)
        records = files.keep(training.bodies)
        if records and training.is_started:
            self._unsynced[training.number] = files, list(records)
        return records

    def keep_files(self, training: SiteTraining, round_number: int) -> None:
        """Keep the files of a training's updates as long as the workflow refers to one of them.

        They go with the next model that is durable: a workflow that fails drops all that it has,
        and needs it again when it is resumed.

        Args:
            training: The training.
            round_number: Round in which its updates came.
        """
        training.wait = UpdateWait(training.number, round_number)
        self._waiting.add(training)
        weakref.finalize(training, self._dropped.append, training.wait).atexit = False

    def waiting_bases(self) -> set[int]:
        """Versions of the models that updates start from of which none was folded yet."""
        waits = [
            training
            for training in self._waiting
            if training.wait is not None and not training.wait.until
        ]
        return {training.base.version for training in waits}

    def updates(self, training: SiteTraining, sites: Sequence[str]) -> Sequence[CollectedUpdate]:
        """The updates of some of a training's sites, in order.

        Raises:
            UnsoundModelError: The file of one is damaged or gone.
        """
        assert training.result is not None
        missing = [site for site in sites if site not in training.bodies]
        if missing:
            files = self.files(training)
            for site in missing:
                weight, metrics, _ = training.result.answers[site]
                record = training.result.files[site]
                try:
                    training.bodies[site] = files.load(site, weight, metrics, record)
                except CheckpointError as error:
                    raise UnsoundModelError(training.number, str(error)) from error
        return [training.bodies[site] for site in sites]

    def train_again(self, training: SiteTraining, lost: Sequence[str]) -> Mapping[str, str]:
        """Repeat the trainings of sites whose updates were lost with their workers in a fold.

        Such a task is the same as before: its model, its seeds, and the state that its sites begin
        with; what it leaves in their state is on disk already.

        Returns:
            By site the reason why one could not be made again.
        """
        tasks = {site: training.tasks[site] for site in lost}
        collector = ResultCollector(f"train round {training.round} again", lost, 0)
        plan = self._plan(training)
        spec = self._spec(training, plan, tasks, keeps_state=False)
        files = self.files(training) if plan.in_files else None
        run = TaskRun(self._context, spec, plan, collector, files)
        run.run()
        training.bodies |= run.updates
        self.check_states(tasks, collector.failures)
        return collector.failures

    def check_states(self, tasks: Mapping[str, SiteTask], failed: Iterable[str]) -> None:
        """See to it that no site has failed for want of the state that it was to begin with.

        To go on without such a site would be to come to other bits.

        Raises:
            ResumeRefusedError: A state is missing or damaged; the message names it.
        """
        states = [(site, state) for site in failed if (state := tasks[site].state) is not None]
        check_states(self._context.run, states)

    def sync_updates(self) -> None:
        """Make the files of answers durable that wait to be folded, before an effect is recorded.

        Raises:
            CheckpointError: The disk does not take them.
        """
        for files, sites in self._unsynced.values():
            files.sync(sites)
        self._unsynced.clear()

    def folded(self, to_fold: UpdatesToFold) -> None:
        """Leave the files of updates as they are that are part of a model which is durable."""
        for training in to_fold.trainings:
            self._unsynced.pop(training.number, None)

    def settle(self, to_fold: UpdatesToFold, round_number: int, oldest: int) -> None:
        """Release the updates of a durable model.

        Args:
            to_fold: The updates.
            round_number: The model's round.
            oldest: The earliest round to whose end the run may go back.
        """
        for training in to_fold.trainings:
            if training.wait is not None:
                training.wait.until = round_number
            if training.is_folded:
                for update in training.bodies.values():
                    update.release()
                self._context.run.discard_updates(training.number)
            training.bodies.clear()  # the files of others are opened again when they are needed
        # A file stays as long as a round from ``oldest`` on may have to fold it once more: who goes
        # back to the end of a round needs those that were folded after it.
        while self._dropped:
            self._kept.append(self._dropped.pop())
        waits, self._kept = self._kept, []
        for wait in waits:
            if wait.until > max(wait.since, oldest):
                self._kept.append(wait)
            else:
                self._context.run.discard_updates(wait.training)

    def discard_files(self) -> None:
        """Remove the files of all updates, but for those that the run may need to go back or on.

        Those were folded in a later round than they came in, or waited until the end.
        """
        self.sync_updates()
        waits = [*self._kept, *self._dropped]
        waiting = [wait.training for wait in waits if wait.until > wait.since or not wait.until]
        self._context.run.discard_updates(but=waiting)

    def _kept_bytes(self) -> int:
        """Bytes of the sites' last models, whose places the next ones take."""
        job, run = self._context.job, self._context.run
        if not any(program.collected for program in self._context.programs):
            return 0
        paths = [run.last_model(site) for site in job.clients.site_names]
        return sum(path.stat().st_size for path in paths if path.is_file())

    def files(self, training: SiteTraining, *, durable: bool = False) -> UpdateFiles:
        """The folder of files in which a training's updates may wait."""
        folder = self._context.run.updates(training.number)
        form = self._form(training)
        metadata = self._store.metadata(training.base, training.round)
        return UpdateFiles(folder, form, metadata, durable=durable)

    def _form(self, training: SiteTraining) -> UpdateForm:
        model = self._store.joined(training.base)
        return UpdateForm(model, self._context.update_codecs, training.base.digest)

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
        is_written = plan.in_files and (bool(training.at) or is_near)
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
        )
        return TaskSpec(
            task,
            model=source,
            sites=sites,
            seconds=training.seconds,
            # Those that are to fold offer the model, if none has made it.
            hosts=self._store.hosts(training.base) or training.at,
            waits=self.waits,
            form=self._form(training),
            encoder=self._store.encoder(training.base.digest, source, lossy),
            lossy=lossy,
            # What a workflow reads is sound: it may choose weights by who has sent something.
            is_checked=is_read and context.rule.on_nonfinite == "reject",
        )
