"""The updates of a round as files, where there are fewer workers than sites.

Beside each lies what its site said of it, and a digest. So a server that goes on with the round
takes up what is whole, and has no site train twice.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import msgspec
import xxhash

from flstream.client.messages import TrainedSite
from flstream.errors import CheckpointError
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.digests import body_digest
from flstream.model.layout import Layout
from flstream.simulator.crew.worker import Worker
from flstream.simulator.rounds.updates import Collected, check_fits
from flstream.streaming.download import download
from flstream.streaming.receiver import StreamSettings
from flstream.telemetry.events import Transfer

# What a site said has its digest before it.
_CHECK_BYTES = 8


class Told(msgspec.Struct, frozen=True):
    """What lies beside an update.

    Attributes:
        trained: what the site said.
        base: digest of the model that it was trained from.
        digest: of the update.
        cost: of fetching it.
    """

    trained: TrainedSite
    base: str
    digest: str
    cost: Transfer


class Spooled(Collected):
    """A site's update in a file."""

    def __init__(self, told: Told, path: Path) -> None:
        super().__init__(told.trained, FileSource(path), told.cost)
        self._path = path

    def release(self, failure: str = "") -> None:
        """Remove the file. What the site said stays until the round is durable."""
        self._path.unlink(missing_ok=True)
        if failure:
            _beside(self._path).unlink(missing_ok=True)


class Spool:
    """The folder with the updates of one round.

    Args:
        folder: of this round alone.
        base: digest of the model that the round starts from.
        model: its layout.
    """

    def __init__(self, folder: Path, base: str, model: Layout) -> None:
        self.folder = folder
        self._base = base
        self._model = model

    def fetch(
        self, worker: Worker, trained: TrainedSite, token: bytes, settings: StreamSettings
    ) -> Spooled:
        """Fetch an update into a file, whole or not at all. Threads may do so at once.

        Raises:
            UpdateRefusedError: it is not an update of the model.
            CheckpointError: the disk did not take it.
            FlstreamError: it did not arrive.
        """
        path = self._path(trained.site)

        def sink_for(layout: Layout) -> FileSink:
            check_fits(trained, layout, self._model)
            return stack.enter_context(FileSink(path, layout, durable=False))

        # The sink is there before its bytes are, and must not outlive a download that fails.
        with ExitStack() as stack:
            sink, cost = download(worker.up, token, settings, sink_for)
            sink.finish()
        told = Told(trained, self._base, body_digest(FileSource(path)), cost)
        # The last to appear: where it is, the update is whole.
        temporary = path.with_suffix(".told.tmp")
        try:
            data = msgspec.msgpack.encode(told)
            temporary.write_bytes(xxhash.xxh3_64_digest(data) + data)
            temporary.replace(_beside(path))
        except OSError as error:
            raise CheckpointError(f"{temporary} cannot be written: {error.strerror}") from error
        return Spooled(told, path)

    def recover(self, sites: Sequence[str]) -> dict[str, Spooled]:
        """The updates of these sites that an earlier server fetched and that are whole."""
        found = {}
        for site in sites:
            path, told = self._path(site), self.told(site)
            with suppress(CheckpointError):
                if told is not None and body_digest(FileSource(path)) == told.digest:
                    found[site] = Spooled(told, path)
        return found

    def told(self, site: str) -> Told | None:
        """What lies beside a site's update, whether or not that is still there."""
        try:
            data = _beside(self._path(site)).read_bytes()
            if xxhash.xxh3_64_digest(data[_CHECK_BYTES:]) != data[:_CHECK_BYTES]:
                return None
            told = msgspec.msgpack.decode(data[_CHECK_BYTES:], type=Told)
        except (FileNotFoundError, ValueError):
            return None
        return told if told.base == self._base else None

    def discard(self) -> None:
        """Remove all of it: the round is durable."""
        shutil.rmtree(self.folder, ignore_errors=True)
        with suppress(OSError):  # another round's, of an earlier attempt, may be there
            self.folder.parent.rmdir()

    def _path(self, site: str) -> Path:
        return self.folder / f"{site}.safetensors"


def _beside(path: Path) -> Path:
    return path.with_suffix(".told")
