"""A fold in the process of a site: the server coordinates it, and reads no tensor.

An update lies where it was trained. Its worker offers it to the one that folds, and to that alone;
or it has written it to a file, where sites share workers. The worker that folds writes the next
model, and offers it for the tasks that follow.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import partial

from msgspec import structs

from flstream.aggregation.update import UpdateSource
from flstream.errors import (
    AbortedError,
    DeadlineError,
    SimulationError,
    StreamingError,
    UpdateRefusedError,
    WorkerLostError,
)
from flstream.runs.model_files import OPTIMIZER
from flstream.server.cohort import FoldedUpdates
from flstream.server.cohort_fold import CohortFold, FoldedModel
from flstream.server.collected_updates import CollectedUpdate, RemoteUpdate
from flstream.server.collector import PROGRESS_KEY
from flstream.server.context import ServerContext
from flstream.server.last_models import LastModels
from flstream.server.model_store import ModelStore
from flstream.server.program_view import Model
from flstream.server.stored_model import DraftFiles
from flstream.server.task_run import TaskRun
from flstream.server.trainer import Trainer
from flstream.server.training import SiteTraining
from flstream.server.update_files import UpdateFile
from flstream.server.worker_handle import WorkerHandle
from flstream.telemetry.events import Transfer, Warned
from flstream.text import MOST_QUOTED, shortened
from flstream.units import format_seconds
from flstream.worker.peer_messages import (
    Folded,
    FoldRefused,
    FoldTask,
    Keep,
    Kept,
    Offered,
    OfferUpdate,
    UpdatePlace,
)


class PeerLostError(StreamingError):
    """The worker that was to fold is gone, or cannot be used any longer."""


class PlacedUpdate(CollectedUpdate):
    """An update as another process folds it.

    Args:
        update: The update, where it lies.
    """

    def __init__(self, update: CollectedUpdate) -> None:
        self.answer = update.answer
        self.form = update.form
        self.placed = update
        self._cost = update.cost

    @property
    def is_buffered(self) -> bool:
        """Whether a frame of it is kept while it is read: see :class:`CollectedUpdate`."""
        return self.placed.is_buffered

    def fetched(self, cost: Transfer, *, has_changed: bool) -> None:
        """Note what the process that folds it has found.

        Args:
            cost: Cost of fetching it.
            has_changed: Whether it is not the model that its site had received.
        """
        self._cost += cost
        self.has_changed = has_changed

    def release(self, failure: str = "") -> None:
        """Let go of it."""
        self.placed.release(failure)


class PeerFold:
    """Folds the updates of trainings in the process of a site.

    If that is lost, its own update is made again, and the next site folds.

    Args:
        context: The server.
        store: The models.
        trainer: Has sites train.
        model: The model that the updates were trained from.
        cohort: The updates.
        at: Sites, of which the first that lives folds.
        last: Keeps the last models of the sites; None where nobody collects them.
    """

    def __init__(
        self,
        context: ServerContext,
        store: ModelStore,
        trainer: Trainer,
        model: Model,
        cohort: FoldedUpdates,
        at: Sequence[str],
        last: LastModels | None = None,
    ) -> None:
        self._context = context
        self._store = store
        self._trainer = trainer
        self._model = model
        self._cohort = cohort
        self._at = at
        self._last = last
        # Digests of the sites' models that were kept.
        self._kept: dict[str, str] = {}
        self._fold = CohortFold(context, store, trainer, model, cohort, context.rule, adopts=False)
        # Why each site that was to fold has not.
        self._lost: dict[str, str] = {}

    def train(self, training: SiteTraining) -> TaskRun:
        """Have the sites of a training train; their updates wait where they are."""
        return self._fold.train(training)

    def make(self, round_number: int) -> FoldedModel:
        """Fold the updates, and have the next model made durable.

        Args:
            round_number: The model's round.

        Raises:
            SimulationError: Too few updates are sound, or no site is left that could fold them; the
                message names the others.
        """
        began = time.monotonic()
        while True:
            self._forget_lost_updates()
            updates = self._fold.left()
            site, worker = self._next_aggregator(round_number)
            try:
                made = self._make_at(site, worker, updates, round_number)
            except PeerLostError as error:
                self._lose(site, str(error), round_number)
                continue
            # What it took until the fold was begun anew is part of it.
            return made._replace(fold=time.monotonic() - began - made.checkpoint)

    def _make_at(
        self,
        site: str,
        worker: WorkerHandle,
        updates: Sequence[CollectedUpdate],
        round_number: int,
    ) -> FoldedModel:
        files = self._store.prepare(self._model, round_number, optimizes=True)
        began, fold = time.monotonic(), self._fold.new_fold()
        placed = {each.answer.site: PlacedUpdate(each) for each in updates}

        walk = partial(self._walk, worker, files, placed)
        _, digest = fold.fold_sound(list(placed.values()), walk, self._fold.refuse)
        folded = time.monotonic()
        record = self._store.finish(partial(_keep, worker), round_number, digest)
        checkpoint = time.monotonic() - folded
        outcome = self._fold.outcome(fold, digest)._replace(kept=self._kept)
        return FoldedModel(outcome, record, folded - began, checkpoint, site)

    def _walk(
        self,
        worker: WorkerHandle,
        files: DraftFiles,
        placed: Mapping[str, PlacedUpdate],
        updates: Sequence[UpdateSource],
        step: int,
    ) -> str:
        """Have a worker do the walk, and return the digest of what it has written.

        Raises:
            UpdateRefusedError: An update is of no use.
            PeerLostError: The worker is.
        """
        job = self._context.job
        optimizer = job.server_optimizer
        task = FoldTask(
            base=str(self._store.source(self._model).path),
            path=str(files.path),
            metadata=files.metadata,
            updates=[self._place(worker, each, placed[each.site].placed) for each in updates],
            aggregation=job.aggregation.model_dump(exclude_defaults=True),
            optimizer=optimizer.model_dump(exclude_defaults=True),
            state_in=str(files.state_in or ""),
            state_out="" if optimizer.type == "none" else str(files.state_out),
            step=step,
            settings=self._context.model_settings,
            codecs=job.streaming.codecs.of_updates,
            codecs_down=job.streaming.codecs.of_models,
        )
        folded = self._folded(worker, task)
        # Also of a site that is refused: its file is another one now.
        self._kept |= folded.kept
        if isinstance(folded, FoldRefused):
            raise UpdateRefusedError(folded.site, folded.reason)
        for site in (each.site for each in updates):
            cost = folded.costs.get(site, Transfer())
            placed[site].fetched(cost, has_changed=site not in folded.unchanged)
        self._fold.progress(self._store.source(self._model).layout.nbytes)
        return folded.digest

    def _folded(self, worker: WorkerHandle, task: FoldTask) -> Folded | FoldRefused:
        """Have a worker fold, and wait.

        Raises:
            PeerLostError: The worker is gone.
            SimulationError: Nothing came of the fold for too long.
        """
        most = self._trainer.waits.progress
        try:
            return worker.peers.fold(task, most, self._fold.progress)
        except AbortedError:
            raise
        except DeadlineError as error:
            assert most is not None
            raise SimulationError(
                f"nothing came of the fold at {worker.name} for {format_seconds(most)} "
                f"({PROGRESS_KEY}); see its log, or allow more"
            ) from error
        except StreamingError as error:
            raise PeerLostError(str(error)) from error

    def _place(
        self, worker: WorkerHandle, source: UpdateSource, update: CollectedUpdate
    ) -> UpdatePlace:
        """Where a worker finds an update, which is offered to it and to nobody else.

        Raises:
            UpdateRefusedError: The update is lost.
        """
        training = self._cohort.trainings_of(source.site)[0]
        place = UpdatePlace(source.site, source.weight, source.params_type, source.partial)
        if self._last is not None:
            place = structs.replace(place, last=str(self._last.path(source.site)))
        if not isinstance(update, RemoteUpdate):
            if not isinstance(update, UpdateFile):
                update = self._trainer.files(training).store(update)
            return structs.replace(place, path=str(update.path))
        owner = update.collection.worker
        if owner is worker:
            return structs.replace(place, effect=training.number)
        try:
            peer = owner.peers.serve(worker.peers)
            offer = OfferUpdate(training.number, peer)
            token = owner.peers.ask(offer, Offered).token
        except AbortedError:
            raise
        except StreamingError as error:
            if not worker.lives:
                raise PeerLostError(str(error)) from error
            raise UpdateRefusedError(source.site, f"could not be fetched: {error}") from error
        return structs.replace(place, peer=owner.receiver, token=token)

    def _next_aggregator(self, round_number: int) -> tuple[str, WorkerHandle]:
        """The first site that lives and has not been lost, with its worker.

        Raises:
            SimulationError: There is none.
        """
        pool, worker_of = self._context.pool, self._context.worker_of
        left = [site for site in self._at if site not in self._lost]
        # Before one is started for it, another one that is there folds.
        for site in sorted(left, key=lambda each: pool.living(worker_of(each)) is None):
            try:
                worker = pool.ready(worker_of(site))
            except WorkerLostError as error:
                self._lost[site] = str(error)
                continue
            return site, worker
        reasons = "; ".join(
            f"{site}: {shortened(reason, MOST_QUOTED)}" for site, reason in self._lost.items()
        )
        raise SimulationError(
            f"no site is left to fold the updates of round {round_number}: {reasons}; "
            "see their logs, and go on with --resume"
        )

    def _lose(self, site: str, reason: str, round_number: int) -> None:
        """Note that the worker that folded is lost."""
        self._lost[site] = reason
        self._context.pool.drop(self._context.worker_of(site))
        self._context.emit(
            Warned(
                message=f"{site} was lost while it folded the updates of round {round_number}: "
                f"{shortened(reason, MOST_QUOTED)}; the fold is done again"
            )
        )

    def _forget_lost_updates(self) -> None:
        """Take no more account of updates in workers that have died: their sites train again."""
        for training in self._cohort.trainings:
            for site, update in list(training.bodies.items()):
                if isinstance(update, RemoteUpdate) and not update.collection.worker.lives:
                    del training.bodies[site]


def _keep(worker: WorkerHandle) -> dict[str, str]:
    """Have a worker make the model that it has written durable.

    Returns:
        Digests of the bodies beside it, by name.
    """
    try:
        state = worker.peers.ask(Keep(), Kept, seconds=None).state
    except AbortedError:
        raise
    except StreamingError as error:
        raise PeerLostError(str(error)) from error
    return {OPTIMIZER: state} if state else {}
