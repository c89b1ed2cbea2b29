"""NVFlare's low-level names for the transfer of tensors, over :mod:`flstream.streaming`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

from flstream.errors import UsageError
from flstream.streaming import (
    Decomposer,
    DownloadService,
    Receiver,
    Signal,
    default_registry,
)
from flstream.streaming import add_tensors as offer_tensors
from flstream.streaming import download_tensors as fetch_tensors

if TYPE_CHECKING:
    import torch

_CHUNK = 2 * 1024 * 1024


class ObjectDownloader:
    """Sender of tensors to the receivers that it names.

    A ref of flstream is bound to its receivers, while NVFlare's cells serve whoever asks.

    Args:
        service: Service that serves them.
        receivers: Names under which the receivers' channels are attached.
    """

    def __init__(self, service: DownloadService, receivers: Iterable[str]) -> None:
        self._service, self._receivers = service, list(receivers)

    def add_object(self, obj: TensorDownloadable) -> str:
        """Offer tensors, and return the id of their ref."""
        size = obj.max_chunk_size
        return offer_tensors(self._service, obj.base_obj, self._receivers, max_chunk_size=size).id


class CacheableObject:
    """Base class of what is downloaded item by item: an object, and the longest chunk's bytes."""

    def __init__(self, obj: Any, max_chunk_size: int) -> None:
        self.base_obj, self.max_chunk_size = obj, max_chunk_size


class TensorDownloadable(CacheableObject):
    """Tensors by name, to download tensor by tensor.

    Args:
        tensors: Dense tensors by name.
        max_chunk_size: Bytes of the longest chunk, a multiple of 16.

    Attributes:
        keys: Names of the tensors.
    """

    def __init__(self, tensors: Mapping[str, torch.Tensor], max_chunk_size: int = _CHUNK) -> None:
        self.keys = list(tensors)
        super().__init__(tensors, max_chunk_size)

    def get_item_count(self) -> int:
        """Return the number of tensors."""
        return len(self.keys)

    def produce_item(self, index: int) -> bytes:
        """Return one tensor as a safetensors file."""
        from safetensors.torch import save

        return save({self.keys[index]: self.base_obj[self.keys[index]]})


