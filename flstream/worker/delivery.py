"""Delivery of a task's answers: alone, with an update in a file, or with an update on offer."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from msgspec import structs

from flstream.codecs.chain import CodecChain
from flstream.codecs.frames import encoder_for
from flstream.model.checkpoint import FileSink
from flstream.model.copy import copy
from flstream.model.digests import BodyDigest
from flstream.model.source import Source
from flstream.telemetry.events import Transfer
from flstream.worker.messages import Answered, OfferedUpdate, WrittenUpdate
from flstream.worker.task_model import TaskModel
from flstream.worker.worker import Worker


def deliver(
    worker: Worker,
    arrived: TaskModel,
    codecs: CodecChain,
    answered: Answered,
    update: Source | None,
) -> None:
    """Send the answers of a task, and wait until the server has used the update.

    Args:
        worker: The worker that has executed the task.
        arrived: The task and the model that its sites have received.
        codecs: What encodes the update's frames.
        answered: The answers of the task's sites.
        update: Body of the update of the task's one site; None where the answers have all.
    """
    if update is None:
        worker.send(answered)
    elif arrived.task.folder:
        path = Path(arrived.task.folder, f"{answered.sites[0].site}.safetensors")
        worker.send(_with(answered, _written(update, path)))
    else:
        _offer(worker, arrived, codecs, answered, update)


def _with(answered: Answered, update: OfferedUpdate | WrittenUpdate) -> Answered:
    (site,) = answered.sites
    return structs.replace(answered, sites=[structs.replace(site, update=update)])


def _written(update: Source, path: Path) -> WrittenUpdate:
    """Write the update of the task's one site to the file from which it will be folded."""
    began, digest = time.monotonic(), BodyDigest(update.layout)
    with FileSink(path, update.layout, durable=False) as sink:
        copy(update, sink, digest=digest)
        sink.finish()
    cost = Transfer(bytes=update.layout.nbytes, seconds=time.monotonic() - began)
    return WrittenUpdate(digest.hexdigest(), cost)


def _offer(
    worker: Worker, arrived: TaskModel, codecs: CodecChain, answered: Answered, update: Source
) -> None:
    """Send the answer with an update on offer, and wait until it was used."""
    encoder, task, kept = None, arrived.task, arrived.kept
    if codecs.frames is not None:
        bases = {} if kept is None else {task.model: kept}
        encoder = encoder_for(codecs.frames, update.layout, bases)
    ref = worker.offer(update, encoder)
    worker.send(_with(answered, OfferedUpdate(ref.token)))
    outcome = ref.wait()
    if not outcome.ok:
        print(
            f"flstream: the update of round {task.round} was not used ({answered.sites[0].site}): "
            f"{outcome.reason}",
            file=sys.stderr,
            flush=True,
        )
