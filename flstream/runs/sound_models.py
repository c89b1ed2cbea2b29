"""Checks of a run's models on disk by their digests in the journal."""

from __future__ import annotations

from pathlib import Path

from flstream.errors import CheckpointError
from flstream.model.checkpoint import FileSource
from flstream.model.digests import body_digest
from flstream.model.order import ORDER, order_digest
from flstream.runs.history import History
from flstream.runs.model_files import bodies_beside, body_file
from flstream.runs.run_directory import RunDirectory
from flstream.telemetry.events import ModelRecord


def model_flaw(run: RunDirectory, model: ModelRecord, order: str) -> str:
    """Describe the defect of a model, or of a body beside it; empty without one.

    The next fold would take the bodies, such as the server optimizer's state, as they are. All is
    read, in ranges.

    Args:
        run: The run directory.
        model: What the journal says of the model.
        order: Digest of the text for the order of its tensors.
    """
    path = run.model_file(model)
    flaw = file_flaw(path, model.digest, order)
    for body, digest in bodies_beside(model).items():
        flaw = flaw or file_flaw(body_file(path, body), digest)
    return flaw


def has_its_models(history: History, run: RunDirectory) -> bool:
    """Return whether a finished run still has its models, unchanged."""
    digests = {model.digest for model in history.models}
    named = [run.final_model]
    try:
        # As a rule both are names of one file, which is read once.
        if history.best is not None and not run.best_model.samefile(run.final_model):
            named.append(run.best_model)
        return all(body_digest(FileSource(path)) in digests for path in named)
    except (CheckpointError, OSError):
        return False


def file_flaw(path: Path, digest: str, order: str | None = None) -> str:
    """Describe the defect of a file by its body's digest; empty without one."""
    try:
        return body_flaw(FileSource(path), digest, order)
    except CheckpointError as error:
        return str(error)


def body_flaw(source: FileSource, digest: str, order: str | None = None) -> str:
    """Describe how an open file's body differs from its digest; empty if it does not.

    ``order`` is the digest of the text for the order of its tensors; None for any.
    """
    if order is not None and order_digest(source.metadata.get(ORDER, "")) != order:
        return f"{source.path} lists its tensors in another order than when it was written"
    try:
        present = body_digest(source)
    except CheckpointError as error:
        return str(error)
    if present != digest:
        return f"{source.path} has the digest {present}, and had {digest} when it was written"
    return ""
