"""Updates on the server's side: where each one lies until it is folded.

An update stays in its worker, which then waits, if every site has a worker of its own. Otherwise it
is fetched at once into a file, or it is tiny and came in the answer, and the worker goes on. Where
the workflow reads updates before a fold, their files are durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import MappingProxyType

from flstream.aggregation.remote_body import RemoteBody
from flstream.aggregation.update import UpdateSource
from flstream.codecs.chain import UpdateForm
from flstream.errors import CheckpointError, LayoutError, StreamingError, UpdateRefusedError
from flstream.model.checkpoint import FileSink, FileSource, write_checkpoint
from flstream.model.descriptors import sync_directory
from flstream.model.digests import body_digest
from flstream.model.header import parse_header
from flstream.model.memory import BufferSource
from flstream.model.source import Source
from flstream.runs.results import InlineRecord, UpdateRecord
from flstream.runs.small_files import sync_file
from flstream.runs.sound_models import file_flaw
from flstream.server.worker_handle import WorkerHandle
from flstream.streaming.download import RemoteSource
from flstream.streaming.settings import StreamSettings
from flstream.telemetry.events import Transfer
from flstream.worker.messages import InlineUpdate, SiteAnswer, WrittenUpdate


class CollectedUpdate:
    """A site's update, in memory.

    Attributes:
        answer: What the site answered beside it.
        body: As given.
        form: As given.
        has_changed: Whether a fold has found that it is not the model that was received.
        is_clipped: Whether the last fold has scaled it down.
        place: Its place among the updates that a fold was given, from 0.
        base: The model that it was trained from, where that is not the one it is folded into.
    """

    has_changed = False
    is_clipped = False
    place = 0
    base: Source | None = None

    def __init__(self, answer: SiteAnswer, body: Source, cost: Transfer, form: UpdateForm) -> None:
        self.answer = answer
        self.body = body
        self.form = form
        self._cost = cost

    @property
    def cost(self) -> Transfer:
        """The cost of fetching it so far."""
        return self._cost

    @property
    def is_buffered(self) -> bool:
        """Whether a frame of it is kept while it is read, since it is decoded or fetched."""
        return self.form.codec is not None

    @property
    def small(self) -> InlineRecord | None:
        """The record of an update whose tensors are in memory; None for others."""
        if not isinstance(self.body, BufferSource):
            return None
        layout, answer = self.body.layout, self.answer
        is_of_model = layout == self.form.model.layout
        header = b"" if is_of_model else bytes(layout.plain_header[8:])
        (body,) = self.body.in_place(0, layout.nbytes)
        return InlineRecord(bytes(body), header, answer.params_type, answer.partial)

    def source(self, step: int) -> UpdateSource:
        """The update as a fold takes it."""
        answer = self.answer
        return UpdateSource(
            answer.site,
            lambda: self.form.decoded(self._open(step), answer.params_type),
            answer.weight,
            answer.params_type,
            answer.partial,
            self._note_change,
            self._note_clip,
            self.confirm,
            self.place,
            self.base,
        )

    def confirm(self) -> None:
        """Check that the bytes read of the update are those that its site offered."""

    def _note_change(self) -> None:
        self.has_changed = True

    def _note_clip(self, is_clipped: bool) -> None:
        self.is_clipped = is_clipped

    def _open(self, step: int) -> Source:
        return self.body

    def release(self, failure: str = "") -> None:
        """Release the update: its model is durable, or for a reason it is in none."""


class RemoteUpdate(CollectedUpdate):
    """A site's update that is still in its worker.

    It is fetched each time a walk reads it.

    Attributes:
        worker, token, settings: As given.
        same: The model, if the update may have some of its bytes; None if it has differences.
    """

    def __init__(
        self,
        answer: SiteAnswer,
        worker: WorkerHandle,
        token: bytes,
        settings: StreamSettings,
        form: UpdateForm,
    ) -> None:
        self.answer = answer
        self.worker = worker
        self.token = token
        self.settings = settings
        self.form = form
        self.same = form.model if answer.params_type == "FULL" else None

        where = answer.site, worker.up, token, settings
        check = partial(form.expect_fit, answer.site, partial=answer.partial)
        self._remote = RemoteBody(*where, self.same, check, form.decoder)

    @property
    def small(self) -> None:
        """None, as its tensors are in its worker."""

    @property
    def cost(self) -> Transfer:
        """Cost of fetching the update so far."""
        return self._remote.cost

    @property
    def is_buffered(self) -> bool:
        """Whether a frame of it is kept, as that is fetched."""
        return True

    def _open(self, step: int) -> Source:
        return self._remote.open(step)

    def confirm(self) -> None:
        """Confirm with the worker that the update was not changed."""
        self._remote.confirm()

    def release(self, failure: str = "") -> None:
        """Tell the worker that its update is settled."""
        # One that has died since is noticed when it is asked again.
        with suppress(StreamingError):
            self._remote.close(failure)


def small_update(
    site: str,
    weight: float,
    metrics: Mapping[str, float],
    record: InlineRecord,
    form: UpdateForm,
) -> CollectedUpdate:
    """Return an update whose tensors a record of the journal has."""
    answer = SiteAnswer(
        site, weight, dict(metrics), record.params_type, partial=record.partial, has_params=True
    )
    layout = form.model.layout
    if record.header:
        layout, _ = parse_header(record.header, "its header")
    body = BufferSource(layout, memoryview(record.body))
    return CollectedUpdate(answer, body, Transfer(bytes=len(record.body), chunks=1), form)


def update_in_answer(answer: SiteAnswer, update: InlineUpdate, form: UpdateForm) -> CollectedUpdate:
    """Return the update that came in a site's answer."""
    layout = form.model.layout
    if update.header != layout.plain_header[8:]:
        try:
            layout, _ = parse_header(update.header, "its header")
        except LayoutError as error:
            raise UpdateRefusedError(answer.site, f"cannot be read: {error}") from error
    source, size = BufferSource(layout, memoryview(update.body)), len(update.body)
    if size != layout.nbytes or body_digest(source) != update.digest:
        raise UpdateRefusedError(answer.site, "was damaged on its way")
    form.expect_fit(answer.site, layout, partial=answer.partial)
    return CollectedUpdate(answer, source, Transfer(bytes=size, chunks=1), form)


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
        ) as remote:
            remote.decoder = update.form.decoder(remote.layout)
            update.form.expect_fit(answer.site, remote.layout, partial=answer.partial)
            with FileSink(path, remote.layout, self._metadata, durable=self._durable) as sink:
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
        form.expect_fit(answer.site, FileSource(path).layout, partial=answer.partial)
        return UpdateFile(answer, path, written.digest, written.cost, form)

    def store(self, update: CollectedUpdate) -> UpdateFile:
        """Write an update that is in memory to its file."""
        path = self._path(update.answer.site)
        digest = write_checkpoint(path, update.body, self._metadata, durable=self._durable)
        return UpdateFile(update.answer, path, digest, update.cost, update.form)

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

    def _path(self, site: str) -> Path:
        return self.folder / f"{site}.safetensors"
