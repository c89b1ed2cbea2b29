"""The form in which a model comes to a worker: as it is, or as a codec has encoded it."""

from __future__ import annotations

from dataclasses import dataclass

from flstream.codecs.lossy import LossyCodec
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource, MemoryBody
from flstream.model.source import Source
from flstream.streaming.download import Decode, download
from flstream.streaming.held import KnownBody
from flstream.streaming.opening import layout_of_header
from flstream.streaming.receiver import Receiver, StreamSettings
from flstream.streaming.remote import RemoteSource


@dataclass(frozen=True)
class ModelForm:
    """The form in which a model comes.

    Attributes:
        codec: What has encoded it with a loss; None for nothing.
        layout: Layout of the model; None if that comes with it.
        settings: How models are streamed.
    """

    codec: LossyCodec | None
    layout: Layout | None
    settings: StreamSettings

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
        sink, _ = download(receiver, token, settings, MemoryBody.allocate)
        header = b"".join(sink.views(0, sink.layout.nbytes))
        layout = layout_of_header(header, receiver.peer, receiver.limits)
        return cls(codec, layout, settings)

    @property
    def decode(self) -> Decode | None:
        """What returns the model, given what is sent; None where that is the model."""
        codec, layout, frame = self.codec, self.layout, self.settings.frame_size
        if codec is None or layout is None:
            return None

        def decoded(remote: RemoteSource) -> Source:
            if frame:
                return codec.decode(remote, layout, frame)
            return codec.decode(BufferSource(remote.layout, remote.receive_whole()), layout)

        return decoded

    def encoded(self, model: Source | None) -> Source | None:
        """Return a model that is here in the form in which another one comes."""
        if model is None or self.codec is None:
            return model
        return self.codec.encode(model, blanks=True)

    def known(self, body: KnownBody | None) -> KnownBody | None:
        """Return the same of a short model."""
        if body is None or self.codec is None:
            return body
        return KnownBody.of(self.codec.encode(body.source, blanks=True))
