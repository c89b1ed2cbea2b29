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


class SimulationError(FlstreamError):
    """A job that cannot go on; the message names each site and its reason."""
