"""How a model gets to a worker: offers of the server or of other workers, or its file itself."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import NamedTuple

from flstream.codecs.lossy import LossyCodec
from flstream.errors import AbortedError, StreamingError
from flstream.model.checkpoint import FileSource
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource
from flstream.model.source import Source
from flstream.server.context import ServerContext
from flstream.server.worker_handle import WorkerHandle
from flstream.streaming.coding import EncoderFor
from flstream.streaming.download import MOST_EAGER_BYTES
from flstream.streaming.refs import Delivery, Ref
from flstream.worker.messages import LAYOUT, Offered
from flstream.worker.peer_messages import Offer


def is_worth_mapping(nbytes: int) -> bool:
    """Return whether a model is mapped: not if it comes together with its layout anyway."""
    return nbytes > MOST_EAGER_BYTES


def is_mapped(context: ServerContext, model: Source) -> bool:
    """Return whether workers map a model: where the job says so, and it is in one file."""
    maps = context.job.streaming.maps
    return maps and isinstance(model, FileSource) and is_worth_mapping(model.layout.nbytes)


def hint_at_pull(
    context: ServerContext, round_number: int, nbytes: int, copied: dict[str, int]
) -> str | None:
    """Return a sentence if most sites wrote to most of a model that they had mapped."""
    most = [site for site, count in copied.items() if 2 * count > nbytes]
    if not context.job.streaming.maps or 2 * len(most) <= len(copied):
        return None
    return (
        f"in round {round_number}, {len(most)} of {len(copied)} sites wrote to most of the model's "
        "pages, each of which was copied for that; streaming.mode = pull is faster for such a job"
    )


class ModelOffer(NamedTuple):
    """An offer of a model to one worker.

    Attributes:
        token: Token of the model.
        host: The offer of another worker; None where it is the server's.
        delivery: What the worker was sent so far; nothing is known of what a peer sends.
        is_mapped: Whether the worker is to map the model's checkpoint.
        layout: Token of the model's layout, where what is offered is its encoded form; else empty.
    """

    token: bytes
    host: Offered | None
    delivery: Delivery
    is_mapped: bool = False
    layout: bytes = b""


def offers_by_server(
    context: ServerContext,
    model: Source,
    worker: WorkerHandle,
    encoder: EncoderFor | None = None,
    lossy: LossyCodec | None = None,
) -> Generator[ModelOffer]:
    """Offer a model to a worker, once; closing the iterator withdraws it.

    Args:
        context: The server.
        model: The model.
        worker: Who receives it.
        encoder: What makes its frames smaller; None for nothing.
        lossy: What encodes it before that; None for nothing.
    """
    service = context.service
    refs: list[Ref] = []
    layout = b""
    try:
        sent = model
        if lossy is not None:
            sent = lossy.encode(model)
            # Of its encoded form, names alone are the model's.
            header = memoryview(model.layout.plain_header[8:])
            blob = BufferSource(Layout.of([(LAYOUT, "U8", (len(header),))]), header)
            refs.append(service.offer(blob, [worker.receiver]))
            layout = refs[0].token
        ref = service.offer(sent, [worker.receiver], encoder=encoder)
        refs.append(ref)
        delivery = ref.deliveries[worker.receiver]
        yield ModelOffer(ref.token, None, delivery, is_mapped(context, sent), layout)
    finally:
        for each in refs:
            each.abort("the task is over")


def offers_by_peers(
    context: ServerContext, model: FileSource, worker: WorkerHandle, hosts: Sequence[str]
) -> Generator[ModelOffer]:
    """Offers of a model by workers to another, one after another until one has delivered it.

    The next one takes its turn when the iterator goes on. Any worker can open the file, so the last
    one that is asked is the receiving one itself.
    """
    pool = context.pool
    names = dict.fromkeys([*map(context.worker_of, hosts), *pool.names])
    living = [pool.living(name) for name in names if name != worker.name]
    for host in [*filter(None, living), worker]:
        try:
            offered = host.peers.ask(Offer(worker.name, str(model.path)), Offered)
        except AbortedError:
            raise
        except StreamingError:
            continue  # it has just died
        yield ModelOffer(offered.token, offered, Delivery())
