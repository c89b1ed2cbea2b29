"""Sections of a job file: every key with its type, rule, default and meaning.

Each key is defined here only. The text under a field is its meaning; its first line is the key's
comment in a resolved job file. The annotation defines the allowed values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from flstream.job.clients_section import ClientsSection
from flstream.job.codecs import CodecsSection
from flstream.job.fields import (
    Allowed,
    ChunkSize,
    Count,
    Flag,
    FreeArgs,
    Real,
    Seconds,
    Section,
    Whole,
)
from flstream.job.files import code_name, needs
from flstream.job.problems import Problem, RefusedValueError, given_clause
from flstream.job.typed import Sections, TypedSection

MIB = 1024**2

EPSILON = "epsilon"
"""Name that stands in ``stop_when`` for the privacy that a job has spent."""


class ClippingSection(Section):
    """Bound of an update's difference from the model; larger ones are scaled down."""

    type: Literal["fixed", "adaptive"] = "fixed"
    """Whether the norm stays as it is, or follows the sites' own norms round by round.

    adaptive is of Andrew et al. 2021 (arXiv:1905.03871): it moves the norm towards a quantile of
    the updates' norms, which it learns from a noisy count of those that are within it.
    """

    norm: Annotated[Real, Field(gt=0)] = 1.0
    """The most an update may differ from the model (L2 norm); adaptive clipping begins with it.

    The norm is over all aggregated floats of the update.
    """

    target_quantile: Annotated[Real, Field(gt=0, lt=1)] = 0.5
    """With adaptive: the fraction of updates whose norm is to be within the clipping norm."""

    learning_rate: Annotated[Real, Field(gt=0)] = 0.2
    """With adaptive: how fast the norm follows, as an exponent of its factor in a round."""

    count_stddev: Annotated[Real, Field(gt=0)] | None = None
    """With adaptive: the noise on the count of updates within the norm; null is cohort / 20."""


class PrivacySection(Section):
    """Differential privacy of sites, given by the server (central): DP-FedAvg.

    It needs the extra `flstream[privacy]`. With it each update counts alike, and integers and
    bools keep their values.
    """

    type: Annotated[Literal["none", "central"], needs("privacy", central="dp_accounting")] = "none"
    """Whether the mean of the updates is made private: none, or central, as it is folded.

    central clips each update, and adds Gaussian noise to the mean of their differences from the
    model (McMahan et al. 2018, arXiv:1710.06963). Who has the server's own files or the job's seed
    can subtract the noise.
    """

    noise_multiplier: Annotated[Real, Field(ge=0.01, le=10_000)] = 1.0
    """The noise on the sum of updates (standard deviation), in units of the clipping norm."""

    clipping: ClippingSection = ClippingSection()

    delta: Annotated[Real, Field(gt=0, lt=1)] = 1e-5
    """The probability at which epsilon may fail; far below one over the number of sites."""

    accountant: Literal["rdp", "pld"] = "rdp"
    """What computes epsilon: rdp (Renyi divergences), or pld (privacy loss distributions).

    pld is tighter, and slower. Both are of the package dp-accounting.
    """

    sampling: Literal["poisson", "without_replacement"] = "poisson"
    """How a round's sites are drawn where `clients.per_round` is fewer than all.

    poisson draws each site by itself with the same probability, so that the cohort's size varies:
    epsilon is for a site more or less. without_replacement draws as many each round: epsilon is for
    a site's data replaced by other data, which the accountant bounds less tightly.
    """

    noise_cohort_size: Count | None = None
    """The cohort whose noise is simulated with the smaller one of this job; null is its own.

    For research on what privacy costs a large federation: the noise and epsilon are those of a
    cohort of this size, drawn from `privacy.population` sites, and the job's own sites do not get
    that privacy.
    """

    population: Count | None = None
    """How many sites the accountant takes cohorts to be drawn from; null is `clients.count`."""

    @property
    def is_on(self) -> bool:
        """Whether the job is private."""
        return self.type != "none"

    def cohort(self, clients: ClientsSection) -> int:
        """Return the size of the cohort whose noise and epsilon the job has."""
        return self.noise_cohort_size or clients.cohort_size

    def drawn_from(self, clients: ClientsSection) -> int:
        """Return the number of sites that this cohort is drawn from."""
        return self.population or clients.count

    def count_stddev(self, clients: ClientsSection) -> float:
        """Return the noise on the count of the updates within the norm, of the cohort."""
        return self.clipping.count_stddev or self.cohort(clients) / 20

    def update_noise_multiplier(self, clients: ClientsSection) -> float:
        """Return the noise on the sum of updates, in units of the clipping norm.

        Adaptive clipping releases a noisy count, too. The updates then get more noise, so that both
        together cost as much as ``noise_multiplier`` says (Andrew et al. 2021, theorem 1).
        """
        total = self.noise_multiplier
        if self.clipping.type == "fixed":
            return total
        rest: float = total**-2 - (2 * self.count_stddev(clients)) ** -2
        return 1 / math.sqrt(rest)


