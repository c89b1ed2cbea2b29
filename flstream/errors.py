"""Every error flstream raises on purpose: one sentence that names the thing and the next step."""


class FlstreamError(Exception):
    """The root of them all."""


class UsageError(FlstreamError):
    """What was asked for is wrong; the command line ends with exit status 2."""


class LayoutError(FlstreamError):
    """Tensors that cannot be laid out as one body, or a header that does not describe one."""


class CheckpointError(FlstreamError):
    """A checkpoint that cannot be read or written."""


class ModelError(FlstreamError):
    """A model factory that failed or did not make a model."""


class PayloadError(FlstreamError):
    """A value that cannot be sent, or a message that does not describe one."""


class StreamingError(FlstreamError):
    """A download that did not deliver."""


class ChannelClosedError(StreamingError):
    """The peer at the other end of a channel is gone."""


class DeadlineError(StreamingError):
    """A peer did not answer within the time it was given."""


class ProtocolError(StreamingError):
    """A peer sent something that the protocol does not allow."""


class IntegrityError(StreamingError):
    """Bytes arrived that do not match their digest."""


class RefusedError(StreamingError):
    """The sender refused a request; the message carries its reason."""


class AbortedError(StreamingError):
    """A transfer was called off from this side."""


class ClientError(FlstreamError):
    """A training script used the client API in a way it does not allow."""


class AggregationError(FlstreamError):
    """Updates of which no next model can be made; the message names the tensor."""


class UpdateRefusedError(FlstreamError):
    """One site's update must not be part of the next model; without it, the others may make one.

    Attributes:
        site: whose update it is.
        reason: what is wrong with it, to be read after "the update of <site>".
    """

    def __init__(self, site: str, reason: str) -> None:
        super().__init__(site, reason)
        self.site = site
        self.reason = reason

    def __str__(self) -> str:
        return f"the update of {self.site} {self.reason}"


class WorkerLostError(FlstreamError):
    """A worker process that is of no use any more; the message says what became of it.

    Attributes:
        site: whose work it was doing, None where that is not known.
        is_stale: whether it failed before it took up its task.
    """

    def __init__(self, reason: str, site: str | None = None, *, is_stale: bool = False) -> None:
        super().__init__(reason)
        self.site = site
        self.is_stale = is_stale


class SimulationError(FlstreamError):
    """A job that cannot go on; the message names each site and its reason."""
