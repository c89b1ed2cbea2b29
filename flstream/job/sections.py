"""Sections of a job file: every key with its type, rule, default and meaning.

Each key is defined here only. The text under a field is its meaning; its first line is the key's
comment in a resolved job file. The annotation defines the allowed values.
"""

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from flstream.job.aggregation_method import MethodName
from flstream.job.codecs import CodecsSection
from flstream.job.fields import (
    Allowed,
    Bytes,
    ChunkSize,
    Count,
    Flag,
    FreeArgs,
    Patterns,
    Real,
    Seconds,
    Section,
    SomePatterns,
    Whole,
)
from flstream.job.files import Checkpoint, Factory
from flstream.job.keys import schema_of, words
from flstream.job.problems import MISSING, Problem, RefusedValueError
from flstream.job.site_names import SiteFactors
from flstream.job.typed import Sections, TypedSection

MIB = 1024**2


class ModelSection(Section):
    """Source of the initial weights: a factory, a file, or both.

    Where both are given, the factory gives names, ties and dtypes, and the file the values.
    """

    factory: Factory | None = None
    """The callable that builds the model: `module:callable` or `path/to/file.py:callable`.

    The module is a .py file beside the job file, or an installed one. It returns a torch module, a
    dict of tensors, or a tuple that begins with one of them.
    """

    args: FreeArgs = Field(default_factory=dict)
    """Keyword arguments of the factory, as written."""

    initial: Checkpoint | None = None
    """A file with the initial weights; null takes those the factory builds.

    The index of a sharded checkpoint is a .json file. Files of torch are loaded as weights only. A
    name that is tied to others in the model may be in the file under any of them.
    """

    strict: Flag = True
    """Whether the file must have the factory's tensors, and values that their dtypes hold.

    False keeps what the factory made for tensors that the file lacks or has in another shape, such
    as a new head; leaves out those that the model lacks; and rounds values to the model's dtypes.
    """

    @model_validator(mode="after")
    def _has_weights(self) -> Self:
        if self.factory is None and self.initial is None:
            allowed = f"{words(schema_of(Factory))}, unless model.initial is given"
            raise RefusedValueError(Problem("factory", MISSING, allowed))
        return self


class AggregationSection(Section):
    """Rule that combines updates into the next model."""

    method: MethodName = "mean"
    """How updates are folded: mean (weighted by number of examples), another rule, or one's own.

    norm_bounded_mean is the mean with a limit, `clip_norm`. median and trimmed_mean rank the values
    of each coordinate. krum, multi_krum and bulyan choose updates by their distances to each other;
    geometric_median is the point that is nearest to all of them. All but the means count every
    update alike. A class of your own is named `file.py:Class` or `module:Class`.
    """

    args: FreeArgs = Field(default_factory=dict)
    """Keyword arguments of a class of your own, as written."""

    byzantine: Annotated[Whole, Field(ge=0)] | None = None
    """How many updates krum, multi_krum and bulyan stand, whatever they are; null is the most.

    Of n updates that is (n - 3) / 2 for krum and multi_krum and (n - 3) / 4 for bulyan, rounded
    down. Fewer updates than that asks for fail the fold.
    """

    selected: Count | None = None
    """How many updates multi_krum averages; null is all but aggregation.byzantine."""

    weights: SiteFactors = Field(default_factory=dict)
    """Factors of sites' weights in the mean, by site: `{ ward = 2.0 }`; the others have 1.

    A site's number of examples is multiplied by it when updates are folded. Metrics are averaged
    without it.
    """

    trim: Annotated[Real, Field(ge=0, lt=0.5)] = 0.1
    """The fraction of values that trimmed_mean leaves out at either end, rounded down."""

    clip_norm: Annotated[Real, Field(gt=0)] | Literal["median"] | None = None
    """The most an update may differ from the global model (L2 norm); null is any distance.

    A larger difference is scaled down to it. The norm is over all aggregated floats of the update.
    `median` is the median of the norms of the updates that are folded together.
    """

    include: SomePatterns = Field(default=[".*"])
    """Regular expressions: a tensor is aggregated only if one is found in its name.

    Others keep their old value. A whole name is matched by `^name$`.
    """

    exclude: Patterns = Field(default_factory=list)
    """Regular expressions: a tensor in whose name one is found keeps its old value."""

    on_nonfinite: Literal["reject", "allow"] = "reject"
    """What becomes of an update with an infinity or a NaN: reject leaves its site out."""

    memory_budget: Annotated[
        Bytes, Field(ge=MIB), Allowed("a size of at least 1 MiB", ("string", "integer"))
    ] = 48 * MIB
    """The most memory the server's fold buffers may take (bytes)."""


