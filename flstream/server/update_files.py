"""Updates of a training in files: durable ones where the workflow reads them before a fold."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from types import MappingProxyType

from flstream.codecs.chain import UpdateForm
from flstream.errors import CheckpointError
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.copy import copy
from flstream.model.descriptors import sync_directory
from flstream.model.digests import BodyDigest, body_digest
from flstream.model.layout import Layout
from flstream.runs.results import UpdateRecord
from flstream.runs.small_files import sync_file
from flstream.runs.sound_models import file_flaw
from flstream.server.collected_updates import CollectedUpdate, RemoteUpdate, check_fits
from flstream.streaming.download import RemoteSource
from flstream.telemetry.events import Transfer
from flstream.worker.messages import SiteAnswer, WrittenUpdate

NO_METADATA: Mapping[str, str] = MappingProxyType({})


class UpdateFile(CollectedUpdate):
    """A site's update in a file.

    Attributes:
        path, digest: As given.
        stays: Whether the file stays once the update is released, as the workflow may fold it more
            than once; it goes when the workflow refers to no update of its training.
    """

    def __init__(
        self, answer: SiteAnswer, path: Path, digest: str, cost: Transfer, form: UpdateForm
    ) -> None:
        super().__init__(answer, FileSource(path), cost, form)
        self.path = path
        self.digest = digest
        self.stays = False

    @property
    def record(self) -> UpdateRecord:
        """Record in the journal of a file that stays."""
        answer = self.answer
        return UpdateRecord(self.digest, answer.params_type, answer.partial, self._cost)

    def release(self, failure: str = "") -> None:
        """Remove the file, unless it stays."""
        if not self.stays:
            self.path.unlink(missing_ok=True)


class UpdateFiles:
    """Folder with the updates of one training."""

    def __init__(
        self,
        folder: Path,
        form: Callable[[str], UpdateForm],
        metadata: Mapping[str, str] = NO_METADATA,
        *,
        durable: bool = False,
    ) -> None:
        self.folder = folder
        self._form = form
        self._metadata = dict(metadata)
        self._durable = durable

    def fetch(self, update: RemoteUpdate) -> UpdateFile:
        """Fetch an update into a file, whole or not at all; safe to call from several threads."""
        answer, settings, path = update.answer, update.settings, self._path(update.answer.site)

        with RemoteSource(
            update.worker.up,
            update.token,
            settings,
            digests=settings.reuse and update.same is not None,
            decoder_for=update.form.decoder_for,
        ) as remote:
            check_fits(answer, remote.layout, update.form)
            with self._sink(path, remote.layout) as sink:
                if update.same is not None:
                    remote.reuse(update.same)
                remote.deliver(sink)
                remote.confirm()
                sink.finish()
        digest = body_digest(FileSource(path))
        return UpdateFile(answer, path, digest, remote.cost, update.form)

    def take(self, answer: SiteAnswer, written: WrittenUpdate) -> UpdateFile:
        """Take an update that its worker has written to its file in this folder."""
        path, form = self._path(answer.site), self._form(answer.site)
        check_fits(answer, FileSource(path).layout, form)
        return UpdateFile(answer, path, written.digest, written.cost, form)

    def store(self, update: CollectedUpdate) -> UpdateFile:
        """Write an update that is in memory to its file."""
        source, path = update.body, self._path(update.answer.site)
        digest = BodyDigest(source.layout)
        with self._sink(path, source.layout) as sink:
            copy(source, sink, digest=digest)
            sink.finish()
        return UpdateFile(update.answer, path, digest.hexdigest(), update.cost, update.form)

    def keep(self, updates: Mapping[str, CollectedUpdate]) -> dict[str, UpdateRecord]:
        """Keep the files of updates; where they are durable, so are their names on return.

        Returns:
            What the journal is to say of each, by site.
        """
        records = {}
        for site, update in updates.items():
            assert isinstance(update, UpdateFile)
            update.stays = True
            records[site] = update.record
        if records and self._durable:
            self._sync_names()
        return records

    def sync(self, sites: Iterable[str]) -> None:
        """Make the files of some sites durable, and their names."""
        try:
            for site in sites:
                sync_file(self._path(site))
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be written: {error.strerror}") from error
        self._sync_names()

    def _sync_names(self) -> None:
        try:
            for folder in (self.folder, self.folder.parent, self.folder.parent.parent):
                sync_directory(folder)
        except OSError as error:
            raise CheckpointError(f"{self.folder} cannot be written: {error.strerror}") from error

    def load(
        self, site: str, weight: float, metrics: Mapping[str, float], record: UpdateRecord
    ) -> UpdateFile:
        """Return the update in a durable file, once all of it was read and found as it was."""
        path = self._path(site)
        if flaw := file_flaw(path, record.digest):
            raise CheckpointError(flaw)
        answer = SiteAnswer(
            site, weight, dict(metrics), record.params_type, partial=record.partial, has_params=True
        )
        update = UpdateFile(answer, path, record.digest, record.cost, self._form(site))
        update.stays = True
        return update

    def _sink(self, path: Path, layout: Layout) -> FileSink:
        return FileSink(path, layout, self._metadata, durable=self._durable)

    def _path(self, site: str) -> Path:
        return self.folder / f"{site}.safetensors"
