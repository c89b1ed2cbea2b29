"""A run directory: its models, sums of its rounds and sites, and verification."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from flstream.errors import CheckpointError
from flstream.model.checkpoint import regular_size
from flstream.model.digests import body_digest
from flstream.model.formats import CheckpointFile, open_checkpoint
from flstream.runs.history import History
from flstream.runs.journal import read_history
from flstream.runs.model_files import ModelFile, bodies_beside, body_file
from flstream.runs.run_directory import RunDirectory, is_same_file
from flstream.telemetry.events import Metrics, ModelRecord
from flstream.text import natural_key


class RunCheckpoint(msgspec.Struct, frozen=True):
    """A checkpoint in a run directory."""

    round: int  # 0 for the initial model
    path: Path
    bytes: int  # of the file
    digest: str  # in the journal; empty if that has none
    metrics: Metrics  # of the model's evaluation, or else of the training that made it
    bodies: Mapping[str, str]  # digests of bodies beside it, such as the optimizer's state
    step: int | None  # models that the round had written before; None for the newest


class InspectedRun(msgspec.Struct, frozen=True):
    """A run directory."""

    path: Path
    job: str  # empty without a journal
    status: str  # finished, failed, stopped or unfinished; empty without a journal
    rounds_planned: int  # 0 if not known
    rounds_completed: int  # number of the last one
    checkpoints: Sequence[RunCheckpoint]  # existing ones, by rising round
    final_model: Path | None
    rounds: Sequence[Mapping[str, float]]  # seconds, bytes down, up and reused, failed sites
    sites: Sequence[Mapping[str, Any]]  # updates, their weight, failed rounds


class Verification(msgspec.Struct, frozen=True):
    """Checkpoint that was found sound."""

    path: Path
    digest: str  # xxh3-128 of the body, without metadata, in hexadecimal digits
    round: int | None  # with this digest in the run's journal; None without one
    checks: Sequence[str]  # descriptions of the checks, a sentence each


def inspect_run(path: Path) -> InspectedRun:
    """Read what a run directory has: its journal and its checkpoints."""
    run = RunDirectory(path)
    has_journal = run.events.is_file()
    history = read_history(run.events, phases=False) if has_journal else History()
    models = models_by_file(history)
    metrics = {record.number: record.trained for record in history.rounds}
    metrics |= history.scores
    failures = Counter(failure.round for failure in history.failures if not failure.late)
    late = Counter(failure.round for failure in history.failures if failure.late)
    checkpoints = []
    for file in checkpoint_files(run):
        place, number = run.checkpoints / file.name, file.round
        if not os.path.lexists(place):  # the run has just removed it
            continue
        model = models.get((number, file.step))
        digest, bodies = (model.digest, bodies_beside(model)) if model else ("", {})
        scores = dict(metrics.get(number, {})) if model and file.step is None else {}
        checkpoints.append(
            RunCheckpoint(number, place, regular_size(place), digest, scores, bodies, file.step)
        )
    last = checkpoints[-1].round if checkpoints else 0
    status = "unfinished" if history.status == "running" else history.status
    return InspectedRun(
        path=path,
        job=history.facts.job,
        status=status if has_journal else "",
        rounds_planned=history.facts.rounds,
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
                "failures": failures[record.number],
                "late": late[record.number],
            }
            for record in history.rounds
        ],
        sites=[
            {
                "site": record.name,
                "updates": record.updates,
                "weight": record.weight,
                "failures": record.failures - record.late,
                "late": record.late,
            }
            for record in sorted(history.sites.values(), key=lambda site: natural_key(site.name))
        ],
    )


def models_by_file(history: History) -> dict[tuple[int, int | None], ModelRecord]:
    """Return the models of a run by their files' round and step.

    The file of a round, which has no step, is its last model.
    """
    places = [(model, step) for model in history.models for step in (model.step, None)]
    return {(model.round, step): model for model, step in places}


def checkpoint_files(run: RunDirectory) -> list[ModelFile]:
    """List a run's models, oldest first; the last of a round has no step."""
    try:
        files = [
            file
            for path, file in run.checkpoint_files()
            if file.is_model
            and (file.step is None or not is_same_file(path, run.checkpoint(file.round)))
        ]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise CheckpointError(
            f"{run.checkpoints} cannot be listed: {error.strerror}; check its permissions"
        ) from error
    return sorted(files, key=lambda file: (file.round, file.step is None, file.step))


def run_of(path: Path) -> tuple[RunDirectory, ModelFile | None] | None:
    """Return the run in which a file lies as a model, and which model it is."""
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


def verify_checkpoint(file: CheckpointFile) -> Verification:
    """Read and check a checkpoint, and compare its digest with its run's journal."""
    location = run_of(file.path)
    if location is None:
        return _verify(file, None, [])
    run, model_file = location
    history = read_history(run.events, phases=False)
    # A workflow may end with an earlier model than its newest.
    models = history.models
    if model_file is not None:
        record = models_by_file(history).get((model_file.round, model_file.step))
        models = [] if record is None else [record]
    return _verify(file, run, [(model.round, model.digest) for model in models])


def verify_run(run: InspectedRun, done: Path) -> list[Verification]:
    """Verify the checkpoints of a run directory, and the bodies beside them.

    A run resumes from these bodies, such as the server optimizer's state, too. The model at
    ``done`` is verified already, under whichever name.
    """
    directory, models, bodies = RunDirectory(run.path), [], []
    for checkpoint in run.checkpoints:
        number = checkpoint.round
        if not (checkpoint.path.exists() and checkpoint.path.samefile(done)):
            digests = [(number, checkpoint.digest)] if checkpoint.digest else []
            models.append(_verify(open_checkpoint(checkpoint.path), directory, digests))
        # A body is removed before its checkpoint, so a run that was killed in between is sound.
        for body, digest in checkpoint.bodies.items():
            path = body_file(checkpoint.path, body)
            if checkpoint is run.checkpoints[-1] or path.exists():
                bodies.append(_verify(open_checkpoint(path), directory, [(number, digest)], body))
    return [*models, *bodies]


def _verify(
    file: CheckpointFile,
    run: RunDirectory | None,
    digests: Sequence[tuple[int, str]],
    body: str = "model",
) -> Verification:
    """Check a file and read all of it; one of the round's digests must be its own."""
    checks, digest = file.check(), body_digest(file)
    checks.append(f"all {file.layout.nbytes} bytes of tensors can be read")
    number = next((number for number, expected in digests[::-1] if expected == digest), None)
    if number is not None and run is not None:
        checks.append(f"the digest {digest} is the one that {run.events} has for round {number}")
    elif run is None:
        checks.append(f"the digest is {digest}; it lies in no run directory that could confirm it")
    elif not digests:
        checks.append(f"the digest is {digest}; {run.events} has none for this round")
    else:
        number, expected = digests[-1]
        raise CheckpointError(
            f"{file.path} has the digest {digest} where {run.events} has {expected} for round "
            f"{number}, so it is not the {body} that the run wrote; take it from a copy or run the "
            "job again"
        )
    return Verification(file.path, digest, number, checks)
