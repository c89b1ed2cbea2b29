"""Verification of the files of single sites' models, before they are used."""

from __future__ import annotations

from pathlib import Path

from flstream.errors import CheckpointError
from flstream.model.checkpoint import FileSource
from flstream.model.digests import body_digest
from flstream.server.stored_model import UnsoundModelError


def verified_site_model(path: Path, digest: str, effect: int) -> FileSource:
    """Open the file of a site's model, which is to have a digest.

    Args:
        path: The file.
        digest: Digest of its body, going by the journal.
        effect: Number of the effect that has it on record.

    Raises:
        UnsoundModelError: It has another one, or cannot be read.
    """
    try:
        source = FileSource(path, immutable=True)
        found = body_digest(source)
    except CheckpointError as error:
        raise UnsoundModelError(effect, str(error)) from error
    if found != digest:
        flaw = f"{path} has the digest {found}, and had {digest} when it was written"
        raise UnsoundModelError(effect, flaw)
    return source
