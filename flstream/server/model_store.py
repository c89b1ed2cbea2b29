"""The models of a run: files, found by what the journal says of them, and verified before use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from weakref import WeakValueDictionary

from flstream.aggregation.optimizers import Optimization, ServerOptimizer
from flstream.errors import CheckpointError, SimulationError
from flstream.model.checkpoint import FileSink, FileSource
from flstream.model.descriptors import is_ours_alone
from flstream.model.digests import ChunkDigester, ChunkDigests, body_digest
from flstream.model.layout import Layout
from flstream.model.order import ORDER
from flstream.runs.model_files import state_file
from flstream.runs.retention import Retention
from flstream.runs.small_files import temporary_of, unused_name
from flstream.server.context import ServerContext
from flstream.server.program_view import Model
from flstream.streaming.frames import LEAST_LENT
from flstream.telemetry.events import ModelRecord, ModelWritten, Warned


class UnsoundModelError(BaseException):
    """A model on record whose file is damaged or gone: its effect, and all after it, are void.

    It passes through a workflow, whatever that catches: the program is replayed from its beginning.

    Attributes:
        effect: Number of the effect that made the model.
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
        is_state_verified: The same of the server optimizer's state beside it.
        source: Its file, once it is open; the header is parsed once.
        chunk_digests: Digests of its chunks, as far as they were taken while it was written.
    """

    record: ModelRecord
    effect: int
    is_verified: bool = False
    is_state_verified: bool = False
    source: FileSource | None = None
    chunk_digests: ChunkDigests = field(default_factory=ChunkDigests)


@dataclass(frozen=True)
class ModelDraft:
    """A model that is being written.

    Attributes:
        sink: Takes its bytes.
        optimization: The server optimizer with its state; None without one.
        digester: Takes digests of its chunks; None where they would not be looked up.
    """

    sink: FileSink
    optimization: Optimization | None
    digester: ChunkDigester | None


class ModelStore:
    """Knows every model of the run, and keeps the files of those that are still needed.

    A round's newest model is ``round-NNNN.safetensors``. Before a later one of the same round takes
    that name, the earlier becomes ``round-NNNN.step-KK.safetensors``.

    Args:
        context: The server.
        written: Round and step of every model that the run has written, or was about to write,
            whether or not it counts.
    """

    def __init__(self, context: ServerContext, written: Iterable[tuple[int, int]] = ()) -> None:
        job, self._run = context.job, context.run
        self._context = context
        self._written = set(written)
        self._retention = Retention(
            self._run, job.checkpoints.keep, job.planned_rounds, [self._run.optimizer_state]
        )
        # Whatever else has the name of a round's model, somebody else has put there.
        self._rounds = {round_number for round_number, _ in self._written}
        self._models: list[StoredModel] = []
        # Those that a later model of their round has followed, and whose files may still be there.
        self._steps: list[StoredModel] = []
        self._handles: WeakValueDictionary[int, Model] = WeakValueDictionary()
        # Versions whose file is open.
        self._opened: set[int] = set()

    @property
    def newest(self) -> StoredModel:
        """The model that was made last."""
        return self._models[-1]

    def add(self, record: ModelRecord, effect: int, *, is_verified: bool = False) -> Model:
        """Take a model in, and return what a workflow sees of it.

        Args:
            record: What the journal says of it; versions come without a gap.
            effect: Number of the effect that made it; 0 for the initial model.
            is_verified: Whether its file is known to be sound.
        """
        assert record.version == len(self._models)
        self._models.append(StoredModel(record, effect, is_verified, is_verified))
        self._rounds.add(record.round)
        if record.step:
            self._steps.append(self._models[-2])
        return self.handle(record.version)

    def handle(self, version: int) -> Model:
        """What a workflow sees of a model: one object for as long as it refers to it."""
        handle = self._handles.get(version)
        if handle is None:
            record = self._models[version].record
            handle = Model(record.round, record.version, record.digest)
            self._handles[version] = handle
        return handle

    def source(self, model: Model) -> FileSource:
        """The file of a model, verified once and kept open.

        Raises:
            UnsoundModelError: The file is damaged or gone.
        """
        stored = self._models[model.version]
        if stored.source is None or not stored.is_verified:
            source = _opened(stored, self.path(stored.record), stored.chunk_digests)
            if not stored.is_verified:
                _verify(stored, source, stored.record.digest)
            stored.source, stored.is_verified = source, True
            self._opened.add(model.version)
        return stored.source

    def layout(self, record: ModelRecord) -> Layout:
        """The layout of a model, without looking at its tensors.

        Raises:
            CheckpointError: The file is damaged or gone.
        """
        return FileSource(self.path(record)).layout

    def path(self, record: ModelRecord) -> Path:
        """Where the file of a model lies."""
        return self._run.model_file(record)

    def next_record(self, round_number: int) -> tuple[int, int]:
        """The version and the step of the next model, if it is made in a round."""
        step = sum(each.record.round == round_number for each in self._models)
        return len(self._models), step

    @contextmanager
    def writing(
        self, base: Model, round_number: int, *, optimizer: ServerOptimizer | None
    ) -> Iterator[ModelDraft]:
        """Write the next model of a round.

        Args:
            base: The model that it is made from, with the server optimizer's state.
            round_number: Its round.
            optimizer: The server optimizer that makes a step; None for none.

        Raises:
            CheckpointError: The disk does not take it.
            SimulationError: A file of somebody else has its name, and cannot be moved away.
        """
        layout = self.source(base).layout
        path, (_, step) = self._run.checkpoint(round_number), self.next_record(round_number)
        own_name = self._run.step_checkpoint(round_number, step)
        in_the_way = [own_name, state_file(own_name)]
        if step == 0 and (round_number, 0) not in self._written:
            in_the_way += [path, state_file(path)]
        for each in in_the_way:
            self._set_aside(each)
        self._reuse(path)
        # Sites are sent it in chunks, whose digests are at hand now. Frames that are not lent do
        # not look them up: those are digested while they are copied.
        chunk_size = self._context.model_settings.frame_size
        digester = ChunkDigester(layout.nbytes, chunk_size) if chunk_size >= LEAST_LENT else None
        metadata = {"format": "pt", "flstream.round": str(round_number)}
        if order := self.source(base).metadata.get(ORDER):
            metadata[ORDER] = order
        with ExitStack() as stack:
            sink = stack.enter_context(FileSink(path, layout, metadata, digester=digester))
            optimization = None
            if optimizer is not None:
                optimization = self._optimization(optimizer, stack, base, path, layout)
            yield ModelDraft(sink, optimization, digester)

    def finish(self, draft: ModelDraft, round_number: int, digest: str) -> ModelRecord:
        """Make a model that was written durable, and return what the journal is to say of it."""
        version, step = self.next_record(round_number)
        path = self._run.checkpoint(round_number)
        state = ""
        # Whoever resumes the run is to know whose the file is, even if nothing else is said of it.
        self._context.emit(ModelWritten(round=round_number, step=step))
        self._written.add((round_number, step))
        self._rounds.add(round_number)
        if step:
            self._rename_earlier(round_number, step - 1)
        if draft.optimization is not None:
            # The state first: where a model is, what goes with it is, too.
            state_out = draft.optimization.state_out
            assert isinstance(state_out, FileSink)
            state_out.finish()
            # It was written here and there, a block of each moment at a time; so it is read again.
            state = body_digest(FileSource(state_file(path)))
        draft.sink.finish()
        return ModelRecord(round_number, version, step, digest, state)

    def keep_digests(self, record: ModelRecord, digester: ChunkDigester | None) -> None:
        """Remember the digests of the chunks of the model that was added last."""
        if digester is not None:
            self._models[record.version].chunk_digests = digester.digests

    def retire(self, best: int | None, in_use: Iterable[int] = ()) -> None:
        """Remove the files of models that need not stay, now that the newest is durable.

        Args:
            best: Version of the best evaluated model; None before there is one.
            in_use: Versions that tasks and updates in waiting refer to.
        """
        kept = {*in_use, *self._handles.keys(), self.newest.record.version}
        if best is not None:
            kept.add(best)
        paths = {self.path(self._models[version].record) for version in kept}
        steps: list[Path] = []
        for stored in self._steps:
            if stored.record.version not in kept:
                path = self._run.step_checkpoint(stored.record.round, stored.record.step)
                # The model goes last: where it is, the other is looked for, too.
                steps += [state_file(path), path]
        last = self.newest.record.round
        removed = self._retention.settle(last, None, own=self._rounds, in_use=paths, steps=steps)
        self._steps = [each for each in self._steps if self._is_step(each.record)]
        for message in removed.warnings:
            self._context.emit(Warned(message=message))
        # Open, a file that was removed would take its disk still.
        for version in self._opened - (kept - {best}):
            self._models[version].source = None
            self._opened.discard(version)

    def superseded_bytes(self, last: int) -> int:
        """Bytes of models up to a round that need not stay once the next one is begun, at most."""
        try:
            return self._retention.superseded_bytes(last, self._rounds)
        except OSError:
            return 0  # what cannot be looked at cannot be removed

    def present_bytes(self, round_number: int) -> int:
        """Bytes on disk already of what the next model of a round is written to."""
        temporary = temporary_of(self._run.checkpoint(round_number))
        spare = _ours(temporary) or _ours(temporary_of(self._run.checkpoint(round_number + 1)))
        states = temporary_of(state_file(self._run.checkpoint(round_number)))
        return sum(path.stat().st_size for path in (spare, _ours(states)) if path is not None)

    def _optimization(
        self,
        optimizer: ServerOptimizer,
        stack: ExitStack,
        base: Model,
        path: Path,
        layout: Layout,
    ) -> Optimization:
        stored, before = self._models[base.version], None
        if stored.record.optimizer_state:
            before = _opened(stored, state_file(self.path(stored.record)))
            if not stored.is_state_verified:
                _verify(stored, before, stored.record.optimizer_state)
            stored.is_state_verified = True
        state_layout = optimizer.state_layout(layout, self._context.rule)
        out = stack.enter_context(FileSink(state_file(path), state_layout))
        return Optimization(optimizer, before, out)

    def _is_step(self, record: ModelRecord) -> bool:
        """Whether a model has the name of its step, not that of its round."""
        return self._run.step_checkpoint(record.round, record.step).is_file()

    def _rename_earlier(self, round_number: int, step: int) -> None:
        """Give the newest model of a round the name of its step, with what lies beside it."""
        path = self._run.checkpoint(round_number)
        target = self._run.step_checkpoint(round_number, step)
        for old, new in ((path, target), (state_file(path), state_file(target))):
            # After a kill between two renamings, the file under the old name is a later attempt.
            if not new.exists():
                with suppress(FileNotFoundError):
                    old.rename(new)

    def _reuse(self, path: Path) -> None:
        """Write over the file that was recycled last: its pages and its blocks are at hand."""
        temporary = temporary_of(path)
        last = self.newest.record.round
        for number in (last, last + 1):
            spare = temporary_of(self._run.checkpoint(number))
            if not temporary.exists() and spare != temporary and spare.is_file():
                spare.rename(temporary)

    def _set_aside(self, path: Path) -> None:
        """Move a file that this run has not made out of the way: nothing of others is deleted."""
        if not os.path.lexists(path):
            return
        found = unused_name(path)
        try:
            path.rename(found)
        except OSError as error:
            raise SimulationError(
                f"{path} was not made by this run, going by its journal, and cannot be renamed: "
                f"{error.strerror}; move it out of the run directory, and go on with --resume"
            ) from error
        warning = f"{path} was not made by this run, going by its journal; it is {found.name} now"
        self._context.emit(Warned(message=warning))


def _opened(stored: StoredModel, path: Path, digests: ChunkDigests | None = None) -> FileSource:
    """Open a file of a model.

    Raises:
        UnsoundModelError: It is damaged or gone.
    """
    try:
        return FileSource(path, digests)
    except CheckpointError as error:
        raise UnsoundModelError(stored.effect, str(error)) from error


def _verify(stored: StoredModel, source: FileSource, digest: str) -> None:
    """Read a file of a model, whose body is to have a digest.

    Raises:
        UnsoundModelError: It has another one, or cannot be read.
    """
    try:
        found = body_digest(source)
    except CheckpointError as error:
        raise UnsoundModelError(stored.effect, str(error)) from error
    if found != digest:
        flaw = f"{source.path} has the digest {found}, and had {digest} when it was written"
        raise UnsoundModelError(stored.effect, flaw)


def _ours(path: Path) -> Path | None:
    return path if is_ours_alone(path) else None
