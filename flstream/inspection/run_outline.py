"""What a run directory says of its checkpoints: its journal, its summary, and its sites' scores."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from flstream.errors import CheckpointError, SimulationError
from flstream.runs.history import History
from flstream.runs.journal import read_history
from flstream.runs.model_files import ModelFile
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.events import Metrics, ModelRecord

_MOST_JSON_BYTES = 64 << 20
_UNREADABLE = (msgspec.DecodeError, ValueError, RecursionError)


class _Model(msgspec.Struct):
    digest: str = ""


class _Summary(msgspec.Struct):
    job: str = ""
    status: str = ""
    rounds_completed: int = 0
    model: _Model = msgspec.field(default_factory=_Model)


class RunOutline(NamedTuple):
    """What a run says of itself.

    Attributes:
        path: Path of the file that says so.
        job: Name of its job.
        status: finished, failed or stopped; ``unfinished`` where no end was written.
        planned: Rounds that were to be run; 0 if that is not known.
        completed: Number of the last round that came to its end.
        models: Models that each round made, oldest first; round 0 has the initial model.
        metrics: Metrics of the model that a round ended with: of its evaluation; or, where it had
            none, those that its sites trained with.
    """

    path: Path
    job: str
    status: str
    planned: int
    completed: int
    models: Mapping[int, Sequence[ModelRecord]]
    metrics: Mapping[int, Metrics]

    def record_of(self, file: ModelFile, run: RunDirectory) -> ModelRecord | None:
        """What is known of a model by its file; None where nothing is."""
        made = self.models.get(file.round, ())
        if file.step is not None:
            return next((model for model in made if model.step == file.step), None)
        if made and not os.path.lexists(run.step_checkpoint(file.round, made[-1].step)):
            return made[-1]
        # The run was cut off before it had written of the one that the file has now.
        return None

    def final(self, digest: str) -> ModelRecord | None:
        """The model that the final model's file should be: the newest that has a digest.

        A workflow may end with an earlier model than its newest, so any of them will do.
        """
        models = [model for made in self.models.values() for model in made]
        alike = [model for model in models if model.digest == digest]
        return next(reversed(alike or models), None)


class FoundModel(NamedTuple):
    """A model in a run directory.

    Attributes:
        run: The run directory.
        file: Which of its models; None for the final model.
    """

    run: RunDirectory
    file: ModelFile | None


class ScoredModels(NamedTuple):
    """How many models the sites of a run have scored, each for itself.

    Attributes:
        sites: number of sites that have scored a model.
        models: number of models that a site has scored.
    """

    sites: int
    models: int


def read_outline(run: RunDirectory) -> RunOutline | None:
    """What a run directory's journal says, or its summary where there is none; None without both.

    A line that was being written when the run was cut off is passed over.

    Raises:
        CheckpointError: the file cannot be read or is damaged.
    """
    if os.path.isfile(run.events):
        try:
            history = read_history(run.events)
        except SimulationError as error:
            raise CheckpointError(
                f"{error}; or inspect the checkpoint from a copy outside of the run directory"
            ) from error
        return _from_history(run.events, history)
    if os.path.isfile(run.summary):
        return _from_summary(run.summary)
    return None


def read_scored_models(path: Path) -> ScoredModels | None:
    """Count what a file with the results of a cross-site evaluation has; None without a file.

    Raises:
        CheckpointError: It cannot be read, or is none.
    """
    try:
        with path.open("rb") as file:
            found = msgspec.json.decode(file.read(_MOST_JSON_BYTES), type=dict[str, dict[str, Any]])
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}; remove it or put it back"
        ) from error
    scored = [owners for owners in found.values() if owners]
    return ScoredModels(len(scored), len({owner for owners in scored for owner in owners}))


def run_of(path: Path) -> FoundModel | None:
    """The run directory that a file lies in as a model; None if it does in none."""
    folder = path.parent
    if folder.name in ("", ".."):
        folder = path.absolute().parent
    file = ModelFile.parse(path.name)
    if file is not None and file.is_model and folder.name == "checkpoints":
        found = FoundModel(RunDirectory(folder.parent), file)
    elif path.name == RunDirectory(folder).final_model.name:
        found = FoundModel(RunDirectory(folder), None)
    else:
        return None
    there = os.path.isfile(found.run.events) or os.path.isfile(found.run.summary)
    return found if there else None


def checkpoints_of(run: RunDirectory) -> dict[ModelFile, Path]:
    """The models that a run directory has, oldest first.

    Raises:
        CheckpointError: its folder of them cannot be listed.
    """
    found = {}
    try:
        for path in run.checkpoints.iterdir():
            file = ModelFile.parse(path.name)
            if file is not None and file.is_model:
                found[file] = path
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise CheckpointError(
            f"{run.checkpoints} cannot be listed: {error.strerror}; check its permissions"
        ) from error
    return dict(sorted(found.items(), key=lambda item: _age(item[0])))


def _age(file: ModelFile) -> tuple[int, bool, int]:
    # The one without a step is the newest of its round.
    return file.round, file.step is None, file.step or 0


def _from_history(path: Path, history: History) -> RunOutline:
    models: dict[int, list[ModelRecord]] = {}
    for model in history.models:
        models.setdefault(model.round, []).append(model)
    trained = {each.number: each.trained for each in history.rounds}
    return RunOutline(
        path,
        history.facts.name,
        "unfinished" if history.status == "running" else history.status,
        history.planned_rounds,
        history.last_round or 0,
        models,
        {**trained, **history.scores},
    )


def _from_summary(path: Path) -> RunOutline:
    try:
        with path.open("rb") as file:
            summary = msgspec.json.decode(file.read(_MOST_JSON_BYTES), type=_Summary)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error
    except _UNREADABLE as error:
        raise CheckpointError(
            f"{path} is no summary of a run: {error}; "
            "inspect the checkpoint from a copy outside of the run directory"
        ) from error
    last = summary.rounds_completed
    # A run that was cut off in mid-round may have made its newest model after its last round.
    is_whole = summary.status == "finished"
    models = {last: [ModelRecord(last, 0, 0, summary.model.digest)]} if is_whole else {}
    return RunOutline(path, summary.job, summary.status, 0, last, models, {})