class TensorConsumer:
    """Receiver of tensors that :meth:`TensorDownloadable.produce_item` returned.

    Args:
        tensors_received_cb: Called with tensors by name; what it returns by name is kept in their
            place. None keeps the tensors.
        cb_kwargs: Further arguments of that call.
    """

    def __init__(
        self,
        tensors_received_cb: Callable[..., Any] | None = None,
        cb_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        self._callback, self._kwargs = tensors_received_cb, dict(cb_kwargs or {})

    def consume_items(self, items: Iterable[bytes], result: dict[str, Any] | None) -> Any:
        """Add the tensors of some items to the result, and return it."""
        from safetensors.torch import load

        result = {} if result is None else result
        for item in items:
            result |= self.take(load(item))
        return result

    def take(self, tensors: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what is kept of tensors."""
        if self._callback is None:
            return tensors
        taken = self._callback(tensors, **self._kwargs)
        return taken if isinstance(taken, Mapping) else {}


def add_tensors(
    downloader: ObjectDownloader,
    tensors: Mapping[str, torch.Tensor],
    max_chunk_size: int = _CHUNK,
) -> str:
    """Offer tensors: see :func:`flstream.streaming.add_tensors`.

    Args:
        downloader: Service and receivers.
        tensors: Dense tensors by name, which must not change.
        max_chunk_size: Bytes of the longest chunk, a multiple of 16.

    Returns:
        The id that receivers need.
    """
    return downloader.add_object(TensorDownloadable(tensors, max_chunk_size))


def download_tensors(
    from_fqcn: str,
    ref_id: str,
    per_request_timeout: float,
    cell: Receiver | Mapping[str, Receiver],
    secure: bool = False,
    optional: bool = False,
    abort_signal: Signal | None = None,
    tensors_received_cb: Callable[..., Any] | None = None,
    progress_cb: Callable[[int, int], None] | None = None,
    **cb_kwargs: Any,
) -> tuple[str, dict[str, Any] | None]:
    """Download tensors: see :func:`flstream.streaming.download_tensors`.

    Args:
        from_fqcn: Name of the sender.
        ref_id: Id that :func:`add_tensors` returned there.
        per_request_timeout: Seconds in which the sender has to answer one request.
        cell: Receiving side of the channel to it, or those of several senders by name.
        secure: False, since frames are authenticated and not encrypted.
        optional: Whether a failure is not logged.
        abort_signal: Signal that cancels the download.
        tensors_received_cb: See :class:`TensorConsumer`; called as tensors arrive.
        progress_cb: Called with the bytes received so far, and in all.
        **cb_kwargs: Further arguments of ``tensors_received_cb``.

    Returns:
        Text of the error, empty without one; and the tensors by name, or None after an error.

    Raises:
        UsageError: ``secure`` is true, or ``cell`` leads to no sender of that name.
    """
    receiver = cell.get(from_fqcn) if isinstance(cell, Mapping) else cell
    if secure:
        raise UsageError("secure is True: frames are not encrypted; use a tunnel, and leave it out")
    if receiver is None or receiver.peer != from_fqcn:
        peers = ", ".join(cell) if isinstance(cell, Mapping) else cell.peer
        raise UsageError(
            f"from_fqcn is {from_fqcn!r}, and cell leads to {peers}; name one of these"
        )
    consumer, taken = TensorConsumer(tensors_received_cb, cb_kwargs), dict[str, Any]()
    has_callback = tensors_received_cb is not None
    status, tensors = fetch_tensors(
        receiver,
        ref_id,
        per_request_timeout=per_request_timeout,
        abort_signal=abort_signal,
        optional=True,
        on_progress=progress_cb,
        on_tensors=(lambda arrived: taken.update(consumer.take(arrived))) if has_callback else None,
    )
    if not status.ok:
        if not optional:
            logging.getLogger(__name__).error(status.reason)
        return status.reason, None
    return "", taken if has_callback else dict(tensors)


class TensorDecomposer:
    """Decomposer of torch's tensors, which payloads of flstream have anyway."""

    def supported_type(self) -> type:
        """Return ``torch.Tensor``."""
        import torch

        return torch.Tensor

    def to_downloadable(
        self, items: Mapping[str, torch.Tensor], max_chunk_size: int, fobs_ctx: object = None
    ) -> TensorDownloadable:
        """Return tensors to offer."""
        return TensorDownloadable(items, max_chunk_size)

    def download(
        self,
        from_fqcn: str,
        ref_id: str,
        per_request_timeout: float,
        cell: Receiver | Mapping[str, Receiver],
        **options: Any,
    ) -> tuple[str, dict[str, Any] | None]:
        """Download tensors: see :func:`download_tensors`."""
        return download_tensors(from_fqcn, ref_id, per_request_timeout, cell, **options)

    def native_decompose(self, target: torch.Tensor, manager: object = None) -> bytes:
        """Return a tensor as a safetensors file."""
        from safetensors.torch import save

        return save({"t": target})

    def native_recompose(self, data: bytes, manager: object = None) -> torch.Tensor | None:
        """Return the tensor of such a file."""
        from safetensors.torch import load

        return load(data).get("t")


def register(decomposer: Any) -> None:
    """Allow a type in payloads by NVFlare's interface: see :class:`flstream.streaming.Registry`.

    Args:
        decomposer: Class or object with ``supported_type()``, ``decompose(target, manager)`` and
            ``recompose(data, manager)``. What payloads have anyway is left to them.
    """
    own = decomposer() if isinstance(decomposer, type) else decomposer
    kind = own.supported_type()
    if isinstance(own, TensorDecomposer) or default_registry.find(kind) is not None:
        return
    default_registry.register(
        Decomposer(
            f"{kind.__module__}.{kind.__qualname__}",
            kind,
            lambda value: own.decompose(value, None),
            lambda data: own.recompose(data, None),
        )
    )
