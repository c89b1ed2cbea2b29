"""The codec of a site's updates, with what it left out of those before."""

from __future__ import annotations

import os
from collections.abc import Collection
from pathlib import Path

from flstream.client.fl_model import ParamsType
from flstream.client.own_files import OWN_FOLDER
from flstream.codecs.error_feedback import encode_with_feedback
from flstream.codecs.lossy import LossyCodec
from flstream.errors import ClientError, CodecError
from flstream.model.checkpoint import FileSource
from flstream.model.source import Source
from flstream.worker.messages import TaskKind
from flstream.worker.site_work import SiteWork
from flstream.worker.worker_info import WorkerInfo

_RESIDUAL = "residual.safetensors"


def kept_for(info: WorkerInfo) -> Collection[TaskKind]:
    """Return the tasks of which codecs need the model as it was received."""
    kinds: list[TaskKind] = []
    if info.codecs_down.needs_base or info.codecs_up.is_lossy or info.codecs_up.needs_base:
        kinds.append("train")
    if info.codecs_down.needs_base:
        kinds.append("evaluate")
    return kinds


def encoded_update(
    codec: LossyCodec, update: Source, received: Source | None, kind: ParamsType, site: SiteWork
) -> Source:
    """Encode a site's update.

    Where the codec leaves numbers out, what it left out before is added, and what it leaves out now
    is kept in the site's state.

    Args:
        codec: The codec.
        update: The update.
        received: The model as it was received; None if the training code did not ask for it.
        kind: Whether the update has weights or differences.
        site: The site and its task.

    Returns:
        What is sent. It is computed as it is read, or in a file without a name.

    Raises:
        ClientError: There is no model to compare weights with, or a number cannot be encoded.
        CheckpointError: A file cannot be written.
    """
    base = None
    if kind is ParamsType.FULL:
        if received is None:
            raise ClientError(
                f"the codec {codec.name} compares an update with the received model, which was "
                "never asked for; call receive() first, or send a difference (ParamsType.DIFF)"
            )
        base = received
    try:
        if not codec.for_updates:
            return codec.encode(update, base)
        return _with_feedback(codec, update, base, site)
    except CodecError as error:
        raise ClientError(f"the update cannot be encoded: {error}") from error


def _with_feedback(
    codec: LossyCodec, update: Source, base: Source | None, site: SiteWork
) -> FileSource:
    own = site.state.path / OWN_FOLDER
    residual, following = own / _RESIDUAL, own / f"next.{_RESIDUAL}"
    before = FileSource(residual) if residual.exists() else None
    path = Path(site.folder, "update.encoded")
    try:
        encoded = encode_with_feedback(
            update, codec, path, before=before, after=following, base=base
        )
        os.replace(following, residual)
    except OSError as error:
        raise ClientError(f"{residual} cannot be written: {error.strerror}") from error
    finally:  # it is read by its descriptor from here on, and gone with it
        path.unlink(missing_ok=True)
    return encoded
