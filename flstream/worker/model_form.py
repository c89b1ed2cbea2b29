"""The form in which a model comes to a worker: as it is, or as a codec has encoded it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from flstream.codecs.lossy import LossyCodec
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody
from flstream.model.source import Source
from flstream.streaming.download import RemoteSource, download, layout_of_header
from flstream.streaming.receiver import Receiver
from flstream.streaming.settings import StreamSettings


@dataclass(frozen=True)
class ModelForm:
    """The form in which a model comes.

    Attributes:
        codec: What has encoded it with a loss; None for nothing.
        layout: Layout of the model; None if that comes with it.
    """

    codec: LossyCodec | None
    layout: Layout | None

    @classmethod
    def fetched(
        cls, codec: LossyCodec, receiver: Receiver, token: bytes, settings: StreamSettings
    ) -> ModelForm:
        """Fetch the layout of a model whose encoded form is on offer.

        Args:
            codec: What has encoded the model.
            receiver: Receiving side of the channel to the server.
            token: Token of the model's header.
            settings: How models are streamed.

        Raises:
            StreamingError: It did not arrive, or is no header.
        """
        sink = download(RemoteSource(receiver, token, settings), MemoryBody.allocate)
        header = b"".join(sink.views(0, sink.layout.nbytes))
        layout = layout_of_header(header, receiver.peer, receiver.limits)
        return cls(codec, layout)

    @property
    def decode(self) -> Callable[[RemoteSource], Source] | None:
        """What returns the model, given what is sent; None where that is the model."""
        codec, layout = self.codec, self.layout
        if codec is None or layout is None:
            return None
        return lambda remote: codec.decode(remote, layout)

    def encoded(self, model: Source | None) -> Source | None:
        """Return a model that is here in the form in which another one comes."""
        if model is None or self.codec is None:
            return model
        return self.codec.encode(model, block=self.codec.comparable_block)
