"""A fold in the process of a site: the server coordinates it, and reads no tensor.

An update lies where it was trained, and the worker that folds fetches it from there in the server's
place; or it is in a file, where sites share workers. The next model is a file that this worker has
made durable, and it offers it for the tasks that follow.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from flstream.aggregation.optimizers import ServerOptimizer
from flstream.aggregation.update import UpdateSource, naming
from flstream.errors import (
    AbortedError,
    DeadlineError,
    SimulationError,
    StreamingError,
    WorkerLostError,
)
from flstream.job.bodies import MAIN
from flstream.server.cohort_fold import CohortFold, FoldedModel
from flstream.server.collected_updates import CollectedUpdate, RemoteUpdate
from flstream.server.collector import PROGRESS_KEY
from flstream.server.last_models import LastModels
from flstream.server.update_files import UpdateFile
from flstream.server.worker_handle import WorkerHandle
from flstream.telemetry.events import Transfer, Warned
from flstream.text import MOST_QUOTED, shortened
from flstream.units import format_seconds
from flstream.worker.peer_messages import Folded, Folding, FoldTask, Offer, Offered, UpdatePlace


class PeerFold:
    """Folds a cohort's updates in the process of a site.

    If that is lost, its own update is made again, and the next site folds.

    Args:
        fold: The cohort, and the server that coordinates the fold.
        at: Sites, of which the first that lives folds.
        last: Where the sites' last models are kept; None where nobody collects them.
    """

    def __init__(self, fold: CohortFold, at: Sequence[str], last: LastModels | None) -> None:
        self._fold = fold
        self._at = at
        self._last = last
        # Digests of the sites' models that were kept.
        self._kept: dict[str, str] = {}

    def make(self, round_number: int) -> FoldedModel:
        """Fold the updates into the next model, which is durable on return.

        Args:
            round_number: The model's round.

        Raises:
            SimulationError: Too few updates are sound, or no site is left that could fold them; the
                message names the others.
        """
        context, began = self._fold.context, time.monotonic()
        pool, sites, lost = context.pool, list(self._at), dict[str, str]()
        while sites:
            for training in self._fold.cohort.trainings:
                # The sites of the others train again: their workers have died.
                training.bodies = {
                    site: update
                    for site, update in training.bodies.items()
                    if not isinstance(update, RemoteUpdate) or update.collection.worker.lives
                }
            updates = self._fold.left()
            # Before a worker is started for it, another site folds whose worker is there.
            site = min(sites, key=lambda name: pool.living(context.worker_of(name)) is None)
            sites.remove(site)
            try:
                model = self._make_at(site, updates, round_number)
            except AbortedError:
                raise
            except (StreamingError, WorkerLostError) as error:
                lost[site] = reason = shortened(str(error), MOST_QUOTED)
                pool.drop(context.worker_of(site))
                message = f"{site} was lost while it folded the updates of round {round_number}"
                context.emit(Warned(message=f"{message}: {reason}; the fold is done again"))
            else:
                # What it took until the fold was begun anew is part of it.
                return model._replace(fold=time.monotonic() - began - model.checkpoint)
        reasons = "; ".join(f"{site}: {reason}" for site, reason in lost.items())
        raise SimulationError(
            f"no site is left to fold the updates of round {round_number}: {reasons}; "
            "see their logs, and go on with --resume"
        )

    def _make_at(
        self, site: str, updates: Sequence[CollectedUpdate], round_number: int
    ) -> FoldedModel:
        fold, context = self._fold, self._fold.context
        worker = context.pool.ready(context.worker_of(site))
        folder = fold.trainer.files(fold.cohort.trainings[0]).folder / "next"
        path = folder / context.run.checkpoint(round_number).name
        by_site = {update.answer.site: update for update in updates}
        walk = partial(self._walk, worker, path, round_number, by_site)
        _, folded = fold.update_fold.fold_sound(updates, walk, fold.refuse)
        fold.update_fold.cost += sum(folded.costs.values(), start=Transfer())
        began = time.monotonic()
        record = fold.store.link(fold.model, round_number, path, folded.digests)
        shutil.rmtree(folder, ignore_errors=True)
        outcome = fold.outcome(folded.digests[MAIN])._replace(kept=self._kept)
        checkpoint = folded.checkpoint + time.monotonic() - began
        return FoldedModel(outcome, record, 0.0, checkpoint, site)

    def _walk(
        self,
        worker: WorkerHandle,
        path: Path,
        round_number: int,
        by_site: Mapping[str, CollectedUpdate],
        updates: Sequence[UpdateSource],
        step: int,
    ) -> Folded:
        """Ask a worker for the walk, and for a durable model.

        Raises:
            UpdateRefusedError: An update is of no use.
            StreamingError: The worker is.
            SimulationError: Nothing came of the fold for too long.
        """
        store, model, last = self._fold.store, self._fold.model, self._last
        base, optimizer = store.source(model), self._fold.optimizer
        assert optimizer is None or isinstance(optimizer, ServerOptimizer)
        state = None if optimizer is None else store.state_of(model)
        task = FoldTask(
            base=str(base.path),
            path=str(path),
            metadata=store.metadata(model, round_number),
            updates=[_place(worker, source, by_site[source.site]) for source in updates],
            rule=self._fold.rule,
            optimizer=optimizer,
            state=None if state is None else str(state),
            step=step,
            last={} if last is None else {site: str(last.path(site)) for site in by_site},
        )
        most = self._fold.trainer.waits.progress
        try:
            folded = worker.peers.ask(task, Folded, seconds=most, on_folding=self._note)
        except DeadlineError as error:
            assert most is not None
            raise SimulationError(
                f"nothing came of the fold at {worker.name} for {format_seconds(most)} "
                f"({PROGRESS_KEY}); see its log, or allow more"
            ) from error
        for site, update in by_site.items():
            update.has_changed = site not in folded.unchanged
        self._fold.progress(base.layout.nbytes)
        return folded

    def _note(self, folding: Folding) -> None:
        # Also of a site that is refused later: its file is another one now.
        self._kept |= folding.kept
        self._fold.progress(folding.done)


def _place(worker: WorkerHandle, source: UpdateSource, update: CollectedUpdate) -> UpdatePlace:
    """Place of an update, which a worker may fetch as if it were the server.

    Raises:
        UpdateRefusedError: The update is lost.
    """
    answer = source.site, source.weight, source.params_type, source.partial
    if isinstance(update, UpdateFile):
        return UpdatePlace(*answer, str(update.path))
    assert isinstance(update, RemoteUpdate)
    offer = Offer(worker.name, token=update.collection.token)
    with naming(source.site, StreamingError):
        return UpdatePlace(*answer, update.collection.worker.peers.ask(offer, Offered))
