"""Verification that a checkpoint is sound and is the model that its run wrote."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from flstream.errors import CheckpointError
from flstream.inspection.runs import InspectedRun, models_by_round, read_journal, record_of, run_of
from flstream.model.digests import body_digest
from flstream.model.formats.file import CheckpointFile
from flstream.model.formats.opening import open_checkpoint
from flstream.runs.model_files import body_file
from flstream.runs.run_directory import RunDirectory


class Verification(msgspec.Struct, frozen=True):
    """A checkpoint that was found sound.

    Attributes:
        path: path of the file.
        digest: xxh3-128 digest of the file's body, without metadata, in hexadecimal digits.
        round: round with this digest in the run's journal; None without a journal.
        checks: descriptions of the checks that were made, a sentence each.
    """

    path: Path
    digest: str
    round: int | None
    checks: Sequence[str]


def verify_checkpoint(file: CheckpointFile) -> Verification:
    """Read all of a checkpoint, check it, and compare its digest with its run's journal.

    Args:
        file: the open checkpoint. Opening it has checked its headers already.

    Raises:
        CheckpointError: a check failed; the message says which.
    """
    location = run_of(file.path)
    if location is None:
        return _verify(file, None, [])
    run, model_file = location
    history = read_journal(run)
    # A workflow may end with an earlier model than its newest.
    models = history.models
    if model_file is not None:
        record = record_of(models_by_round(history).get(model_file.round, ()), model_file, run)
        models = [] if record is None else [record]
    return _verify(file, run, [(model.round, model.digest) for model in models])


def verify_run(run: InspectedRun, done: Path) -> list[Verification]:
    """Verify the checkpoints of a run directory, and the bodies beside them.

    A run resumes from these bodies, such as the server optimizer's state, too.

    Args:
        run: the run directory.
        done: path of a model that is verified already, under whichever name.

    Raises:
        CheckpointError: a check failed; the message says which.
    """
    directory, models, bodies = RunDirectory(run.path), [], []
    for checkpoint in run.checkpoints:
        number = checkpoint.round
        if not checkpoint.path.samefile(done):
            digests = [(number, checkpoint.digest)] if checkpoint.digest else []
            models.append(_verify(open_checkpoint(checkpoint.path), directory, digests))
        # A body is removed before its checkpoint, so a run that was killed in between is sound.
        is_last = checkpoint is run.checkpoints[-1]
        for body, digest in checkpoint.bodies.items():
            path = body_file(checkpoint.path, body)
            if is_last or path.exists():
                bodies.append(_verify(open_checkpoint(path), directory, [(number, digest)], body))
    return [*models, *bodies]


def _verify(
    file: CheckpointFile,
    run: RunDirectory | None,
    digests: Sequence[tuple[int, str]],
    body: str = "model",
) -> Verification:
    """Check a file and read all of it; of the digests by round, oldest first, one must be its."""
    checks, digest = file.check(), body_digest(file)
    checks.append(f"all {file.layout.nbytes} bytes of tensors can be read")
    number = next((number for number, due in reversed(digests) if due == digest), None)
    if number is not None and run is not None:
        checks.append(f"the digest {digest} is the one that {run.events} has for round {number}")
    elif run is None:
        checks.append(f"the digest is {digest}; it lies in no run directory that could confirm it")
    elif not digests:
        checks.append(f"the digest is {digest}; {run.events} has none for this round")
    else:
        number, due = digests[-1]
        raise CheckpointError(
            f"{file.path} has the digest {digest} where {run.events} has {due} for round {number}, "
            f"so it is not the {body} that the run wrote; take it from a copy or run the job again"
        )
    return Verification(file.path, digest, number, checks)
