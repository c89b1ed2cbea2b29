"""Sections of a job file: every key with its type, rule, default and meaning.

Each key is defined here only. The text under a field is its meaning; its first line is the key's
comment in a resolved job file. The annotation defines the allowed values.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Literal, NamedTuple, Self

from pydantic import AfterValidator, Field, PrivateAttr, ValidationInfo, model_validator

from flstream.job.bodies import OptimizerState
from flstream.job.codecs import CodecsSection
from flstream.job.fields import (
    Allowed,
    Bytes,
    ChunkSize,
    CodeArgs,
    Count,
    CountOrFraction,
    Flag,
    FreeArgs,
    Patterns,
    Real,
    Seconds,
    Section,
    SomePatterns,
    Whole,
    folder_of,
)
from flstream.job.files import Checkpoint, Factory, Modules, ScriptFile, code_name, needs
from flstream.job.keys import schema_of, words
from flstream.job.problems import MISSING, Problem, RefusedValueError, must_be
from flstream.job.site_names import GpuGroups, SiteArgs, SiteFactors, SiteNames
from flstream.job.typed import Sections, TypedSection, short_name
from flstream.telemetry.events import default_site_names

MIB = 1024**2

# Most clients that get a process each by default; more processes would cost too much memory.
_MOST_PROCESSES = 16
_MOST_CLIENTS = 1_000_000


class ClientsSection(Section):
    """The clients of the job, and how many of them a round needs."""

    names: SiteNames | None = None
    """The clients' (sites') names; null is site-1, site-2 and so on.

    A site's name is that of its folder, too. Its index is its place in the list, from 0.
    """

    count: Annotated[
        Whole,
        Field(ge=1, le=_MOST_CLIENTS),
        Allowed(f"a whole number from 1 to {_MOST_CLIENTS}, unless clients.names is given"),
    ]
    """How many clients (sites) the job has; left out, as many as clients.names lists."""

    args: SiteArgs = Field(default_factory=dict)
    """Arguments of one site alone, by site: `{ ward { data = "a.csv" } }`, or a CSV file of them.

    A script gets them after those of train.args, or instead of those of the same name; a learner
    finds them in `self.site.args`. The first column of a file has the site's name; the other cells
    are texts, but for true, false and null, and an empty one is as if it were not there.
    """

    parallel: Annotated[Whole, Field(ge=1, le=256)] | None = None
    """How many worker processes run them; null is one each up to 16, then one a core.

    With engine.type = ray, or with engine.gpus, null is as many as there is room for.

    With fewer workers than clients a worker runs several, one after another.
    """

    per_round: CountOrFraction | None = None
    """How many clients a round samples: a number, or a fraction of them; null is all.

    `1` is one client, `1.0` is all of them.
    """

    threads: Annotated[Whole, Field(ge=1, le=1024)] = 1
    """Torch threads of each client process.

    The number can change the last bits of what training gives, so it does not follow the machine.
    """

    gpus: GpuGroups | None = None
    """The GPUs of each client process in turn, as CUDA_VISIBLE_DEVICES; null is all for each.

    With `["0", "1"]`, the third process has GPU 0 again; `["0,1", "2,3"]` gives two to each.
    """

    min_updates: Count | None = None
    """How many clients of a round have to send a sound update; null is all of them.

    A round goes on without those that fail as long as so many are left.
    """

    round_timeout: Seconds = 3600.0
    """How long a client may take for its task (duration), after which it has failed."""

    wait_after_min: Seconds | None = None
    """How long the rest is waited for once min_updates have come (duration); null is to the end."""

    suspend_after: Annotated[Whole, Field(ge=0)] = 2
    """After how many failures in a row a client is asked no more; 0 is never."""

    @model_validator(mode="before")
    @classmethod
    def _as_many_as_are_named(cls, values: Any) -> Any:
        if isinstance(values, Mapping) and values.get("count") is None:
            values = {name: value for name, value in values.items() if name != "count"}
            if isinstance(names := values.get("names"), list) and names:
                values["count"] = len(names)
        return values

    @property
    def workers(self) -> int:
        """Number of worker processes; as many as clients if each client has its own."""
        if self.parallel is not None:
            return min(self.parallel, self.count)
        return self.count if self.count <= _MOST_PROCESSES else os.cpu_count() or 1

    @property
    def worker_names(self) -> list[str]:
        """Names of the workers; the names of the sites if each site has its own worker."""
        if self.workers == self.count:
            return self.site_names
        return [f"worker-{number}" for number in range(1, self.workers + 1)]

    @property
    def site_names(self) -> list[str]:
        """Names of the sites, in their fixed order; `site-1`, `site-2` and so on by default."""
        return list(self.names or default_site_names(self.count))

    @property
    def cohort_size(self) -> int:
        """Number of clients that a round samples, from 1 to `count`."""
        if isinstance(self.per_round, float):
            return max(1, round(self.per_round * self.count))
        return self.count if self.per_round is None else self.per_round


_HF_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def _hf_place(place: str, info: ValidationInfo) -> str:
    """Return the absolute path of a folder, or a name of the Hugging Face cache."""
    folder = Path(os.path.abspath(folder_of(info) / place))
    if folder.is_dir():
        return str(folder)
    if not _HF_NAME.fullmatch(place):
        raise ValueError(f"there is no folder {folder}")
    if importlib.util.find_spec("transformers") is None:
        raise ValueError("there is no module transformers; pip install 'flstream[hf]'")
    return place


class BaseSection(Section):
    """The frozen part of the sites' models, in one file that all processes of a machine map.

    `flare.base_model()` returns it as a module ([how](../large-models.md#one-base-for-all-sites)).
    `base = "module:callable"` is short for `base { factory = "module:callable" }`.
    """

    hf: (
        Annotated[
            str,
            AfterValidator(_hf_place),
            Allowed("a folder of save_pretrained, or a name in the Hugging Face cache"),
        ]
        | None
    ) = None
    """A folder of pretrained weights, or the name of a model in the local Hugging Face cache.

    Nothing is downloaded. The class is the one that `architectures` of its config.json names.
    """

    factory: Factory | None = None
    """The callable that builds the base: `module:callable` or `path/to/file.py:callable`.

    It returns a torch module, or a tuple that begins with one. It is called with its weights when a
    run starts or resumes, and on torch's meta device by each `flare.base_model()`.
    """

    args: FreeArgs = Field(default_factory=dict)
    """Keyword arguments of the base's factory, as written."""

    dtype: Literal["float32", "bfloat16", "float16"] | None = None
    """The dtype of floating-point parameters and saved buffers; null leaves them as they are."""

    _digest: str = PrivateAttr("")

    @model_validator(mode="before")
    @classmethod
    def _a_factory_alone(cls, value: Any) -> Any:
        return {"factory": value} if isinstance(value, str) else {} if value is None else value

    @model_validator(mode="after")
    def _has_one_origin(self) -> Self:
        if self.hf is not None and self.factory is not None:
            given = f"given with factory = {self.factory}"
            raise RefusedValueError(Problem("hf", given, "left out, or else the factory"))
        if self.args and self.factory is None:
            allowed = "left out without model.base.factory"
            raise RefusedValueError(Problem("args", "given", allowed))
        if self.dtype is not None and not self.is_on:
            allowed = "left out without model.base.hf or model.base.factory"
            raise RefusedValueError(Problem("dtype", "given", allowed))
        return self

    @property
    def is_on(self) -> bool:
        """Whether there is a base."""
        return self.hf is not None or self.factory is not None

    @property
    def digest(self) -> str:
        """Digest of the built base, which names its file; empty before."""
        return self._digest

    def built(self, digest: str) -> Self:
        """Return the section of a base that is built; the digest is no key."""
        section = self.model_copy()
        section._digest = digest
        return section


class ModelSection(Section):
    """Source of the initial weights: a factory, a file, or both.

    Where both are given, the factory gives names, ties and dtypes, and the file the values.
    """

    factory: Factory | None = None
    """The callable that builds the model: `module:callable` or `path/to/file.py:callable`.

    The module is a .py file beside the job file, or an installed one. It returns a torch module, a
    dict of tensors, a body that is made by ranges (a source), or a tuple that begins with one.
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

    build: Literal["auto", "whole", "by_module"] = "auto"
    """How the factory's model is built.

    `auto` records what the factory does, and then computes and writes tensor by tensor, to the same
    bits as in memory; where that is not possible, `flstream validate` says why, and the model is
    built whole. `whole` has all of it in memory. `by_module` builds the modules on torch's meta
    device and initialises them one by one, each with a seed of its own: these are other values.
    """

    base: BaseSection = BaseSection()

    @model_validator(mode="after")
    def _has_weights(self) -> Self:
        if self.factory is None and self.initial is None:
            allowed = f"{words(schema_of(Factory))}, unless model.initial is given"
            raise RefusedValueError(Problem("factory", MISSING, allowed))
        return self


def _command(text: str, info: ValidationInfo) -> str:
    """Return a command whose first word is an existing program, with its full path."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise must_be("quoted as on a shell", str(error)) from error
    if not words:
        raise ValueError("")  # the words of the type say all
    first, *others = words
    if "/" in first:
        path = os.path.abspath(folder_of(info) / first)
        if not os.access(path, os.X_OK) or os.path.isdir(path):
            raise ValueError(f"there is no program {path}")
        return text if path == first else shlex.join([path, *others])
    if _program_path(first) is None:
        where = f"{Path(sys.executable).parent} or on PATH"
        raise ValueError(f"there is no program {first} in {where}; install it")
    return text


def _program_path(name: str) -> str | None:
    """Return the path of a program, first of this interpreter's environment."""
    if name in ("python", "python3"):
        return sys.executable
    if "/" in name:
        return name
    return shutil.which(name, path=os.path.dirname(sys.executable)) or shutil.which(name)


_CommandLine = Annotated[
    str,
    AfterValidator(_command),
    Allowed("a launcher and its options, such as torchrun --nproc_per_node=2"),
]


class TrainSection(Section):
    """Training code of the clients: a script or a learner."""

    script: ScriptFile | None = None
    """The training script that each client runs.

    It asks for tasks in a loop. Where clients share processes, it is run anew for each task.
    """

    learner: Annotated[str, *code_name("Class")] | None = None
    """The class with methods train and evaluate: `module:Class` or `path/to/file.py:Class`.

    There is one object of it a process, which may work for many clients. The module is a .py file
    beside the job file, or an installed one.
    """

    command: _CommandLine | None = None
    """The launcher that starts the script's processes, such as `torchrun --nproc_per_node=2`.

    Null runs the script in the site's own process. Rank 0 has the tasks and the model, and the
    other ranks follow it. python and python3 are the interpreter that runs flstream, and other
    programs are looked for beside it first. Each client needs a process of its own.
    """

    args: CodeArgs = Field(default_factory=dict)
    """Arguments of the script, as `--key value`, or keyword arguments of the learner.

    For a script, true gives `--key` alone, false and null give nothing, and a list gives
    `--key a b`. They may also be one text, as on a shell: `"--lr 0.1 --verbose"`.
    """

    alias: Literal["nvflare"] | None = None
    """The other framework whose names the training code may import; null is none.

    With nvflare, `import nvflare.client as flare`, its tracking and the constants that scripts
    import lead to flstream, whether or not nvflare is installed.
    """

    preload: Modules = Field(default_factory=list)
    """Libraries that are imported once, before the clients' processes are forked.

    What the training code imports from them, anywhere, is imported too: with `[transformers, trl]`
    each client saves seconds, and hundreds of MiB are in memory once. A library that starts threads
    when it is imported is refused. numpy, pandas, PIL, scipy and sklearn need not be named.
    """

    exchange_format: Literal["pytorch", "numpy"] = "pytorch"
    """What the script receives: pytorch tensors or numpy arrays.

    It decides which of the two chunk sizes applies on the way to the client.
    """

    optimizer_state: OptimizerState | None = None
    """What a client's optimizer begins a training with: a new state (reset), or an earlier one.

    local is the last one of the client, which keeps it in its own files; each workflow begins with
    a new one. It is for code that calls restore_optimizer, and for trainers of Lightning and
    Hugging Face that are patched; null leaves it to them (restore_state), and restore_optimizer
    restores the client's own.
    """

    @model_validator(mode="after")
    def _has_code(self) -> Self:
        if self.script is None and self.learner is None:
            allowed = f"{words(schema_of(ScriptFile))}, unless train.learner is given"
            raise RefusedValueError(Problem("script", MISSING, allowed))
        return self

    @property
    def command_words(self) -> list[str] | None:
        """Words of the command, with the path of its program (its name if there is none)."""
        if self.command is None:
            return None
        first, *others = shlex.split(self.command)
        return [_program_path(first) or first, *others]

    @property
    def source(self) -> Path | None:
        """Path of the training code's file; None for the learner of an installed module."""
        return _source(self.script, self.learner)


CODE_KEYS = ("script", "learner", "args")
"""Keys of a section that names code of the client API."""


class EvaluateSection(Section):
    """Scoring of the global models: at the sites, or centrally, on data that no site has."""

    at: Literal["sites", "server"] = "sites"
    """Who scores the models that are due (`workflow.args.evaluate_every`): sites, or the server.

    server: a process of its own on the server's machine, the evaluator, runs the script or the
    learner of this section. Its metrics decide the best model, stop_when and patience. Sites are
    sent no evaluations, unless workflow.args.evaluate = task; what they score, also with their
    updates, is in summary.json as `site_metrics`.
    """

    script: ScriptFile | None = None
    """The script of the evaluator: a training script's loop that sends metrics and no weights."""

    learner: Annotated[str, *code_name("Class")] | None = None
    """The class with a method evaluate: `module:Class` or `path/to/file.py:Class`."""

    args: CodeArgs = Field(default_factory=dict)
    """Arguments of the script, as `--key value`, or keyword arguments of the learner."""

    @property
    def source(self) -> Path | None:
        """Path of the code's file; None without one, as for the learner of an installed module."""
        return _source(self.script, self.learner)


def _source(script: Path | None, learner: str | None) -> Path | None:
    if learner is None:
        return script
    where = learner.rpartition(":")[0]
    return Path(where) if where.endswith(".py") else None


class Method(NamedTuple):
    """A way to combine updates that comes with flstream.

    Attributes:
        make: Place of the function that makes it, as ``module:name`` in ``flstream.aggregation``.
            It takes the number of updates, and the values of ``keys`` by name.
        keys: Keys of ``aggregation`` that are the method's own. One whose default is null must be
            left out beside other methods.
        required: Keys that must be given, with the values that they may have, in words.
        is_weighted: Whether updates count by their weights; others count all alike.
        compares: Whether all updates are compared before any is folded.
        needed: Of a method that chooses among updates, the numbers (a, b) by which it needs
            a f + b updates where f of them may be Byzantine; None for others.
    """

    make: str
    keys: tuple[str, ...] = ()
    required: Mapping[str, str] = MappingProxyType({})
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
    "trimmed_mean": Method("ranked:trimmed", ("trim",)),
    "krum": Method("krum:krum", ("byzantine",), compares=True, needed=(2, 3)),
    "multi_krum": Method(
        "krum:multi_krum", ("byzantine", "selected"), compares=True, needed=(2, 3)
    ),
    "bulyan": Method("krum:bulyan", ("byzantine",), compares=True, needed=(4, 3)),
    "geometric_median": Method("geometric_median:geometric_median", compares=True),
    "norm_bounded_mean": Method(
        "mean:mean", required={"clip_norm": "a number above 0, or median"}, is_weighted=True
    ),
}
"""The methods that come with flstream."""


def is_own(method: str) -> bool:
    """Return whether a method is a user's own, in a file or a module."""
    return ":" in method


_MethodName = Annotated[str, *code_name("Class", lambda: METHODS)]


class AggregationSection(Section):
    """Rule that combines updates into the next model."""

    method: _MethodName = "mean"
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
        Bytes, Field(ge=MIB), Allowed("a size of at least 1 MiB", ("string", "number"))
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

    @property
    def maps(self) -> bool:
        """Whether workers map models instead of fetching them."""
        return self.mode == "map"


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


def _trackers() -> Mapping[str, str]:
    """Return the places of the trackers that come with flstream, by name."""
    # Imported on demand, since the package of trackers is above this one.
    registry: Mapping[str, str] = importlib.import_module("flstream.tracking.registry").BUILT_IN
    return registry


_NEEDS = (needs("tensorboard", tensorboard="tensorboard"), needs("tracking", mlflow="mlflow"))


class TrackingSection(Section):
    """Tracker of the run's numbers and text, beside its own files."""

    type: Annotated[str, *code_name("Class", _trackers), *_NEEDS] | None = None
    """The tracker: tensorboard, mlflow, or a class of your own beside the job file; null is none.

    In the run directory, tensorboard writes event files, and mlflow a store, `mlflow/mlflow.db`;
    both need the extra `flstream[tracking]`.
    A class is named `file.py:Class` or `module:Class`, and runs in a thread of the launcher.
    """

    args: FreeArgs = Field(default_factory=dict)
    """Keyword arguments of a tracker of your own, as written."""

    @model_validator(mode="before")
    @classmethod
    def _a_name_alone(cls, value: Any) -> Any:
        return {"type": value} if isinstance(value, str) else value

    @property
    def name(self) -> str:
        """Name of the tracker for messages: `tensorboard`, or `mine.py:Tracker`."""
        return short_name(self.type or "")

    @property
    def place(self) -> str | None:
        """Place of the tracker's class: `package.module:name` or `/abs/path.py:name`."""
        return None if self.type is None else _trackers().get(self.type, self.type)


class CheckpointsSection(Section):
    """Retention of the models of a run's rounds."""

    keep: Count | Literal["all"] = "all"
    """How many rounds' checkpoints stay on disk: the last ones, and the best one besides; or all.

    The initial model goes like any other: the job and its seed give it again.
    """
