"""Updates on the server's side: where each one lies until it is folded.

An update stays in its worker, which then waits, if every site has a worker of its own. Otherwise it
is fetched at once into a file, or it is tiny and came in the answer, and the worker goes on. Where
the workflow reads updates before a fold, their files are durable.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from flstream.aggregation.update import CollectedUpdate
from flstream.aggregation.update_body import LocalBody, RemoteBody
from flstream.codecs.chain import UpdateForm
from flstream.errors import CheckpointError, LayoutError, UpdateRefusedError
from flstream.model.checkpoint import FileSink, FileSource, write_checkpoint
from flstream.model.descriptors import sync_directory
from flstream.model.digests import body_digest
from flstream.model.header import parse_header
from flstream.model.memory import BufferSource
from flstream.runs.results import UpdateRecord
from flstream.runs.small_files import sync_file
from flstream.runs.sound_models import file_flaw
from flstream.telemetry.events import Transfer
from flstream.worker.messages import InlineUpdate, SiteAnswer, WrittenUpdate


def inline_record(update: CollectedUpdate) -> UpdateRecord | None:
    """Return the record, with its tensors, of an update in memory; None for others."""
    if not isinstance(update.body, LocalBody) or not isinstance(update.body.source, BufferSource):
        return None
    source = update.body.source
    is_of_model = source.layout == update.form.model.layout
    header = b"" if is_of_model else bytes(source.layout.plain_header[8:])
    (body,) = source.in_place(0, source.layout.nbytes)
    return UpdateRecord("", bytes(body), header, update.params_type, update.partial)


def update_in_answer(answer: SiteAnswer, sent: InlineUpdate, form: UpdateForm) -> CollectedUpdate:
    """Return the update that came in a site's answer."""
    try:
        body = _in_memory(sent.header, sent.body, form)
    except LayoutError as error:
        raise UpdateRefusedError(answer.site, f"cannot be read: {error}") from error
    if len(sent.body) != body.source.layout.nbytes or body_digest(body.source) != sent.digest:
        raise UpdateRefusedError(answer.site, "was damaged on its way")
    update = update_of(answer, body, form)
    update.expect_fit(body.source.layout)
    return update


def _in_memory(header: bytes, data: bytes, form: UpdateForm) -> LocalBody:
    """Return the body of a small update, by its safetensors header without the length."""
    layout = form.model.layout
    if header != layout.plain_header[8:]:
        layout, _ = parse_header(header, "its header")
    source = BufferSource(layout, memoryview(data))
    return LocalBody(source, Transfer(bytes=len(data), chunks=1))


def update_of(
    answer: SiteAnswer, body: LocalBody | RemoteBody, form: UpdateForm
) -> CollectedUpdate:
    """Return the update of a site's answer."""
    return CollectedUpdate(
        answer.site, body, form, answer.weight, answer.params_type, answer.partial
    )


class UpdateFiles:
    """Folder with the updates of one training."""

    def __init__(
        self,
        folder: Path,
        form: Callable[[str], UpdateForm],
        metadata: Mapping[str, str] | None = None,
        *,
        durable: bool = False,
    ) -> None:
        self.folder = folder
        self._form = form
        self._metadata = dict(metadata or {})
        self._durable = durable

    def fetch(self, update: CollectedUpdate) -> None:
        """Fetch an update into its file, whole or not at all; safe to call from several threads."""
        path, body = self._path(update.site), update.body
        assert isinstance(body, RemoteBody)
        with body.fetch(update, body.settings.chunk_size) as remote:
            update.expect_fit(remote.layout)
            with FileSink(path, remote.layout, self._metadata, durable=self._durable) as sink:
                remote.deliver(sink)
                remote.confirm()
                sink.finish()
        source = FileSource(path)
        update.body = LocalBody(source, remote.cost, body_digest(source))

    def take(self, answer: SiteAnswer, written: WrittenUpdate) -> CollectedUpdate:
        """Take an update that its worker has written to its file in this folder."""
        body = LocalBody(FileSource(self._path(answer.site)), written.cost, written.digest)
        update = update_of(answer, body, self._form(answer.site))
        update.expect_fit(body.source.layout)
        return update

    def store(self, update: CollectedUpdate) -> None:
        """Write an update that is in memory to its file."""
        path, body = self._path(update.site), update.body
        assert isinstance(body, LocalBody)
        digest = write_checkpoint(path, body.source, self._metadata, durable=self._durable)
        update.body = LocalBody(FileSource(path), body.cost, digest)

    def keep(self, updates: Mapping[str, CollectedUpdate]) -> dict[str, UpdateRecord]:
        """Keep the files of updates; where they are durable, so are their names on return.

        Returns:
            What the journal is to say of each, by site.
        """
        records = {}
        for site, update in updates.items():
            body = update.body
            assert isinstance(body, LocalBody)
            body.stays = True
            facts = update.params_type, update.partial, body.cost
            records[site] = UpdateRecord(body.digest, b"", b"", *facts)
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

    def load(self, site: str, weight: float, record: UpdateRecord) -> CollectedUpdate:
        """Return a recorded update, once all of its file was read and found as it was."""
        form = self._form(site)
        if record.digest:
            path = self._path(site)
            if flaw := file_flaw(path, record.digest):
                raise CheckpointError(flaw)
            body = LocalBody(FileSource(path), record.cost, record.digest)
            body.stays = True
        else:
            header = record.header or form.model.layout.plain_header[8:]
            body = _in_memory(header, record.body, form)
        return CollectedUpdate(site, body, form, weight, record.params_type, record.partial)

    def _path(self, site: str) -> Path:
        return self.folder / f"{site}.safetensors"
