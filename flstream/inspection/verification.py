"""Whether a checkpoint is sound, and whether it is the model that its run wrote."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from flstream.errors import CheckpointError
from flstream.inspection.journal import read_journal, run_of
from flstream.model.checkpoint import body_digest
from flstream.model.formats.file import CheckpointFile


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
    checks = file.check()
    digest = body_digest(file)
    checks.append(f"all {file.layout.nbytes} bytes of tensors can be read")
    number, said = _compare(file.path, digest)
    return Verification(file.path, digest, number, (*checks, said))


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
