"""The next models of a run: their files, from the first byte until they have their names."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from pathlib import Path

from flstream.aggregation.fold_rule import ServerStep
from flstream.errors import SimulationError
from flstream.job.bodies import MAIN
from flstream.model.checkpoint import FileSource
from flstream.model.descriptors import sync_directory
from flstream.model.order import ORDER
from flstream.runs.model_draft import ModelDraft, model_draft
from flstream.runs.model_files import (
    BASE,
    CHANGES,
    OPTIMIZER,
    bodies_beside,
    body_file,
    round_name,
)
from flstream.runs.run_directory import is_same_file, link_or_rename
from flstream.runs.small_files import unused_name
from flstream.server.context import ServerContext
from flstream.server.model_store import ModelStore
from flstream.server.program_view import Model
from flstream.telemetry.events import ModelRecord, ModelWritten, Warned


def model_metadata(base: FileSource, round_number: int) -> dict[str, str]:
    """Return strings of the header of a round's model that is made from another one."""
    metadata = {"format": "pt", "flstream.round": str(round_number)}
    if order := base.metadata.get(ORDER):
        metadata[ORDER] = order
    return metadata


class ModelWriter:
    """Makes the files of the run's next models.

    Args:
        context: The server.
        store: The models that there are.
    """

    def __init__(self, context: ServerContext, store: ModelStore) -> None:
        self._context = context
        self._run = context.run
        self._store = store
        # Round and step of those whose files this process has written, and their versions.
        self._written: set[tuple[int, int]] = set()
        self._made_here: set[int] = set()

    def writing(
        self, base: Model, round_number: int, *, optimizer: ServerStep | None
    ) -> AbstractContextManager[ModelDraft]:
        """Write the next model of a round.

        Args:
            base: The model that it is made from, with the server optimizer's state.
            round_number: Its round.
            optimizer: The server optimizer that makes a step; None for none.

        Raises:
            CheckpointError: The disk does not take it.
            SimulationError: A file of somebody else has its name, and cannot be moved away.
        """
        path = self.prepare(base, round_number)
        beside = {body: source.layout for body, source in self._store.bodies_of(base).items()}
        state = None
        if optimizer is not None and not optimizer.begins:
            state = self._store.beside(base, OPTIMIZER)
        return model_draft(
            path,
            {MAIN: self._store.source(base).layout, **beside},
            model_metadata(self._store.source(base), round_number),
            self._context.rule,
            optimizer,
            state,
            self._context.model_codecs,
            self._store.source(base),
        )

    def link(
        self, base: Model, round_number: int, file: Path, digests: Mapping[str, str]
    ) -> ModelRecord:
        """Make a durable file the next model of a round, under a second name.

        Args:
            base: The model that it is made from.
            round_number: Its round.
            file: The file, with the metadata of such a model; the optimizer's state lies beside it.
            digests: Digest of its body, under an empty name, and of that of the optimizer's state
                by its name, if there is one.

        Raises:
            SimulationError: A file of somebody else has its name, and cannot be moved away.
        """
        path = self.prepare(base, round_number)

        def make_durable() -> dict[str, str]:
            if OPTIMIZER in digests:  # before the model, with which it is looked for
                self._run.publish(body_file(file, OPTIMIZER), body_file(path, OPTIMIZER))
            self._run.publish(file, path)
            return dict(digests)

        return self.finish(make_durable, round_number, base)

    def prepare(self, base: Model, round_number: int) -> Path:
        """Make room for the files of a round's next model, and return the path of the model.

        Args:
            base: The model that it is made from.
            round_number: Its round.

        Raises:
            SimulationError: A file of somebody else has its name, and cannot be moved away.
        """
        self._replace_removed_folder()
        bodies = self._store.bodies(base)
        _, step = self._store.next_record(round_number)
        path = self._run.step_checkpoint(round_number, step)
        if (round_number, step) not in self._written:
            for taken in (
                path,
                *(body_file(path, body) for body in (OPTIMIZER, CHANGES, BASE, *bodies)),
            ):
                self._set_aside(taken)
        return path

    def finish(
        self, make_durable: Callable[[], dict[str, str]], round_number: int, parent: Model
    ) -> ModelRecord:
        """Make a model that was written durable, and return what the journal is to say of it.

        Args:
            make_durable: Does so: see :meth:`flstream.runs.model_draft.ModelDraft.finish`.
            round_number: Its round.
            parent: The model that it is made from, whose base it keeps unless it has a new one.
        """
        version, step = self._store.next_record(round_number)
        path = self._run.step_checkpoint(round_number, step)
        # Whoever resumes the run is to know whose the file is, even if nothing else is said of it.
        self._context.emit(ModelWritten(round=round_number, step=step))
        self._written.add((round_number, step))
        self._made_here.add(version)
        if base := self._store.record(parent).base:
            self._run.publish(
                body_file(self._store.path(self._store.record(parent)), BASE), body_file(path, BASE)
            )
        beside = make_durable()
        base = beside.pop(BASE, base)
        digest, state = beside.pop(MAIN), beside.pop(OPTIMIZER, "")
        changes = beside.pop(CHANGES, "")
        return ModelRecord(round_number, version, step, digest, state, beside, changes, base)

    def name_round(self, number: int) -> None:
        """Give the last model of a round that has ended the round's name, too.

        What has the name of a model from before a resume stays: it may be a copy of it.

        Raises:
            SimulationError: The disk refused it, or a file of somebody else cannot be moved away.
        """
        if (stored := self._store.last_of(number)) is None:
            return
        model = self._run.step_checkpoint(number, stored.record.step)
        beside = [body_file(model, body) for body in bodies_beside(stored.record)]
        is_named = False
        try:
            for path in [path for path in (*beside, model) if path.is_file()]:
                name = round_name(path)
                if is_same_file(path, name):
                    continue
                if os.path.lexists(name):
                    if stored.record.version not in self._made_here:
                        continue
                    self._set_aside(name)
                link_or_rename(path, name)
                is_named = True
            if is_named:
                sync_directory(self._run.checkpoints)
        except OSError as error:
            raise SimulationError(
                f"the last model of round {number} cannot be given its name: {error}; put that "
                "right, and go on with --resume"
            ) from error
        if is_named and not model.is_file():  # the file system has no hard links
            stored.close()

    def keep_state(self, model: Model, path: Path) -> dict[str, str]:
        """Give the optimizer's state beside a model, if any, a second name beside another file.

        Returns:
            Digest of the state by its name, as :meth:`finish` takes it.
        """
        if (state := self._store.beside(model, OPTIMIZER)) is None:
            return {}
        self._run.publish(state.path, body_file(path, OPTIMIZER))
        return {OPTIMIZER: self._store.record(model).optimizer_state}

    def _replace_removed_folder(self) -> None:
        """Make the folder of the models again if somebody has removed it, and say so."""
        folder = self._run.checkpoints
        with suppress(FileExistsError):
            folder.mkdir()
            lost = "it is there again, without the models that it had"
            self._context.emit(Warned(message=f"{folder} was removed during the run; {lost}"))

    def _set_aside(self, path: Path) -> None:
        """Move a file that this run has not made out of the way: nothing of others is deleted."""
        if not os.path.lexists(path):
            return
        aside = unused_name(path)
        try:
            path.rename(aside)
        except OSError as error:
            raise SimulationError(
                f"{path} was not made by this run, going by its journal, and cannot be renamed: "
                f"{error.strerror}; move it out of the run directory, and go on with --resume"
            ) from error
        warning = f"{path} was not made by this run, going by its journal; it is {aside.name} now"
        self._context.emit(Warned(message=warning))
