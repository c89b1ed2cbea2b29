"""The models of a run: files, found by what the journal says of them, and verified before use."""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from flstream.errors import CheckpointError
from flstream.job.bodies import MAIN
from flstream.model.checkpoint import FileSource
from flstream.model.joined import join_bodies, zeros_beside
from flstream.model.layout import Layout
from flstream.model.order import ORDER, in_order
from flstream.model.source import Source
from flstream.runs.model_files import (
    BASE,
    bodies_beside,
    body_file,
)
from flstream.runs.retention import Retention
from flstream.server.context import ServerContext
from flstream.server.program_view import Model
from flstream.server.stored_model import StoredModel, opened, own_body
from flstream.streaming.coding import EncoderFor
from flstream.telemetry.events import ModelRecord, Warned

if TYPE_CHECKING:
    from flstream.codecs.lossy import LossyCodec

# Models that sites may have received last, and are then sent what differs from them.
_MOST_BASES = 4


class ModelStore:
    """Knows every model of the run, and keeps the files of those that are still needed.

    A model is ``round-NNNN.step-KK.safetensors``; the last of a round is ``round-NNNN.safetensors``
    as well once the round has ended. The initial one has the name of round 0 alone.

    Args:
        context: The server.
        records: The models that the run has made before it was resumed.
        order: Digest of the text for the order of their tensors; None where that is not known.

    Attributes:
        retention: Knows of which rounds the models stay, and removes the others.
    """

    def __init__(
        self,
        context: ServerContext,
        records: Iterable[ModelRecord] = (),
        order: str | None = None,
    ) -> None:
        job, self._run = context.job, context.run
        self._order = order
        self._context = context
        # The last one is there, whatever of those before it is not.
        self._last_known = next(iter(deque(records, maxlen=1)), None)
        self.retention = Retention(self._run, job.checkpoints.keep)
        self._models: list[StoredModel] = []
        # Those whose files may still be there.
        self._present: list[StoredModel] = []
        self._handles: WeakValueDictionary[int, Model] = WeakValueDictionary()
        # By round, the versions that trainings in flight and waiting updates start from at its end.
        self._held: dict[int, set[int]] = {}
        # Versions whose file is open.
        self._opened: set[int] = set()

    @cached_property
    def facts(self) -> tuple[Layout, tuple[str, ...]] | None:
        """Layout of the run's models, and their names in the order of the factory.

        None in a dry run, which has no model.
        """
        paths = [self.path(record) for record in (self._last_known, self.newest.record) if record]
        path = next((path for path in paths if path.is_file()), None)
        if path is None:
            return None
        source = FileSource(path)
        layout, text = source.layout, source.metadata.get(ORDER, "")
        return layout, tuple(in_order(dict.fromkeys(layout.names), layout, text))

    @property
    def newest(self) -> StoredModel:
        """The model that was made last."""
        return self._models[-1]

    def add(
        self,
        record: ModelRecord,
        effect: int,
        *,
        is_verified: bool = False,
        host: str = "",
        own: Sequence[str] = (),
    ) -> Model:
        """Take a model in, and return what a workflow sees of it.

        Args:
            record: What the journal says of it; versions come without a gap.
            effect: Number of the effect that made it; 0 for the initial model.
            is_verified: Whether its file is known to be sound.
            host: Site at which it was folded; empty for the server.
            own: Names of the bodies beside it that are the server's own.
        """
        assert record.version == len(self._models)
        verified = set(bodies_beside(record)) if is_verified else set()
        self._models.append(StoredModel(record, effect, is_verified, verified, host=host, own=own))
        self._present.append(self._models[-1])
        return self.handle(record.version)

    def handle(self, version: int) -> Model:
        """Handle of a model for workflows: the same object as long as one refers to it."""
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
            digest = "" if stored.is_verified else stored.record.digest
            path = self.path(stored.record)
            stored.source = opened(stored.effect, path, digest, self._order)
            stored.is_verified = True
            self._opened.add(model.version)
        return stored.source

    def record(self, model: Model) -> ModelRecord:
        """Return the record of a model in the journal."""
        return self._models[model.version].record

    def has_file(self, model: Model) -> bool:
        """Whether the file of a model is still there."""
        return self.path(self._models[model.version].record).is_file()

    def begin(self, version: int, bodies: Mapping[str, Any]) -> Model:
        """A model with which a workflow begins.

        The server's own bodies are a part of it, and stay.

        Args:
            version: Version of the model.
            bodies: The bodies that it has beside it from here on, by name, which are zeros: as the
                arguments of :meth:`flstream.server.run.Run.initial_model`.
        """
        stored, handle = self._models[version], self.handle(version)
        before = stored.begun or {}
        own = {name: before.get(name) for name in self.own_bodies(handle)}
        on_record = [name for name, value in own.items() if value is None]
        begun = {**own, **bodies, **dict.fromkeys(on_record)}
        if stored.begun != begun:
            stored.begun, stored.beside, stored.joined = begun, None, None
        return handle

    def bodies(self, model: Model) -> Sequence[str]:
        """Names of the bodies beside a model, which travel and are folded with it."""
        stored = self._models[model.version]
        return list(stored.record.bodies if stored.begun is None else stored.begun)

    def own_bodies(self, model: Model) -> Sequence[str]:
        """Names of those that are the server's own, of which sites send no part."""
        stored = self._models[model.version]
        if stored.begun is None:
            return stored.own  # known without its files, which may have had to go
        return [name for name, value in stored.begun.items() if value != "zeros"]

    def shapes_of_own(self, model: Model) -> dict[str, Any]:
        """Functions of the shapes of the server's own bodies with which a workflow begins."""
        begun = self._models[model.version].begun or {}
        return {name: value for name, value in begun.items() if callable(value)}

    def scored(self, model: Model) -> Source:
        """A model as sites score it: with the server's own bodies, which are a part of it."""
        own, beside = self.own_bodies(model), self.bodies_of(model)
        if not own:
            return self.source(model)
        return join_bodies({MAIN: self.source(model), **{name: beside[name] for name in own}})

    def joined(self, model: Model) -> Source:
        """A model with the bodies beside it as one source, verified once and kept open.

        Raises:
            UnsoundModelError: A file is damaged or gone.
            LayoutError: A tensor is named like one of another body.
        """
        stored, source = self._models[model.version], self.source(model)
        beside = self.bodies_of(model)
        if not beside:
            return source
        if stored.joined is None:
            stored.joined = join_bodies({MAIN: source, **beside})
        return stored.joined

    def bodies_of(self, model: Model) -> Mapping[str, Source]:
        """The bodies beside a model by name, verified once and kept open."""
        stored, layout = self._models[model.version], self.source(model).layout
        if stored.beside is None:
            if stored.begun is None:
                stored.beside = {name: self._body(stored, name) for name in stored.record.bodies}
            else:
                stored.beside = {
                    name: self._begun(stored, name, value, layout)
                    for name, value in stored.begun.items()
                }
        return stored.beside

    def _begun(self, stored: StoredModel, name: str, value: Any, layout: Layout) -> Source:
        """The body of a name with which a workflow begins."""
        if value is None:
            return self._body(stored, name)
        return zeros_beside(layout) if value == "zeros" else own_body(name, value, layout)

    def _body(self, stored: StoredModel, name: str) -> FileSource:
        """Open a body beside a model, and verify it once."""
        digest = "" if name in stored.verified else bodies_beside(stored.record)[name]
        source = opened(stored.effect, body_file(self.path(stored.record), name), digest)
        stored.verified.add(name)
        return source

    def encoder(
        self,
        digest: str,
        source: Source,
        lossy: LossyCodec | None = None,
        is_whole: bool = True,
    ) -> EncoderFor | None:
        """Encoder that makes frames of a model smaller for sites; None for none.

        Args:
            digest: Digest of the model.
            source: The model, with the bodies beside it.
            lossy: What encodes it before that; None for nothing.
            is_whole: Whether the source has all tensors of the model, so that it can be encoded
                with an earlier one.
        """
        codec = self._context.model_codecs.frames
        if codec is None:
            return None
        bases: dict[str, Source] = {}
        for stored in self._models[-_MOST_BASES:] if codec.needs_base and is_whole else ():
            if stored.record.digest != digest:
                with suppress(CheckpointError):  # it may have had to go
                    base = FileSource(self.path(stored.record))
                    bases[stored.record.digest] = base if lossy is None else lossy.encode(base)
        layout = source.layout if lossy is None else lossy.encoded(source.layout)
        from flstream.codecs.frames import encoder_for

        return encoder_for(codec, layout, bases)

    def hosts(self, model: Model) -> Sequence[str]:
        """The site whose worker offers a model; none where the server does.

        A worker has a file on offer, and no bodies beside it.
        """
        host = "" if self.bodies(model) else self._models[model.version].host
        return [host] if host else []

    def round_of(self, effect: int) -> int | None:
        """The round of the model that an effect has made; None if it has made none."""
        rounds = (stored.record.round for stored in self._models if stored.effect == effect)
        return next(rounds, None)

    def layout(self, record: ModelRecord) -> Layout:
        """The layout of a model, without looking at its tensors.

        Raises:
            CheckpointError: The file is damaged or gone.
        """
        return FileSource(self.path(record)).layout

    def path(self, record: ModelRecord) -> Path:
        """Path of a model's file."""
        return self._run.model_file(record)

    def next_record(self, round_number: int) -> tuple[int, int]:
        """The version and the step of the next model, if it is made in a round."""
        newest = (model.record.round for model in reversed(self._models))
        step = sum(1 for _ in takewhile(lambda number: number == round_number, newest))
        return len(self._models), step

    def last_of(self, round_number: int) -> StoredModel | None:
        """The last model of a round; None where it has none."""
        until = (model for model in reversed(self._models) if model.record.round <= round_number)
        stored = next(until, None)
        return stored if stored is not None and stored.record.round == round_number else None

    def hold(self, round_number: int, versions: Iterable[int]) -> None:
        """Keep models as long as the run may go back to the end of a round, or on from there.

        Args:
            round_number: Number of the round.
            versions: Versions of models that its unfinished work starts from.
        """
        self._held.setdefault(round_number, set(versions))

    def retire(self, best: Iterable[int], in_use: Iterable[int] = ()) -> None:
        """Remove the files of models that need not stay, now that the newest is durable.

        Args:
            best: Versions of the best evaluated models.
            in_use: Further versions that stay, beside those that a workflow or update refers to.
        """
        # In one step: a thread of the pool may look up what an update was trained from meanwhile.
        handles = [reference() for reference in self._handles.valuerefs()]
        used = {handle.version for handle in handles if handle is not None}
        used.update(in_use, [self.newest.record.version])
        # First, since whoever closes a removed file last waits until its pages are free.
        for version in self._opened - used:
            self._models[version].close()
            self._opened.discard(version)
        if self.retention.keep == "all":
            return
        oldest = self.retention.oldest(self.newest.record.round)
        self._held = {number: held for number, held in self._held.items() if number >= oldest}
        self._remove_all_but(used.union(best, *self._held.values()))

    def _remove_all_but(self, staying: Container[int]) -> None:
        """Remove the models of versions that are not kept, but for the last rounds' last ones."""
        last, present, self._present = self.newest.record.round, self._present, []
        for stored in present:
            record, is_last = stored.record, self._is_last(stored.record)
            is_recent = is_last and record.round >= self.retention.oldest(last)
            if is_recent or record.version in staying:
                self._present.append(stored)
                continue
            is_gone, warnings = self.retention.remove(self._files_of(record, is_last=is_last))
            if not is_gone:
                self._present.append(stored)
            self._context.emit(*(Warned(message=message) for message in warnings))

    def superseded_bytes(self, last: int) -> int:
        """Bytes of models up to a round that need not stay once the next one is begun, at most."""
        records = [model.record for model in self._present]
        going = [record for record in records if record.round < self.retention.oldest(last)]
        paths = [self.path(record) for record in going]
        beside = [
            body_file(path, body)
            for path, record in zip(paths, going, strict=True)
            for body in bodies_beside(record)
        ]
        return sum(path.stat().st_size for path in (*paths, *beside) if path.is_file())

    def _is_last(self, record: ModelRecord) -> bool:
        """Whether a model is the last of its round so far."""
        following = record.version + 1
        return following == len(self._models) or self._models[following].record.round > record.round

    def _files_of(self, record: ModelRecord, *, is_last: bool) -> list[Path]:
        """The files of a model by all of their names, in the order in which they go.

        The model goes last: where it is, the others are looked for, too.
        """
        names = [self._run.step_checkpoint(record.round, record.step)]
        if is_last:
            names.append(self._run.checkpoint(record.round))
        beside = [body_file(name, body) for body in bodies_beside(record) for name in names]
        return [*beside, *reversed(names)]

    def beside(self, model: Model, body: str) -> FileSource | None:
        """File beside a model that is no body of it, verified once; None for none.

        Args:
            model: The model.
            body: :data:`OPTIMIZER`, :data:`CHANGES` from the model before it, or the :data:`BASE`
                of an adapter, which is none where it is still the job's.

        Raises:
            UnsoundModelError: It is damaged or gone.
        """
        stored = self._models[model.version]
        return self._body(stored, body) if body in bodies_beside(stored.record) else None

    def base_path(self, model: Model) -> str:
        """Path of the base of an adapter, as text for a task; empty where it is still the job's."""
        base = self.beside(model, BASE)
        return "" if base is None else str(base.path)
