"""Records of a model of a run: what is known of it, and the files that it is written to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flstream.aggregation.optimizers import Optimization
from flstream.codecs.rounded_writer import RoundedWriter
from flstream.errors import CheckpointError
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.digests import body_digest
from flstream.model.joined import MAIN, SplitWriter, WritesRanges
from flstream.model.source import Source
from flstream.runs.model_files import OPTIMIZER, body_file
from flstream.runs.sound_models import body_flaw
from flstream.telemetry.events import ModelRecord


class UnsoundModelError(BaseException):
    """The file of a model or an update on record is damaged or gone, and is needed again.

    It passes through a workflow, whatever that catches.

    Attributes:
        effect: Number of the effect that made it.
        flaw: One sentence that says what is wrong with its file.
    """

    def __init__(self, effect: int, flaw: str) -> None:
        super().__init__(flaw)
        self.effect = effect
        self.flaw = flaw


@dataclass
class StoredModel:
    """A model and its file.

    Attributes:
        record: What the journal says of it.
        effect: Number of the effect that made it; 0 for the initial model.
        is_verified: Whether this process wrote its file, or has read it and found its digest.
        verified: Names of the bodies beside it of which the same is known.
        source: Its file, once it is open; the header is parsed once.
        begun: The bodies that a workflow that began with it gives it, by name; None where none did,
            and those on record count.
        beside: The bodies beside it by name, once they are open.
        joined: The model with them as one source.
        host: Site at which it was folded, whose worker offers it; empty for the server.
    """

    record: ModelRecord
    effect: int
    is_verified: bool = False
    verified: set[str] = field(default_factory=set)
    source: FileSource | None = None
    begun: Sequence[str] | None = None
    beside: dict[str, Source] | None = None
    joined: Source | None = None
    host: str = ""

    def close(self) -> None:
        """Let go of its files; they are opened again when they are needed."""
        self.source = self.beside = self.joined = None


@dataclass(frozen=True)
class DraftFiles:
    """The files of a model that is about to be written.

    Attributes:
        path: Path of the model.
        metadata: Strings of its header.
        state_in: The server optimizer's state that belongs to the model before it; None if there is
            none.
    """

    path: Path
    metadata: dict[str, str]
    state_in: Path | None

    @property
    def state_out(self) -> Path:
        """Path of the optimizer's state that belongs to the model."""
        return body_file(self.path, OPTIMIZER)


@dataclass(frozen=True)
class ModelDraft:
    """A model that is being written.

    Attributes:
        sink: Takes its bytes.
        bodies: Take those of the bodies beside it, by name.
        target: Takes all of them, as one body.
        optimization: The server optimizer with its state; None without one.
        rounded: Rounds it to what sites will receive; None where they receive it as it is.
    """

    sink: FileSink
    bodies: Mapping[str, FileSink]
    target: WritesRanges
    optimization: Optimization | None
    rounded: RoundedWriter | None = None

    def finish(self) -> dict[str, str]:
        """Make it durable, and give it its name; before it, the bodies beside it.

        Returns:
            The digests of these by name, among them that of the server optimizer's state; and that
            of the model, under an empty name, where that was taken here.
        """
        digests: dict[str, str] = {}
        # The model last: where it is, what goes with it is, too.
        for sink in self.bodies.values():
            sink.finish()
        if isinstance(self.target, SplitWriter):
            digests |= self.target.digests()
        if self.rounded is not None:
            digests[MAIN] = self.rounded.digest
        if self.optimization is not None:
            state_out = self.optimization.state_out
            assert isinstance(state_out, FileSink)
            # It was written here and there, a block of each moment at a time; so it is read again.
            digests[OPTIMIZER] = body_digest(state_out.finish())
        self.sink.finish()
        return digests


def opened(effect: int, path: Path) -> FileSource:
    """Open a file of a model, which an effect has on record.

    Raises:
        UnsoundModelError: It is damaged or gone.
    """
    try:
        return FileSource(path)
    except CheckpointError as error:
        raise UnsoundModelError(effect, str(error)) from error


def verify(effect: int, source: FileSource, digest: str) -> None:
    """Read a file of a model, whose body is to have a digest going by the record of an effect.

    Raises:
        UnsoundModelError: It has another one, or cannot be read.
    """
    if flaw := body_flaw(source, digest):
        raise UnsoundModelError(effect, flaw)
