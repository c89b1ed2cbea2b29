"""Verification that a checkpoint is sound and is the model that its run wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from flstream.errors import CheckpointError
from flstream.inspection.run_outline import read_outline, run_of
from flstream.model.digests import body_digest
from flstream.model.formats.file import CheckpointFile
from flstream.model.formats.opening import open_checkpoint
from flstream.runs.model_files import ModelFile
from flstream.runs.run_directory import RunDirectory


class Verification(NamedTuple):
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
    checks: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """Convert the record to JSON."""
        return {**self._asdict(), "path": str(self.path), "checks": list(self.checks)}


def verify(file: CheckpointFile) -> Verification:
    """Read all of a checkpoint, check it, and compare its digest with its run's journal.

    Args:
        file: the open checkpoint. Opening it has checked its headers already.

    Raises:
        CheckpointError: a check failed; the message says which.
    """
    checks, digest = _read(file)
    number, confirmed = _compare(file.path, digest)
    return Verification(file.path, digest, number, (*checks, confirmed))


def verify_body(run: RunDirectory, model: ModelFile, due: str) -> Verification:
    """Read all of a body beside a model, such as the server optimizer's state, and check it.

    Args:
        run: the run directory.
        model: file of the body.
        due: its digest in the run's journal.

    Raises:
        CheckpointError: a check failed; the message says which.
    """
    number = model.round
    file = open_checkpoint(run.checkpoints / model.name)
    checks, digest = _read(file)
    if digest != due:
        raise CheckpointError(
            f"{file.path} has the digest {digest} where {run.events} has {due} for round "
            f"{number}, so it is not the {model.body} that the run wrote; take it from a copy, or "
            "go on with --resume, which then begins a round earlier"
        )
    confirmed = f"the digest {digest} is the one that {run.events} has for round {number}"
    return Verification(file.path, digest, number, (*checks, confirmed))


def _read(file: CheckpointFile) -> tuple[list[str], str]:
    """Check a file and read all of it; return descriptions of the checks, and the digest."""
    checks = file.check()
    digest = body_digest(file)
    checks.append(f"all {file.layout.nbytes} bytes of tensors can be read")
    return checks, digest


def _compare(path: Path, digest: str) -> tuple[int | None, str]:
    """Compare a digest with the run's journal; return its round, and a sentence about it."""
    found = run_of(path)
    journal = read_outline(found.run) if found else None
    if found is None or journal is None:
        return None, f"the digest is {digest}; it lies in no run directory that could confirm it"
    due = journal.final(digest) if found.file is None else journal.record_of(found.file, found.run)
    if due is None or not due.digest:
        return None, f"the digest is {digest}; {journal.path} has none for this round"
    number = due.round
    if due.digest != digest:
        raise CheckpointError(
            f"{path} has the digest {digest} where {journal.path} has {due.digest} for round "
            f"{number}, so it is not the model that the run wrote; take it from a copy or run the "
            "job again"
        )
    return number, f"the digest {digest} is the one that {journal.path} has for round {number}"
