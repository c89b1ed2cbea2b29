"""Whether a checkpoint is sound, and whether it is the model that its run wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from flstream.errors import CheckpointError
from flstream.inspection.journal import read_journal, run_of
from flstream.model.digests import body_digest
from flstream.model.formats.file import CheckpointFile
from flstream.model.formats.opening import open_checkpoint
from flstream.simulator.files.run_directory import RunDirectory


class Verification(NamedTuple):
    """A file that was found sound.

    Attributes:
        path: of the file.
        digest: of the model in it, which says nothing of metadata: xxh3-128 in hexadecimal digits.
        round: whose model the run's journal says it is; None without a journal.
        checks: what was checked, a sentence each.
    """

    path: Path
    digest: str
    round: int | None
    checks: tuple[str, ...]

    def document(self) -> dict[str, Any]:
        """The same for JSON."""
        return {**self._asdict(), "path": str(self.path), "checks": list(self.checks)}


def verify(file: CheckpointFile) -> Verification:
    """Read all of a checkpoint, and compare it with what is known of it.

    What opening the file checks has been checked before: see the format's ``check``.

    Raises:
        CheckpointError: something does not hold; the message says what.
    """
    checks, digest = _read(file)
    number, said = _compare(file.path, digest)
    return Verification(file.path, digest, number, (*checks, said))


def verify_optimizer_state(run: RunDirectory, number: int, due: str) -> Verification:
    """Read all of what the server's optimizer remembered after a round.

    Args:
        run: the run directory.
        number: of the round.
        due: the digest that the run's journal has for it.

    Raises:
        CheckpointError: something does not hold; the message says what.
    """
    file = open_checkpoint(run.optimizer_state(number))
    checks, digest = _read(file)
    if digest != due:
        raise CheckpointError(
            f"{file.path} has the digest {digest} where {run.events} has {due} for round "
            f"{number}, so it is not what the server's optimizer remembered; take it from a copy, "
            "or go on with --resume, which then begins a round earlier"
        )
    said = f"the digest {digest} is the one that {run.events} has for round {number}"
    return Verification(file.path, digest, number, (*checks, said))


def _read(file: CheckpointFile) -> tuple[list[str], str]:
    """Check a file and read all of it: what was checked, and its digest."""
    checks = file.check()
    digest = body_digest(file)
    checks.append(f"all {file.layout.nbytes} bytes of tensors can be read")
    return checks, digest


def _compare(path: Path, digest: str) -> tuple[int | None, str]:
    """The round whose digest it is, and a sentence about it."""
    found = run_of(path)
    journal = read_journal(found[0]) if found else None
    if found is None or journal is None:
        return None, f"the digest is {digest}; it lies in no run directory that could confirm it"
    number = found[1] if found[1] is not None else max(journal.rounds, default=None)
    due = journal.rounds.get(number) if number is not None else None
    if due is None or not due.digest:
        return None, f"the digest is {digest}; {journal.path} has none for this round"
    if due.digest != digest:
        raise CheckpointError(
            f"{path} has the digest {digest} where {journal.path} has {due.digest} for round "
            f"{number}, so it is not the model that the run wrote; take it from a copy or run the "
            "job again"
        )
    return number, f"the digest {digest} is the one that {journal.path} has for round {number}"
