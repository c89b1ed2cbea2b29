"""Updates of a training in files, for jobs with fewer workers than sites.

Beside each update lies a record with the site's answer and the update's digest. A server that
resumes the round reuses the updates that are whole, so that no site trains twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import xxhash

from flstream.client.messages import SiteAnswer, WrittenUpdate
from flstream.codecs.update_form import UpdateForm
from flstream.errors import CheckpointError
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.copy import copy
from flstream.model.digests import BodyDigest, body_digest
from flstream.model.layout import Layout
from flstream.server.collected_updates import CollectedUpdate, UpdateCollection, check_fits
from flstream.streaming.download import RemoteSource, download
from flstream.telemetry.events import Transfer

# A record's file begins with the record's digest.
_CHECK_BYTES = 8


class UpdateRecord(msgspec.Struct, frozen=True):
    """Record of an update in a file.

    Attributes:
        answer: The site's answer.
        base: Digest of the arguments of the training that the update answers.
        digest: Digest of the update's body.
        cost: Cost of the update's download.
    """

    answer: SiteAnswer
    base: str
    digest: str
    cost: Transfer


class UpdateFile(CollectedUpdate):
    """A site's update in a file.

    Args:
        record: The update's record.
        path: Path of the update's file.
        form: How it was encoded, and what it is an update of.

    Attributes:
        path: As given.
    """

    def __init__(self, record: UpdateRecord, path: Path, form: UpdateForm) -> None:
        body = FileSource(path)
        super().__init__(record.answer, body, record.cost, form)
        self.path = path

    def release(self, failure: str = "") -> None:
        """Remove the update's file, but keep its record until the round is durable.

        Args:
            failure: Reason why the update is not used; then its record is removed, too.
        """
        self.path.unlink(missing_ok=True)
        if failure:
            _beside(self.path).unlink(missing_ok=True)


class UpdateFiles:
    """Folder with the updates of one training.

    Args:
        folder: Path of the folder, which belongs to this training alone.
        base: Digest of the training's arguments; updates with another base are ignored.
        form: The model that the training starts from, and how updates are encoded. They lie in the
            files as they were sent.
    """

    def __init__(self, folder: Path, base: str, form: UpdateForm) -> None:
        self.folder = folder
        self._base = base
        self._form = form

    def fetch(self, answer: SiteAnswer, collection: UpdateCollection) -> UpdateFile:
        """Fetch an update into a file, whole or not at all; safe to call from several threads.

        Args:
            answer: The site's answer.
            collection: The task's updates, with the connection to their worker.

        Raises:
            UpdateRefusedError: Its layout does not fit the model's.
            CheckpointError: A file cannot be written.
            FlstreamError: It did not arrive.
        """
        path = self._path(answer.site)

        def sink_for(layout: Layout) -> FileSink:
            check_fits(answer, layout, self._form)
            return stack.enter_context(FileSink(path, layout, durable=False))

        # The sink exists before its bytes do, and must not outlive a download that fails.
        with ExitStack() as stack:
            receiver, token, settings = collection.worker.up, collection.token, collection.settings
            base = collection.base_of(answer)
            decoder = collection.form.decoder_for
            remote = RemoteSource(
                receiver,
                token,
                settings,
                digests=settings.reuse and base is not None,
                decoder_for=decoder,
            )
            download(remote, sink_for, finish=FileSink.finish, held=lambda _: base)
        digest = body_digest(FileSource(path))
        return self._keep(UpdateRecord(answer, self._base, digest, remote.cost))

    def take(self, answer: SiteAnswer, written: WrittenUpdate) -> UpdateFile:
        """Take an update that its worker has written to its file in this folder.

        Args:
            answer: The site's answer.
            written: Its digest, and what it cost.

        Raises:
            UpdateRefusedError: Its layout does not fit the model's.
            CheckpointError: A file cannot be read or written.
        """
        check_fits(answer, FileSource(self._path(answer.site)).layout, self._form)
        record = UpdateRecord(answer, self._base, written.digest, written.cost)
        return self._keep(record)

    def store(self, update: CollectedUpdate) -> UpdateFile:
        """Write an update that is in memory to its file, for another process to read."""
        source, path = update.body, self._path(update.answer.site)
        digest = BodyDigest(source.layout)
        with FileSink(path, source.layout, durable=False) as sink:
            copy(source, sink, digest=digest)
            sink.finish()
        record = UpdateRecord(update.answer, self._base, digest.hexdigest(), update.cost)
        return self._keep(record)

    def _keep(self, record: UpdateRecord) -> UpdateFile:
        path = self._path(record.answer.site)
        # Written last: a record that exists shows that its update is whole.
        temporary = path.with_suffix(".answer.tmp")
        try:
            data = msgspec.msgpack.encode(record)
            temporary.write_bytes(xxhash.xxh3_64_digest(data) + data)
            temporary.replace(_beside(path))
        except OSError as error:
            raise CheckpointError(f"{temporary} cannot be written: {error.strerror}") from error
        return UpdateFile(record, path, self._form)

    def recover(self, sites: Sequence[str]) -> dict[str, UpdateFile]:
        """Return the whole updates that an earlier server process fetched.

        Args:
            sites: Sites to look for.

        Returns:
            The updates, by site.
        """
        found = {}
        for site in sites:
            path, record = self._path(site), self.record(site)
            with suppress(CheckpointError):
                if record is not None and body_digest(FileSource(path)) == record.digest:
                    found[site] = UpdateFile(record, path, self._form)
        return found

    def record(self, site: str) -> UpdateRecord | None:
        """Return the record of a site's update, which may outlive the update's file.

        Returns:
            The record; None if there is none, or it is damaged or of another training.
        """
        try:
            data = _beside(self._path(site)).read_bytes()
            if xxhash.xxh3_64_digest(data[_CHECK_BYTES:]) != data[:_CHECK_BYTES]:
                return None
            record = msgspec.msgpack.decode(data[_CHECK_BYTES:], type=UpdateRecord)
        except (FileNotFoundError, ValueError):
            return None
        return record if record.base == self._base else None

    def _path(self, site: str) -> Path:
        return self.folder / f"{site}.safetensors"


def _beside(path: Path) -> Path:
    return path.with_suffix(".answer")
