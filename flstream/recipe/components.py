"""What can be added to a :class:`~flstream.recipe.fed_job.FedJob`, under NVFlare's names.

Each is a small record of settings, whose ``add_to`` writes them into a job, for the site that it is
added to; there is nothing in it that runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from flstream.recipe.checks import checked_arguments, notice

if TYPE_CHECKING:
    from flstream.recipe.fed_job import FedJob


class ExchangeFormat(StrEnum):
    """What a training script receives: torch tensors or NumPy arrays."""

    PYTORCH = "pytorch"
    NUMPY = "numpy"
    RAW = "raw"


class TransferType(StrEnum):
    """Whether updates are the new weights, or their difference from the received ones."""

    FULL = "FULL"
    DIFF = "DIFF"


class FrameworkType(StrEnum):
    """What a training script computes with."""

    PYTORCH = "pytorch"
    NUMPY = "numpy"
    RAW = "raw"


@checked_arguments
@dataclass(frozen=True)
class ScriptRunner:
    """The training script of all sites, or of the one that it is added to.

    Attributes:
        script: Path of the script.
        script_args: Arguments, as on a shell.
        launch_external_process: Whether ``command`` starts the script. A site has a process of its
            own in any case.
        command: Launcher, such as ``torchrun --nproc_per_node=2``. One that only starts Python is
            not needed.
        framework: What the script computes with; with NumPy it receives arrays.
        server_expected_format: Accepted for NVFlare's sake: tensors travel as bytes.
        params_transfer_type: See :class:`TransferType`. Updates travel in full, which is exact;
            what a script itself sends as a difference is taken as one.
    """

    script: str
    script_args: str = ""
    launch_external_process: bool = False
    command: str = "python3 -u"
    framework: FrameworkType = FrameworkType.PYTORCH
    server_expected_format: ExchangeFormat = ExchangeFormat.NUMPY
    params_transfer_type: TransferType = TransferType.FULL

    def add_to(self, job: FedJob, site: str | None) -> None:
        """Make it the script of a site, or of all of them."""
        if TransferType(self.params_transfer_type) is TransferType.DIFF:
            notice(
                "params_transfer_type = DIFF: updates travel in full, which is exact; their mean "
                "is the same"
            )
        job.set_runner(self, site)


@checked_arguments
@dataclass(frozen=True)
class FedAvg:
    """Federated averaging (McMahan et al. 2017, arXiv:1602.05629).

    Attributes:
        num_clients: Number of sites that a round samples; None for all of them.
        num_rounds: Number of rounds.
        model: Initial model; see :func:`~flstream.recipe.initial_model.initial_model`.
        key_metric: Metric that decides which round is the best.
        stop_cond: Condition that ends the job early, such as ``accuracy >= 0.97``.
        patience: Number of evaluations without a new best one that ends the job early.
        exclude_vars: Regular expression, or several, of tensors that keep their value.
        aggregation_weights: Factors of sites' weights, by site.
    """

    num_clients: int | None = None
    num_rounds: int = 5
    model: Any = None
    key_metric: str | None = None
    stop_cond: str | None = None
    patience: int | None = None
    exclude_vars: str | Sequence[str] | None = None
    aggregation_weights: Mapping[str, float] | None = None

    def add_to(self, job: FedJob, site: str | None) -> None:
        """Make it the job's workflow."""
        excluded = self.exclude_vars
        job.set(
            {
                "rounds": self.num_rounds,
                "clients.per_round": self.num_clients,
                "workflow.args.key_metric": self.key_metric,
                "stop_when": self.stop_cond,
                "patience": self.patience,
                "aggregation.exclude": [excluded] if isinstance(excluded, str) else excluded,
                "aggregation.weights": self.aggregation_weights,
            }
        )
        if self.model is not None:
            job.set_model(self.model)


class PTFedAvg(FedAvg):
    """The same, under the name that it has for PyTorch."""


@checked_arguments
@dataclass(frozen=True)
class PTModel:
    """The job's initial model.

    Attributes:
        model: See :func:`~flstream.recipe.initial_model.initial_model`.
        initial_ckpt: Path of a file with its weights.
    """

    model: Any
    initial_ckpt: str | None = None

    def add_to(self, job: FedJob, site: str | None) -> None:
        """Make it the job's model."""
        job.set_model(self.model, self.initial_ckpt)


@checked_arguments
@dataclass(frozen=True)
class IntimeModelSelector:
    """The metric that decides which round is the best.

    Attributes:
        key_metric: Name of the metric.
        negate_key_metric: Whether its smallest value is the best; None to go by the name and the
            stop condition, by which losses and perplexities are minimised.
    """

    key_metric: str = "accuracy"
    negate_key_metric: bool | None = None

    def add_to(self, job: FedJob, site: str | None) -> None:
        """Make it the job's key metric."""
        job.set({"workflow.args.key_metric": self.key_metric})
        if self.negate_key_metric is not None:
            mode = "min" if self.negate_key_metric else "max"
            job.set({"workflow.args.key_metric_mode": mode})


@checked_arguments
@dataclass(frozen=True)
class TensorServerStreamer:
    """Tensor streaming, which is always on."""

    def add_to(self, job: FedJob, site: str | None) -> None:
        """Say that it is on."""
        say_that_streaming_is_on()


class TensorClientStreamer(TensorServerStreamer):
    """The same for clients, which is always on, too."""


def say_that_streaming_is_on() -> None:
    """Tell the user that nothing is to be done for models to be streamed."""
    notice(
        "tensor streaming is always on: models move in chunks, both ways "
        "(streaming.tensor_download_chunk_size)"
    )
