"""The updates of a run, from their arrival until a fold has settled them."""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path

from flstream.aggregation.update import CollectedUpdate
from flstream.codecs.chain import UpdateForm
from flstream.errors import CheckpointError
from flstream.model.source import Source
from flstream.runs.results import UpdateRecord
from flstream.server.context import ServerContext
from flstream.server.model_store import ModelStore
from flstream.server.received import ReceivedTensors
from flstream.server.stored_model import UnsoundModelError
from flstream.server.training import SiteTraining, UpdatesToFold, UpdateWait
from flstream.server.updates import UpdateFiles, inline_record


class UpdateStore:
    """The updates of a run that wait: kept in memory or files, read by folds, and settled.

    Args:
        context: The server.
        store: The models.
        received: What sites have of models of which they were sent parts.
    """

    def __init__(
        self, context: ServerContext, store: ModelStore, received: ReceivedTensors
    ) -> None:
        self._context = context
        self._store = store
        self._received = received
        # Of trainings whose files wait for nobody any more.
        self._dropped: list[UpdateWait] = []
        # Those that waited at the end of a round to which the run may go back.
        self._kept: list[UpdateWait] = []
        # Trainings whose updates the workflow refers to.
        self._waiting: weakref.WeakSet[SiteTraining] = weakref.WeakSet()
        # Files that are not durable yet, by number of the training.
        self._unsynced: dict[int, tuple[UpdateFiles, Sequence[str]]] = {}

    def keep(self, training: SiteTraining) -> dict[str, UpdateRecord]:
        """Keep the updates of a training for a later effect; return their records, by site."""
        records = {
            site: record
            for site, update in training.collected.items()
            if training.is_started and (record := inline_record(update)) is not None
        }
        if records:
            return records
        files = self.files(training, durable=not training.is_started)
        records = files.keep(training.collected)
        if records and training.is_started:
            self._unsynced[training.number] = files, list(records)
        return records

    def keep_updates(self, training: SiteTraining, round_number: int) -> None:
        """Keep a training's updates as long as the workflow refers to one of them.

        Their files go with the next model that is durable: a workflow that fails drops all that it
        has, and needs it again when it is resumed.

        Args:
            training: The training.
            round_number: Round in which its updates came.
        """
        assert training.result is not None
        training.wait = UpdateWait(training.number, round_number)
        self._waiting.add(training)
        if any(record.digest for record in training.result.updates.values()):
            weakref.finalize(training, self._dropped.append, training.wait).atexit = False

    def waiting_bases(self) -> set[int]:
        """Versions of the models that updates start from of which none was folded yet."""
        waits = [
            training
            for training in self._waiting
            if training.wait is not None and not training.wait.until
        ]
        return {training.trained_from.version for training in waits}

    def updates(self, training: SiteTraining, sites: Sequence[str]) -> Sequence[CollectedUpdate]:
        """The updates of some of a training's sites, in order.

        Raises:
            UnsoundModelError: The file of one is damaged or gone.
        """
        assert training.result is not None
        missing = [site for site in sites if site not in training.collected]
        if missing:
            files = self.files(training)
            weights = dict(zip(training.result.sites, training.result.weights, strict=True))
            for site in missing:
                record = training.result.updates[site]
                try:
                    training.collected[site] = files.load(site, weights[site], record)
                except CheckpointError as error:
                    raise UnsoundModelError(training.number, str(error)) from error
        return [training.collected[site] for site in sites]

    def write(self, training: SiteTraining, site: str, path: Path) -> None:
        """Write what a site's update makes of the model that it was trained from to a file."""
        [update] = self.updates(training, [site])
        self.write_model(update, self._store.joined(training.base), path)

    def write_model(self, update: CollectedUpdate, base: Source, path: Path) -> str:
        """Write what an update makes of a model to a file; return the digest of its body."""
        from flstream.aggregation.adoption import write_site_model
        from flstream.aggregation.steps import plan_step

        context = self._context
        budget = context.job.aggregation.memory_budget
        # What is aggregated does not matter: the model is the site's own, as it sent it.
        rule = dataclasses.replace(context.rule, include=(".*",), exclude=())
        step = plan_step(base.layout, rule.adopting(), updates=1, memory_budget=budget, buffered=1)
        return write_site_model(path, base, update, rule, step, context.expect_on)

    def sync_updates(self) -> None:
        """Make the files of answers durable that wait to be folded, before an effect is recorded.

        Raises:
            CheckpointError: The disk does not take them.
        """
        for files, sites in self._unsynced.values():
            files.sync(sites)
        self._unsynced.clear()

    def folded(self, to_fold: UpdatesToFold) -> None:
        """Forget files that need no sync any more: the model of their updates is durable."""
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
                for update in training.collected.values():
                    update.body.release()
                self._context.run.discard_updates(training.number)
            training.collected.clear()  # the files of others are opened again when they are needed
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

    def files(self, training: SiteTraining, *, durable: bool = False) -> UpdateFiles:
        """The folder of files in which a training's updates may wait."""
        folder = self._context.run.updates(training.number)
        metadata = self._store.metadata(training.base, training.round)
        return UpdateFiles(folder, self.form_of(training), metadata, durable=durable)

    def form_of(self, training: SiteTraining) -> Callable[[str], UpdateForm]:
        """Return the function that gives the form of a site's update, once it has come.

        It does not keep the training: a task that waits for the collector would keep the files of
        models.
        """
        codecs, name = self._context.update_codecs, training.base.digest
        if training.parts is None:
            form = UpdateForm(self._store.joined(training.base), codecs, name)
            return lambda _: form
        reference = weakref.ref(training)

        def form_of(site: str) -> UpdateForm:
            training = reference()
            assert training is not None, "updates outlive no training"
            return UpdateForm(self._received.base(training, site), codecs, name)

        return form_of