class MomentumSection(Section):
    """Momentum of the server (FedAvgM: Hsu et al. 2019, arXiv:1909.06335)."""

    learning_rate: Annotated[Real, Field(gt=0)] = 1.0
    """The server's learning rate."""

    beta_1: Annotated[Real, Field(ge=0, lt=1)] = 0.9
    """How much of the momentum a round keeps."""


class FedAdagradSection(Section):
    """FedAdagrad (Reddi et al. 2021, arXiv:2003.00295)."""

    learning_rate: Annotated[Real, Field(gt=0)] = 0.1
    """The server's learning rate."""

    beta_1: Annotated[Real, Field(ge=0, lt=1)] = 0.0
    """How much of the momentum a round keeps."""

    tau: Annotated[Real, Field(gt=0)] = 0.001
    """How adaptive the optimiser is: the smaller, the more."""


class AdaptiveSection(Section):
    """FedAdam or FedYogi (Reddi et al. 2021, arXiv:2003.00295)."""

    learning_rate: Annotated[Real, Field(gt=0)] = 0.1
    """The server's learning rate."""

    beta_1: Annotated[Real, Field(ge=0, lt=1)] = 0.9
    """How much of the momentum a round keeps."""

    beta_2: Annotated[Real, Field(ge=0, lt=1)] = 0.99
    """How much of the second moment a round keeps."""

    tau: Annotated[Real, Field(gt=0)] = 0.001
    """How adaptive the optimiser is: the smaller, the more."""


OPTIMIZERS: Sections = {
    "none": Section,
    "fedavgm": MomentumSection,
    "fedadagrad": FedAdagradSection,
    "fedadam": AdaptiveSection,
    "fedyogi": AdaptiveSection,
}
"""Sections of the arguments of server optimizers, by type."""


class ServerOptimizerSection(TypedSection):
    """Optimiser of the server, which steps along the aggregate's difference from the model."""

    sections = OPTIMIZERS

    type: Literal["none", "fedavgm", "fedadagrad", "fedadam", "fedyogi"] = "none"
    """The optimiser: none takes the aggregate as it is, or fedavgm, fedadagrad, fedadam, fedyogi.

    Integers and bools always take the aggregate.
    """


class StreamingSection(Section):
    """Transfer of models between the server and its clients."""

    mode: Literal["pull", "native", "map"] = "pull"
    """How a model moves: in chunks on request (pull), whole (native), or not at all (map).

    The model that results is the same, bit for bit. In native mode the model is serialised into one
    message. In map mode the clients of this machine map the server's checkpoint, and pay for what
    training writes to alone: it is for evaluation, and for models most of which is frozen. Updates
    are pulled. The page [mapping.md](mapping.md) says more.
    """

    tensor_download_chunk_size: ChunkSize = 2 * MIB
    """The longest frame of a model exchanged as tensors (bytes); 0 turns streaming off.

    Models have the same bits in any size. Updates that are folded as they come have frames of 2 MiB
    at most, whatever the size.
    """

    np_download_chunk_size: ChunkSize = 2 * MIB
    """The longest frame of a model exchanged as arrays (bytes); 0 turns streaming off."""

    streaming_per_request_timeout: Seconds = 600.0
    """How long one request may go unanswered (duration) before the download fails."""

    codecs: CodecsSection = CodecsSection()

    direct: Literal["auto", "off"] = "auto"
    """Whether processes of one machine read each other's bytes themselves (auto), or not (off).

    A client then reads the server's checkpoint by its descriptor, and the server a client's update
    in its memory: one copy, and no work for who sends. Where the system does not allow it, where
    codecs make frames smaller, and with emulated links, the bytes go over a socket.
    """

    reuse: Literal["auto", "off"] = "auto"
    """Whether a receiver fetches only what it lacks: where that pays (auto), or never (off).

    It pays over links and networks. The receiver compares digests of blocks of 64 KiB with those of
    what it has: the tensors that it receives into, or the model that an update was trained from.
    The page [fewer-bytes.md](fewer-bytes.md) says what it costs.
    """

    @property
    def maps(self) -> bool:
        """Whether workers map models instead of fetching them."""
        return self.mode == "map"


class CheckpointsSection(Section):
    """Retention of the models of a run's rounds."""

    keep: Count | Literal["all"] = "all"
    """How many rounds' checkpoints stay on disk: the last ones, and the best one besides; or all.

    The initial model goes like any other: the job and its seed give it again.
    """
