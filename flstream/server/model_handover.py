"""Handing a model's checkpoint to a worker of this machine, which maps it."""

from __future__ import annotations

from flstream.client.peer_messages import MapModel
from flstream.errors import AbortedError, CheckpointError, StreamingError
from flstream.model.body import Source
from flstream.server.context import ServerContext
from flstream.server.worker_handle import WorkerHandle
from flstream.streaming.opening import MOST_EAGER_BYTES


def is_worth_mapping(nbytes: int) -> bool:
    """Return whether a model is mapped: not if it comes together with its layout anyway."""
    return nbytes > MOST_EAGER_BYTES


def hand_over(context: ServerContext, model: Source, worker: WorkerHandle, token: bytes) -> bool:
    """Hand the checkpoint of a model to a worker, where the job says so and the model is in one.

    A model that is put together from several files, or is not a file of the run's own, is fetched.

    Args:
        context: The server.
        model: The model.
        worker: Who receives it.
        token: Token under which it is on offer, too.

    Returns:
        Whether the worker has it.

    Raises:
        AbortedError: The run is being stopped.
    """
    layout = model.layout
    if model.extent is None or not is_worth_mapping(layout.nbytes):
        return False
    if not context.job.streaming.maps:
        return False
    try:
        extent = model.extent(0, layout.nbytes)
        if extent.immutable:
            worker.peers.hand_over(MapModel(token, layout.fingerprint), extent.fd)
        return extent.immutable
    except AbortedError:
        raise
    except (CheckpointError, StreamingError):
        return False  # it is fetched, which says what is wrong


def hint_at_pull(
    context: ServerContext, round_number: int, nbytes: int, copied: dict[str, int]
) -> str | None:
    """Return a sentence if most sites wrote to most of a model that they had mapped.

    Args:
        context: The server.
        round_number: The round.
        nbytes: Size of the model in bytes.
        copied: Bytes of the pages that were written to, by site.
    """
    most = [site for site, count in copied.items() if 2 * count > nbytes]
    if not context.job.streaming.maps or 2 * len(most) <= len(copied):
        return None
    return (
        f"in round {round_number}, {len(most)} of {len(copied)} sites wrote to most of the model's "
        "pages, each of which was copied for that; streaming.mode = pull is faster for such a job"
    )
