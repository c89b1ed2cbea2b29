"""Sections of the job file for how updates become the next model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal, NamedTuple

from pydantic import Field

from flstream.job.clients_section import SiteFactors
from flstream.job.fields import (
    Allowed,
    Bytes,
    Count,
    Patterns,
    Real,
    Section,
    SomePatterns,
    Whole,
)
from flstream.job.files import code_name
from flstream.job.typed import Sections, TypedSection

_MIB = 1024**2


class TrimmedMeanSection(Section):
    """The mean of each coordinate's values without the lowest and the highest."""

    trim: Annotated[Real, Field(ge=0, lt=0.5)] = 0.1
    """The fraction of values that is left out at either end, rounded down."""


class KrumSection(Section):
    """Choice of updates by their distances to each other."""

    byzantine: Annotated[Whole, Field(ge=0)] | None = None
    """How many updates it stands, whatever they are; null is the most.

    Of n updates that is (n - 3) / 2 for krum and multi_krum and (n - 3) / 4 for bulyan, rounded
    down. Fewer updates than that asks for fail the fold.
    """


class MultiKrumSection(KrumSection):
    """Mean of the updates that Krum chooses."""

    selected: Count | None = None
    """How many updates are averaged; null is all but `byzantine`."""


class Method(NamedTuple):
    """A way to combine updates that comes with flstream.

    Attributes:
        make: Place of the function that makes it, as ``module:name`` in ``flstream.aggregation``.
            It takes the number of updates, and the arguments by name.
        args: Section of its arguments.
        is_weighted: Whether updates count by their weights; others count all alike.
        compares: Whether all updates are compared before any is folded.
        needed: Of a method that chooses among updates, the numbers (a, b) by which it needs
            a f + b updates where f of them may be Byzantine; None for others.
    """

    make: str
    args: type[Section] = Section
    is_weighted: bool = False
    compares: bool = False
    needed: tuple[int, int] | None = None

    def least_updates(self, byzantine: int) -> int:
        """Return the least number of updates for a number of them that may be Byzantine."""
        factor, more = self.needed or (0, 0)
        return factor * byzantine + more

    def most_byzantine(self, updates: int) -> int:
        """Return how many updates may be Byzantine; -1 for too few updates."""
        factor, more = self.needed or (1, 0)
        return max((updates - more) // factor, -1)


# The needs are of Blanchard et al. 2017 (arXiv:1703.02757) and El Mhamdi et al. 2018
# (arXiv:1802.07927).
METHODS: Mapping[str, Method] = {
    "mean": Method("mean:mean", is_weighted=True),
    "median": Method("ranked:median"),
    "trimmed_mean": Method("ranked:trimmed", TrimmedMeanSection),
    "krum": Method("krum:krum", KrumSection, compares=True, needed=(2, 3)),
    "multi_krum": Method("krum:multi_krum", MultiKrumSection, compares=True, needed=(2, 3)),
    "bulyan": Method("krum:bulyan", KrumSection, compares=True, needed=(4, 3)),
    "geometric_median": Method("geometric_median:geometric_median", compares=True),
    "norm_bounded_mean": Method("mean:mean", is_weighted=True),
}
"""The methods that come with flstream."""

# Algorithms that other keys choose.
_ELSEWHERE = {
    "fedavg": "it is mean, with workflow.type = fedavg",
    "fedprox": "it is workflow.args.fedprox_mu, with workflow.type = fedavg",
    **{name: f"it is workflow.type = {name}" for name in ("scaffold", "feddyn", "ditto", "fedper")},
}


def is_own(method: str) -> bool:
    """Return whether a method is a user's own, in a file or a module."""
    return ":" in method


class AggregationSection(TypedSection):
    """Rule that combines updates into the next model."""

    sections: ClassVar[Sections] = {name: method.args for name, method in METHODS.items()}

    type: Annotated[str, *code_name("Class", lambda: METHODS, _ELSEWHERE)] = Field(
        default="mean", alias="method"
    )
    """How updates are folded: mean (weighted by number of examples), another rule, or one's own.

    norm_bounded_mean is the mean with a limit, `clip_norm`. median and trimmed_mean rank the values
    of each coordinate. krum, multi_krum and bulyan choose updates by their distances to each other;
    geometric_median is the point that is nearest to all of them. All but the means count every
    update alike. A class of your own is named `file.py:Class` or `module:Class`;
    args are its keyword arguments.
    """

    weights: SiteFactors = Field(default_factory=dict)
    """Factors of sites' weights in the mean, by site: `{ ward = 2.0 }`; the others have 1.

    A site's number of examples is multiplied by it when updates are folded. Metrics are averaged
    without it.
    """

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
        Bytes, Field(ge=_MIB), Allowed("a size of at least 1 MiB", ("string", "number"))
    ] = 48 * _MIB
    """The most memory the server's fold buffers may take (bytes)."""


class MomentumSection(Section):
    """Momentum of the server (FedAvgM: Hsu et al. 2019, arXiv:1909.06335)."""

    learning_rate: Annotated[Real, Field(gt=0)] = 1.0
    """The server's learning rate."""

    beta_1: Annotated[Real, Field(ge=0, lt=1)] = 0.9
    """How much of the momentum a round keeps."""


class NesterovSection(Section):
    """Nesterov's momentum of the server (DiLoCo: Douillard et al. 2023, arXiv:2311.08105).

    The step is that of `torch.optim.SGD(nesterov=True)`. With a learning rate of 1 and beta_1 = 0,
    the aggregate is the next model.
    """

    learning_rate: Annotated[Real, Field(gt=0)] = 0.7
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
    "nesterov": NesterovSection,
    "fedadagrad": FedAdagradSection,
    "fedadam": AdaptiveSection,
    "fedyogi": AdaptiveSection,
}
"""Sections of the arguments of server optimizers, by type."""


class ServerOptimizerSection(TypedSection):
    """Optimiser of the server, which steps along the aggregate's difference from the model."""

    sections = OPTIMIZERS

    type: Literal["none", "fedavgm", "nesterov", "fedadagrad", "fedadam", "fedyogi"] = "none"
    """The optimiser: none takes the aggregate as it is; or one of the names of its steps.

    Integers and bools always take the aggregate.
    """