class StreamingSection(Section):
    """Transfer of models between the server and its clients."""

    mode: Literal["pull", "native", "map"] = "pull"
    """How a model moves: in chunks on request (pull), whole (native), or not at all (map).

    The model that results is the same, bit for bit. In native mode the model is serialised into one
    message. In map mode the clients of this machine map the server's checkpoint, and pay for what
    training writes to alone: it is for evaluation, and for models most of which is frozen. Updates
    are pulled. docs/large-models.md says when.
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

    send_model_deltas: Flag = False
    """Whether sites send differences from the model: codecs.up = [delta, shuffle, zstd].

    The bits are the same. Other codecs of updates have delta in their own list.
    """

    use_delta_updates: Flag = False
    """Whether sites receive differences from the model before: the same as codecs.down."""

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
    docs/codecs.md says what it costs.
    """

    @model_validator(mode="before")
    @classmethod
    def _add_deltas(cls, values: Any) -> Any:
        """Return the values with the codecs that OpenFL's names for differences stand for."""
        if not isinstance(values, dict) or not isinstance(values.get("codecs", {}), dict):
            return values
        codecs = dict(values.get("codecs", {}))
        for name, direction in (("send_model_deltas", "up"), ("use_delta_updates", "down")):
            if values.get(name) in (True, "true") and not codecs.get(direction):
                codecs[direction] = ["delta", "shuffle", "zstd"]
        return {**values, "codecs": codecs} if codecs else values

    @model_validator(mode="after")
    def _have_deltas(self) -> Self:
        for name, is_on, direction in (
            ("send_model_deltas", self.send_model_deltas, "up"),
            ("use_delta_updates", self.use_delta_updates, "down"),
        ):
            specs = getattr(self.codecs, direction)
            if is_on and all(spec.type != "delta" for spec in specs):
                hint = f"put delta into codecs.{direction}, which has other codecs"
                raise RefusedValueError(Problem(name, given_clause("true"), "false", hint))
        return self

    @property
    def maps(self) -> bool:
        """Whether workers map models instead of fetching them."""
        return self.mode == "map"

    def chunk_size(self, exchanged: Literal["pytorch", "numpy"]) -> int:
        """Return the longest frame of a model exchanged as tensors or arrays; 0 for a whole one."""
        if self.mode == "native":
            return 0
        is_numpy = exchanged == "numpy"
        return self.np_download_chunk_size if is_numpy else self.tensor_download_chunk_size


Engine = Literal["local", "inline", "ray"]
"""What workers come from."""


def _with_port(address: str) -> str:
    if int(address.rpartition(":")[2]) > 65535:
        raise ValueError("65535 is the last port")
    return address


_Head = Annotated[
    str,
    Field(pattern=r"^\S{1,250}:\d{1,5}$"),
    AfterValidator(_with_port),
    Allowed("HOST:PORT of a Ray cluster's head"),
]


class EngineSection(Section):
    """Machines of the workers, whose kind changes no bit of a model."""

    type: Annotated[Engine, needs("ray", ray="ray")] = "local"
    """Where workers run: local (this machine), inline, or ray (the nodes of a Ray cluster).

    With inline, all is in one process, one site after another: for `breakpoint()` in training code,
    workflows and aggregators ([debugging.md](../debugging.md)). Nothing of time is limited there.

    With ray, the run directory is on a folder that all nodes see; it needs the extra
    `flstream[ray]`.
    """

    address: _Head | None = None
    """The Ray cluster, `HOST:PORT`; null is the one of this machine, or a new one."""

    cpus: Annotated[Real, Field(gt=0)] = 1.0
    """How many CPUs of a Ray cluster each worker takes, which is how many a node has room for."""

    wait: Seconds = 60.0
    """How long a run waits for nodes (duration): for all at the beginning, and if none is left.

    It begins with those that are ready then; others are used once they are. Their imports, and
    the building of ``model.base``, do not count.
    """

    gpus: Annotated[Whole, Field(ge=0, le=64)] | None = None
    """How many whole GPUs each worker gets; null leaves all of its machine visible to it.

    A worker sees its own alone, and with 0 none. `flare.device()` says which is to be used.
    """

    runtime_env: FreeArgs = Field(default_factory=dict)
    """What else Ray brings to the nodes, as its `runtime_env` has it: pip, env_vars, excludes, ...

    The job's folder is its `working_dir`; docs/cluster.md says what stays behind.
    """

    pdb: Flag = False
    """Whether what training code or a workflow raises opens pdb there, with the engine inline."""

    @property
    def is_local(self) -> bool:
        """Whether all workers are on the launcher's machine."""
        return self.type in ("local", "inline")

    @property
    def is_inline(self) -> bool:
        """Whether the whole run is in the launcher's process, one site after another."""
        return self.type == "inline"


RUN = "global"
"""Name that stands for the whole run in a tracker, beside those of the sites."""


TRACKERS: Mapping[str, str] = {
    "tensorboard": "flstream.tracking.tensorboard:TensorBoard",
    "mlflow": "flstream.tracking.mlflow:MLflow",
}
"""Place of each tracker that comes with flstream, by its name: that of the library it needs."""


_NEEDS = (needs("tensorboard", tensorboard="tensorboard"), needs("tracking", mlflow="mlflow"))


class TrackingSection(TypedSection):
    """Tracker of the run's numbers and text, beside its own files."""

    sections: ClassVar[Sections] = dict.fromkeys([None, *TRACKERS], Section)

    type: Annotated[str, *code_name("Class", TRACKERS.keys), *_NEEDS] | None = None
    """The tracker: tensorboard, mlflow, or a class of your own beside the job file; null is none.

    In the run directory, tensorboard writes event files, and mlflow a store, `mlflow/mlflow.db`;
    both need the extra `flstream[tracking]`.
    A class is named `file.py:Class` or `module:Class`, and runs in a thread of the launcher.
    `args` are its keyword arguments.
    """

    @property
    def place(self) -> str | None:
        """Place of the tracker's class: `package.module:name` or `/abs/path.py:name`."""
        return None if self.type is None else TRACKERS.get(self.type, self.type)


class CheckpointsSection(Section):
    """Retention of the models of a run's rounds."""

    keep: Count | Literal["all"] = "all"
    """How many rounds' checkpoints stay on disk: the last ones, and the best one besides; or all.

    The initial model goes like any other: the job and its seed give it again.
    """
