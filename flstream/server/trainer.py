"""Training at the sites, and where their updates lie until they are settled."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from flstream.client.messages import SiteTask
from flstream.codecs.update_form import UpdateForm
from flstream.errors import FlstreamError
from flstream.model.order import ORDER
from flstream.runs.site_states import check_states
from flstream.server.cohort import FoldedUpdates
from flstream.server.collected_updates import CollectedUpdate, RemoteUpdate
from flstream.server.collector import UNLIMITED, ResultCollector
from flstream.server.context import ServerContext
from flstream.server.disk import check_round
from flstream.server.model_offers import ModelHosts
from flstream.server.model_store import ModelStore
from flstream.server.task_plan import TaskPlan, plan_disk, plan_task
from flstream.server.task_run import TaskRun
from flstream.server.tasks import TaskSpec
from flstream.server.training import SiteTraining
from flstream.server.update_files import UpdateFiles
from flstream.telemetry.events import RoundStarted


class Trainer:
    """Has sites train, and keeps track of their updates until they are settled.

    Args:
        context: The server.
        store: The models.

    Attributes:
        waits: How long there may be nothing from the sites of a task.
    """

    def __init__(self, context: ServerContext, store: ModelStore) -> None:
        self._context = context
        self._store = store
        # Trainings with updates that are not settled, by their numbers.
        self._open: dict[int, SiteTraining] = {}
        self.waits = UNLIMITED

    @property
    def versions_in_use(self) -> set[int]:
        """Versions of the models that updates in waiting were trained from."""
        return {training.base.version for training in self._open.values()}

    def begin(self, training: SiteTraining, plan: TaskPlan) -> TaskRun:
        """A task for the sites of a training.

        Raises:
            SimulationError: There is too little disk for what the round writes.
        """
        context, cohort = self._context, list(training.tasks)
        base, number = self._store.joined(training.base), training.effect.round
        self.free(cohort)
        training.collector.check_size()
        files = self.files(training)
        check_round(
            plan_disk(context.job, base.layout, len(cohort), plan),
            context.run.path,
            number,
            present=self._store.present_bytes(number) + self._kept_bytes(),
        )
        context.emit(RoundStarted(round=number, sites=cohort))
        self._open[training.number] = training
        return TaskRun(context, self._spec(training), plan, training.collector, files)

    def plan(self, training: SiteTraining, *, is_lazy: bool) -> TaskPlan:
        """How a training is spread over workers.

        Args:
            training: The training.
            is_lazy: Whether its updates may be folded as they come.
        """
        is_ranked = self._context.rule.is_ranked or not is_lazy
        return self._plan(training, len(training.tasks), is_ranked=is_ranked)

    def complete(
        self, training: SiteTraining, sites: Sequence[str]
    ) -> tuple[Sequence[CollectedUpdate], Mapping[str, str]]:
        """The updates of some of a training's sites; those that were lost are trained again.

        Such a task is the same as before: its model, its seeds, and the state that its sites begin
        with; what it leaves in their state is on disk already.

        Returns:
            The updates, in order, and by site the reason why one could not be made again.
        """
        lost = [site for site in sites if site not in training.bodies]
        failures: Mapping[str, str] = {}
        if lost:
            self._open[training.number] = training
            files = self.files(training)
            training.bodies |= files.recover(lost)
            lost = [site for site in lost if site not in training.bodies]
        if lost:
            self.free(lost)
            tasks = {site: training.tasks[site] for site in lost}
            collector: ResultCollector[CollectedUpdate | None] = ResultCollector(
                f"train round {training.effect.round} again", lost, 0
            )
            plan = self._plan(training, len(lost), is_ranked=True)
            spec = self._spec(training, tasks, keeps_state=False)
            run = TaskRun(self._context, spec, plan, collector, files)
            for _ in run.progress():
                pass
            training.bodies |= {
                site: update for site, update in collector.answers.items() if update is not None
            }
            failures = collector.failures
            self.check_states(tasks, failures)
        found = [training.bodies[site] for site in sites if site in training.bodies]
        return found, failures

    def check_states(self, tasks: Mapping[str, SiteTask], failed: Iterable[str]) -> None:
        """See to it that no site has failed for want of the state that it was to begin with.

        To go on without such a site would be to come to other bits.

        Raises:
            ResumeRefusedError: A state is missing or damaged; the message names it.
        """
        states = [(site, state) for site in failed if (state := tasks[site].state) is not None]
        check_states(self._context.run, states)

    def settle(self, cohort: FoldedUpdates) -> None:
        """Let go of updates that are part of a model that is durable."""
        for training, site in cohort.members:
            update = training.bodies.pop(site, None)
            if update is not None:
                update.release()
            training.settled.add(site)
        for training in cohort.trainings:
            assert training.result is not None
            if training.result.answers.keys() <= training.settled:
                self._open.pop(training.number, None)
                self._context.run.discard_updates(training.number)

    def forget_empty(self, training: SiteTraining) -> None:
        """Take no more notice of a training if it has no update, and so nothing to wait for."""
        if not training.bodies:
            self._open.pop(training.number, None)

    def release_all(self, reason: str) -> None:
        """Let go of all updates, which are part of no model, for a reason."""
        for training in list(self._open.values()):
            for update in training.bodies.values():
                update.release(reason)
            training.bodies.clear()
        self._open.clear()

    def _kept_bytes(self) -> int:
        """Bytes of the sites' last models, whose places the next ones take."""
        job, run = self._context.job, self._context.run
        if not job.collects_models:
            return 0
        paths = [run.last_model(site) for site in job.clients.site_names]
        return sum(path.stat().st_size for path in paths if path.is_file())

    def files(self, training: SiteTraining) -> UpdateFiles:
        """The folder of files in which a training's updates may wait."""
        folder = self._context.run.updates(training.number)
        form = self._form(training)
        return UpdateFiles(folder, training.effect.arguments, form)

    def _form(self, training: SiteTraining) -> UpdateForm:
        model = self._store.joined(training.base)
        return UpdateForm(model, self._context.update_codecs, training.base.digest)

    def free(self, sites: Iterable[str]) -> None:
        """Pull the updates that lie in these sites' workers into files, so that they can work.

        An update that is lost on the way is lost: its site trains again when it is folded.
        """
        asked = set(sites)
        for training in self._open.values():
            for site in sorted(asked & training.bodies.keys()):
                update = training.bodies[site]
                if isinstance(update, RemoteUpdate):
                    del training.bodies[site]
                    with suppress(FlstreamError):
                        files = self.files(training)
                        training.bodies[site] = files.fetch(update.answer, update.collection)

    def _plan(self, training: SiteTraining, sites: int, *, is_ranked: bool) -> TaskPlan:
        nbytes = self._store.joined(training.base).layout.nbytes
        at_site = bool(training.at)
        return plan_task(self._context.job, nbytes, sites, is_ranked=is_ranked, at_site=at_site)

    def _spec(
        self,
        training: SiteTraining,
        tasks: Mapping[str, SiteTask] | None = None,
        *,
        keeps_state: bool = True,
    ) -> TaskSpec:
        context = self._context
        source, bodies = self._store.joined(training.base), self._store.bodies(training.base)
        if training.personal is not None and training.personal.is_beside:
            # Nothing of it is folded.
            source, bodies = self._store.source(training.base), ()
        sites = training.tasks if tasks is None else tasks
        settings = context.model_settings
        lossy = context.model_codecs.lossy
        return TaskSpec(
            kind="train",
            effect=training.number,
            round=training.effect.round,
            total_rounds=context.job.planned_rounds,
            model=source,
            sites=sites,
            settings=settings,
            seconds=training.seconds,
            keeps_state=keeps_state,
            meta=training.meta,
            order=self._store.source(training.base).metadata.get(ORDER, ""),
            bodies=bodies,
            hosts=self._hosts(training),
            folder=self._folder(training),
            waits=self.waits,
            personal=training.personal,
            form=self._form(training),
            encoder=self._store.encoder(training.base.digest, source, lossy),
            lossy=lossy,
        )

    def _hosts(self, training: SiteTraining) -> ModelHosts | None:
        """Sites whose workers offer the model; those that are to fold do, if none has made it."""
        made_at = self._store.hosts(training.base)
        if made_at is None and training.at:
            return ModelHosts(training.base.digest, training.at)
        return made_at

    def _folder(self, training: SiteTraining) -> str:
        """Where workers write a training's updates themselves; empty if these are fetched."""
        if not (training.at and self._plan(training, 1, is_ranked=True).waits_in_files):
            return ""
        return str(self._context.run.updates(training.number))
