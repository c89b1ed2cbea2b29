"""Offers of a model to a worker: by the server, or by other workers, which can open its file."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import NamedTuple

from flstream.client.messages import LAYOUT
from flstream.client.peer_messages import Offered, OfferModel, PeerDone, Withdraw
from flstream.codecs.lossy import LossyCodec
from flstream.errors import AbortedError, StreamingError
from flstream.model.body import Source
from flstream.model.checkpoint import FileSource
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource
from flstream.server.context import ServerContext
from flstream.server.model_handover import hand_over
from flstream.server.worker_handle import WorkerHandle
from flstream.streaming.coding import EncoderFor
from flstream.streaming.receiver import StreamSettings
from flstream.streaming.refs import Delivery, Ref
from flstream.telemetry.events import SERVER


class ModelHosts(NamedTuple):
    """Sites whose workers offer a model.

    Attributes:
        digest: Digest of the model.
        sites: Names of the sites, in the order in which they are asked.
    """

    digest: str
    sites: Sequence[str]


class ModelOffer(NamedTuple):
    """An offer of a model to one worker.

    Attributes:
        token: Token of the model.
        host: Name of the worker's process that offers it; empty for the server.
        origin: Name of that worker, or of the server.
        delivery: What the worker was sent so far; nothing is known of what a peer sends.
        is_mapped: Whether the worker has the model's checkpoint, to map it.
        layout: Token of the model's layout, where what is offered is its encoded form; else empty.
    """

    token: bytes
    host: str
    origin: str
    delivery: Delivery
    is_mapped: bool = False
    layout: bytes = b""


def offers_by_server(
    context: ServerContext,
    model: Source,
    worker: WorkerHandle,
    settings: StreamSettings,
    encoder: EncoderFor | None = None,
    lossy: LossyCodec | None = None,
) -> Generator[ModelOffer]:
    """Offer a model to a worker, once; closing the iterator withdraws it.

    Args:
        context: The server.
        model: The model.
        worker: Who receives it.
        settings: How models are streamed.
        encoder: What makes its frames smaller; None for nothing.
        lossy: What encodes it before that; None for nothing.
    """
    push, service = settings if settings.push else None, context.service
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
        ref = service.offer(sent, [worker.receiver], push=push, encoder=encoder)
        refs.append(ref)
        is_mapped = settings.chunk_size > 0 and hand_over(context, model, worker, ref.token)
        yield ModelOffer(ref.token, "", SERVER, ref.deliveries[worker.receiver], is_mapped, layout)
    finally:
        for each in refs:
            each.abort("the task is over")


def offers_by_peers(
    context: ServerContext, model: FileSource, worker: WorkerHandle, hosts: ModelHosts
) -> Generator[ModelOffer]:
    """Have workers offer a model to another, one after another until one has delivered it.

    The next one takes its turn when the iterator goes on; closing it withdraws the offer. Any
    worker can open the file, so the last one that is asked is the receiving one itself.

    Args:
        context: The server, which reads nothing of the model.
        model: The model.
        worker: Who receives it.
        hosts: Sites whose workers are asked first.
    """
    pool = context.pool
    names = [*(context.worker_of(site) for site in hosts.sites), *pool.names]
    for name in [each for each in dict.fromkeys(names) if each != worker.name] + [worker.name]:
        host = worker if name == worker.name else pool.living(name)
        if host is None:
            continue
        try:
            peer = host.peers.serve(worker.peers)
            token = host.peers.ask(OfferModel(str(model.path), hosts.digest, peer), Offered).token
        except AbortedError:
            raise
        except StreamingError:
            continue  # it has just died
        try:
            yield ModelOffer(token, host.receiver, name, Delivery())
        finally:
            with suppress(StreamingError):
                host.peers.ask(Withdraw(token, "the task is over"), PeerDone)
