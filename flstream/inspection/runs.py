"""A run directory: its models, and what its rounds and sites add up to."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from flstream.errors import CheckpointError, SimulationError
from flstream.model.formats.opening import check_file
from flstream.runs.history import History
from flstream.runs.journal import read_history
from flstream.runs.model_files import ModelFile, bodies_beside
from flstream.runs.run_directory import RunDirectory
from flstream.runs.site_record import SiteRecord
from flstream.telemetry.events import Metrics, ModelRecord


class RunCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint in a run directory.

    Attributes:
        round: round in which the model was written; 0 for the initial model.
        path: path of the file.
        bytes: size of the file in bytes.
        digest: digest of the model in the run's journal; empty if it has none.
        metrics: metrics of the model's evaluation, or else of the training that made it.
        bodies: digests of the bodies beside it in the run's journal, by name, such as that of the
            server optimizer's state.
        step: number of models that the round had written before it; None for its newest.
    """

    round: int
    path: Path
    bytes: int
    digest: str
    metrics: Metrics
    bodies: Mapping[str, str]
    step: int | None


class InspectedRun(msgspec.Struct, frozen=True):
    """A run directory.

    Attributes:
        path: path of the run directory.
        job: name of the job; empty without a journal.
        status: finished, failed, stopped or unfinished; empty without a journal.
        rounds_planned: number of rounds of the job; 0 if not known.
        rounds_completed: number of the last completed round.
        checkpoints: existing checkpoints, by rising round.
        final_model: path of the final model; None if there is none.
        rounds: of each completed round its seconds, the bytes that moved ``down`` to its sites and
            ``up``, bytes ``reused`` instead, and the number of sites that failed.
        sites: records of the sites that were asked.
    """

    path: Path
    job: str
    status: str
    rounds_planned: int
    rounds_completed: int
    checkpoints: Sequence[RunCheckpoint]
    final_model: Path | None
    rounds: Sequence[Mapping[str, float]]
    sites: Sequence[SiteRecord]


def read_run(path: Path) -> InspectedRun:
    """Read what a run directory has: its journal and its checkpoints.

    Raises:
        CheckpointError: the journal is damaged.
    """
    run = RunDirectory(path)
    history = read_journal(run)
    models = models_by_round(history)
    metrics = {record.number: record.trained for record in history.rounds}
    metrics |= history.scores
    checkpoints = []
    for file in checkpoint_files(run):
        place = run.checkpoints / file.name
        check_file(place)
        size, number = place.stat().st_size, file.round
        model = record_of(models.get(number, ()), file, run)
        digest, bodies = (model.digest, bodies_beside(model)) if model else ("", {})
        scores = dict(metrics.get(number, {})) if model and file.step is None else {}
        checkpoints.append(RunCheckpoint(number, place, size, digest, scores, bodies, file.step))
    last = checkpoints[-1].round if checkpoints else 0
    status = "unfinished" if history.status == "running" else history.status
    return InspectedRun(
        path=path,
        job=history.facts.name,
        status="" if history.is_empty else status,
        rounds_planned=history.planned_rounds,
        rounds_completed=last if history.last_round is None else history.last_round,
        checkpoints=checkpoints,
        final_model=run.final_model if run.final_model.is_file() else None,
        rounds=[
            {
                "round": record.number,
                "seconds": record.seconds,
                "down": record.down.bytes,
                "up": record.up.bytes,
                "reused": record.down.reused + record.up.reused,
                "failures": len(record.failures),
            }
            for record in history.rounds
        ],
        sites=list(history.sites.values()),
    )


def read_journal(run: RunDirectory) -> History:
    """Read the journal of a run directory; without one the history is empty.

    A line that was being written when the run was cut off is passed over.

    Raises:
        CheckpointError: the file cannot be read or is damaged.
    """
    try:
        return read_history(run.events)
    except SimulationError as error:
        raise CheckpointError(
            f"{error}; or inspect the checkpoint from a copy outside of the run directory"
        ) from error


def models_by_round(history: History) -> dict[int, list[ModelRecord]]:
    """Group the models of a run by the rounds that made them, oldest first."""
    models: dict[int, list[ModelRecord]] = {}
    for model in history.models:
        models.setdefault(model.round, []).append(model)
    return models


def record_of(
    models: Sequence[ModelRecord], file: ModelFile, run: RunDirectory
) -> ModelRecord | None:
    """Return the record of a file among the models of its round; None without one."""
    if file.step is not None:
        return next((model for model in models if model.step == file.step), None)
    if models and not os.path.lexists(run.step_checkpoint(file.round, models[-1].step)):
        return models[-1]
    # The run was cut off before it had recorded the one that the file has now.
    return None


def checkpoint_files(run: RunDirectory) -> list[ModelFile]:
    """List the models in a run directory, oldest first.

    Raises:
        CheckpointError: its folder of checkpoints cannot be listed.
    """
    try:
        names = os.listdir(run.checkpoints)
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(
            f"{run.checkpoints} cannot be listed: {error.strerror}; check its permissions"
        ) from error
    files = [file for name in names if (file := ModelFile.parse(name)) and file.is_model]
    # The one without a step is the newest of its round.
    return sorted(files, key=lambda file: (file.round, file.step is None, file.step))


def run_of(path: Path) -> tuple[RunDirectory, ModelFile | None] | None:
    """Return the run that a file is a model of, and which of its models: None is the final one.

    Returns:
        None if the file lies in no run directory.
    """
    folder = path.parent
    if folder.name in ("", ".."):
        folder = path.absolute().parent
    file = ModelFile.parse(path.name)
    run = RunDirectory(folder)
    if file is not None and file.is_model and folder.name == "checkpoints":
        run = RunDirectory(folder.parent)
    elif path.name == run.final_model.name:
        file = None
    else:
        return None
    return (run, file) if run.events.is_file() else None
