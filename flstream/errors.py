"""Exceptions of flstream, each with a sentence that names its object and a remedy."""


class FlstreamError(Exception):
    """Base class of all flstream errors."""


class UsageError(FlstreamError):
    """Invalid input from the user; the command line ends with exit status 2."""


class ResumeRefusedError(UsageError):
    """A run that cannot resume with the same bits, since a file that it needs is gone."""


class LayoutError(FlstreamError):
    """Tensors that do not fit into one body, or a header that describes none."""


class CheckpointError(FlstreamError):
    """A checkpoint that cannot be read or written."""


class CodecError(FlstreamError):
    """Tensor that a codec cannot encode, or bytes that none encoded."""


class ModelError(FlstreamError):
    """A model factory that failed or returned something other than a model."""


class PayloadError(FlstreamError):
    """A value that cannot be sent, or a message that does not describe one."""


class StreamingError(FlstreamError):
    """A failed download."""


class ChannelClosedError(StreamingError):
    """A channel whose peer closed its end or died."""


class DeadlineError(StreamingError):
    """A peer that did not answer within its deadline."""


class ProtocolError(StreamingError):
    """A message from a peer that violates the protocol."""


class BrokenStreamError(ProtocolError):
    """Bytes that are no packet, or not the expected one; only a new connection helps."""


class IntegrityError(StreamingError):
    """Received bytes that do not match their digest."""


class RefusedError(StreamingError):
    """A request that the sender refused; the message includes the sender's reason."""


class AbortedError(StreamingError):
    """A transfer that was cancelled by this process."""


class ClientError(FlstreamError):
    """A call to the client API that is not allowed, such as sending without a task."""


class AggregationError(FlstreamError):
    """Updates that cannot be aggregated into a model; the message names the tensor."""


class UpdateRefusedError(FlstreamError):
    """Update of a site that cannot be aggregated, while others may be.

    Attributes:
        site: Name of the site that sent the update.
        reason: The defect, worded as the continuation of "the update of <site>".
    """

    def __init__(self, site: str, reason: str) -> None:
        super().__init__(site, reason)
        self.site = site
        self.reason = reason

    def __str__(self) -> str:
        return f"the update of {self.site} {self.reason}"


class WorkerLostError(FlstreamError):
    """Worker process that died or is of no use; the message gives the cause.

    Attributes:
        site: Site whose task it was doing; None where that is not known.
        is_acknowledged: Whether it had acknowledged its task; if not, it has failed no site.
        has_raised: Whether its training code raised before it was ready, as it would again.
        exit_code: Exit code of its process, or minus the signal that killed it; None if it did not
            end by itself.
    """

    def __init__(
        self,
        reason: str,
        site: str | None = None,
        *,
        has_raised: bool = False,
        exit_code: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.site = site
        self.is_acknowledged = False
        self.has_raised = has_raised
        self.exit_code = exit_code


class WorkflowError(FlstreamError):
    """A workflow asked for something impossible; the message names the effect."""


class MisfitError(WorkflowError):
    """A workflow contradicts another key of its job, or calls for what no answer makes right.

    The message names the key, or the call.
    """


class ReplayMismatchError(WorkflowError):
    """A workflow asked for another effect on replay; the message names both."""


class SimulationError(FlstreamError):
    """A run that cannot continue; the message names each failed site with its reason."""
