"""Sections of a job file: every key with its type, rule, default and meaning.

Each key is defined here only. The text under a field is its meaning; its first line is the key's
comment in a resolved job file. In `Annotated[type, rule]` the rule defines the allowed values.
"""

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from flstream.job.aggregation_method import (
    CHOOSING,
    WEIGHTED,
    MethodName,
    check_args,
    find_own_rule,
    is_own,
)
from flstream.job.codecs import CodecsSection
from flstream.job.files import Factory, File
from flstream.job.free_values import FreeArgs
from flstream.job.problems import MISSING, Problem, did_you_mean, given
from flstream.job.rules import (
    Bytes,
    Choice,
    CountOrFraction,
    Flag,
    Patterns,
    Real,
    Seconds,
    Whole,
    refuse,
)
from flstream.job.section import Section
from flstream.job.site_names import GpuGroups, SiteArgs, SiteFactors, SiteNames
from flstream.telemetry.events import default_site_names

MIB, GIB = 1024**2, 1024**3

# Most clients that get a process each by default; more processes would cost too much memory.
_MOST_PROCESSES = 16

CHECKPOINTS = (".safetensors", ".pt", ".pth", ".bin", ".npz", ".json")

_CHUNK_SIZE = Bytes(least=16, most=GIB, multiple_of=16, zero="streaming off", word="auto")


class ClientsSection(Section):
    """The clients of the job, and how many of them a round needs."""

    names: Annotated[list[str] | None, SiteNames()] = None
    """The clients' (sites') names; null is site-1, site-2 and so on.

    A site's name is that of its folder, too. Its index is its place in the list, from 0.
    """

    count: Annotated[int, Whole(1, 1_000_000)] = Field(default=None, validate_default=True)
    """How many clients (sites) the job has.

    Null is as many as clients.names lists.
    """

    args: Annotated[dict[str, dict[str, Any]], SiteArgs()] = Field(default_factory=dict)
    """Arguments of one site alone, by site: `{ ward { data = "a.csv" } }`, or a CSV file of them.

    A script gets them after those of train.args, or instead of those of the same name; a learner
    finds them in `self.site.args`. The first column of a file has the site's name; the other cells
    are texts, but for true, false and null, and an empty one is as if it were not there.
    """

    parallel: Annotated[int | None, Whole(1, 256)] = None
    """How many worker processes run them; null is one each up to 16, then one a core.

    With an engine of other machines, or with engine.gpus, null is as many as there is room for.

    With fewer workers than clients a worker runs several, one after another.
    """

    per_round: Annotated[int | float | None, CountOrFraction()] = None
    """How many clients a round samples: a number, or a fraction of them; null is all.

    `1` is one client, `1.0` is all of them.
    """

    threads: Annotated[int, Whole(1)] = 1
    """Torch threads of each client process.

    The number can change the last bits of what training gives, so it does not follow the machine.
    """

    gpus: Annotated[list[str] | None, GpuGroups()] = None
    """The GPUs of each client process in turn, as CUDA_VISIBLE_DEVICES; null is all for each.

    With `["0", "1"]`, the third process has GPU 0 again; `["0,1", "2,3"]` gives two to each.
    """

    min_updates: Annotated[int | None, Whole(1)] = None
    """How many clients of a round have to send a sound update; null is all of them.

    A round goes on without those that fail as long as so many are left.
    """

    round_timeout: Annotated[float, Seconds()] = 3600.0
    """How long a client may take for its task (duration), after which it has failed."""

    wait_after_min: Annotated[float | None, Seconds()] = None
    """How long the rest is waited for once min_updates have come (duration); null is to the end."""

    bench_after: Annotated[int, Whole(0)] = 2
    """After how many failures in a row a client is asked no more; 0 is never."""

    @field_validator("count", mode="before")
    @classmethod
    def _as_many_as_are_named(cls, value: Any, info: ValidationInfo) -> Any:
        # Names that were refused are not in info.data: that mistake is reported already.
        names = info.data.get("names", ["refused"])
        if value is None and names is None:
            allowed = f"{Whole(1, 1_000_000).allowed}, unless clients.names is given"
            raise refuse(Problem("", MISSING, allowed))
        return len(names) if value is None else value

    @field_validator("count")
    @classmethod
    def _no_other_number(cls, value: int, info: ValidationInfo) -> int:
        names = info.data.get("names")
        if names is not None and value != len(names):
            allowed = f"the number of clients.names, which is {len(names)}"
            raise refuse(Problem("", given(value), allowed, "leave it out"))
        return value

    @field_validator("args")
    @classmethod
    def _of_sites_that_there_are(
        cls, value: dict[str, dict[str, Any]], info: ValidationInfo
    ) -> dict[str, dict[str, Any]]:
        if "names" not in info.data or "count" not in info.data:
            return value  # a mistake there is reported already
        names = _site_names(info.data["names"], info.data["count"])
        unknown = sorted(set(value).difference(names))
        if unknown:
            allowed = f"sites of the job, which are {names[0]} to {names[-1]}"
            hint = did_you_mean(unknown[0], names)
            raise refuse(Problem("", f"given {', '.join(unknown)}", allowed, hint))
        return value

    @field_validator("per_round")
    @classmethod
    def _no_more_than_there_are(
        cls, value: int | float | None, info: ValidationInfo
    ) -> int | float | None:
        count = info.data.get("count")
        if isinstance(value, int) and count is not None and value > count:
            raise refuse(Problem("", given(value), f"at most clients.count, which is {count}"))
        return value

    @field_validator("min_updates")
    @classmethod
    def _no_more_than_are_sampled(cls, value: int | None, info: ValidationInfo) -> int | None:
        count, per_round = info.data.get("count"), info.data.get("per_round")
        if value is not None and count is not None:
            sampled = _cohort_size(count, per_round)
            if value > sampled:
                allowed = f"at most the clients of a round, which are {sampled}"
                raise refuse(Problem("", given(value), allowed))
        return value

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
        return _site_names(self.names, self.count)

    @property
    def cohort_size(self) -> int:
        """Number of clients that a round samples, from 1 to `count`."""
        return _cohort_size(self.count, self.per_round)


def _site_names(names: list[str] | None, count: int) -> list[str]:
    return list(names or default_site_names(count))


def _cohort_size(count: int, per_round: int | float | None) -> int:
    if per_round is None:
        return count
    return per_round if isinstance(per_round, int) else max(1, round(per_round * count))


class ModelSection(Section):
    """Where the initial weights come from: a factory, a file, or both.

    Where both are given, the factory gives names, ties and dtypes, and the file the values.
    """

    factory: Annotated[str | None, Factory()] = None
    """The callable that builds the model: `module:callable` or `path/to/file.py:callable`.

    The module is a .py file beside the job file, or an installed one. It returns a torch module, a
    dict of tensors, or a tuple that begins with one of them.
    """

    args: Annotated[dict[str, Any], FreeArgs()] = Field(default_factory=dict)
    """Keyword arguments of the factory, as written."""

    initial: Annotated[Path | None, File(CHECKPOINTS)] = Field(default=None, validate_default=True)
    """A file with the initial weights; null takes those the factory builds.

    The index of a sharded checkpoint is a .json file. Files of torch are loaded as weights only. A
    name that is tied to others in the model may be in the file under any of them.
    """

    strict: Annotated[bool, Flag()] = True
    """Whether the file must have the factory's tensors, and values that their dtypes hold.

    False keeps what the factory made for tensors that the file lacks or has in another shape, such
    as a new head; leaves out those that the model lacks; and rounds values to the model's dtypes.
    """

    @field_validator("initial")
    @classmethod
    def _one_of_the_two(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        # A factory that was refused is not in info.data: that mistake is reported already.
        if value is None and info.data.get("factory", "refused") is None:
            allowed = f"{Factory().allowed}, unless model.initial is given"
            raise refuse(Problem("model.factory", MISSING, allowed))
        return value


class AggregationSection(Section):
    """How updates become the next model."""

    method: Annotated[str, MethodName()] = "mean"
    """How updates are folded: mean (weighted by number of examples), another rule, or one's own.

    norm_bounded_mean is the mean with a limit, `clip_norm`. median and trimmed_mean rank the values
    of each coordinate. krum, multi_krum and bulyan choose updates by their distances to each other;
    geometric_median is the point that is nearest to all of them. All but the means count every
    update alike. A class of your own is named `file.py:Class` or `module:Class`; its file is
    imported when the job is loaded.
    """

    args: Annotated[dict[str, Any], FreeArgs()] = Field(default_factory=dict, validate_default=True)
    """Keyword arguments of a class of your own, as written."""

    byzantine: Annotated[int | None, Whole(0)] = None
    """How many updates krum, multi_krum and bulyan stand, whatever they are; null is the most.

    Of n updates that is (n - 3) / 2 for krum and multi_krum and (n - 3) / 4 for bulyan, rounded
    down. Fewer updates than that asks for fail the fold.
    """

    selected: Annotated[int | None, Whole(1)] = None
    """How many updates multi_krum averages; null is all but aggregation.byzantine."""

    weights: Annotated[dict[str, float], SiteFactors()] = Field(default_factory=dict)
    """Factors of sites' weights in the mean, by site: `{ ward = 2.0 }`; the others have 1.

    A site's number of examples is multiplied by it when updates are folded. Metrics are averaged
    without it.
    """

    trim: Annotated[float, Real(0, below=0.5)] = 0.1
    """The fraction of values that trimmed_mean leaves out at either end, rounded down."""

    clip_norm: Annotated[
        float | Literal["median"] | None, Real(0, above_least=True, word="median")
    ] = Field(default=None, validate_default=True)
    """The most an update may differ from the global model (L2 norm); null is any distance.

    A larger difference is scaled down to it. The norm is over all aggregated floats of the update.
    `median` is the median of the norms of the updates that are folded together.
    """

    include: Annotated[list[str], Patterns(1)] = Field(default_factory=lambda: [".*"])
    """Regular expressions: a tensor is aggregated only if one is found in its name.

    Others keep their old value. A whole name is matched by `^name$`.
    """

    exclude: Annotated[list[str], Patterns()] = Field(default_factory=list)
    """Regular expressions: a tensor in whose name one is found keeps its old value."""

    on_nonfinite: Annotated[Literal["reject", "allow"], Choice(("reject", "allow"))] = "reject"
    """What becomes of an update with an infinity or a NaN: reject leaves its site out."""

    memory_budget: Annotated[int, Bytes(least=MIB)] = 48 * MIB
    """The most memory the server's fold buffers may take (bytes)."""

    @field_validator("method")
    @classmethod
    def _can_be_imported(cls, value: str) -> str:
        if is_own(value):
            find_own_rule(value)
        return value

    @field_validator("args")
    @classmethod
    def _of_a_rule_of_ones_own(cls, value: dict[str, Any], info: ValidationInfo) -> dict[str, Any]:
        # A method that was refused is not in info.data: that mistake is reported already.
        if "method" in info.data:
            check_args(info.data["method"], value)
        return value

    @field_validator("byzantine", "selected")
    @classmethod
    def _of_a_rule_that_chooses(cls, value: int | None, info: ValidationInfo) -> int | None:
        method = info.data.get("method", "krum")
        takes = CHOOSING if info.field_name == "byzantine" else ("multi_krum",)
        if value is not None and "method" in info.data and method not in takes:
            allowed = f"null, as aggregation.method is {method}; it is of {', '.join(takes)}"
            raise refuse(Problem("", given(value), allowed))
        return value

    @field_validator("clip_norm")
    @classmethod
    def _given_where_norms_are_bounded(
        cls, value: float | str | None, info: ValidationInfo
    ) -> float | str | None:
        if value is None and info.data.get("method") == "norm_bounded_mean":
            allowed = "a number above 0, or median, as aggregation.method is norm_bounded_mean"
            raise refuse(Problem("", MISSING, allowed))
        return value

    @field_validator("weights")
    @classmethod
    def _only_in_a_mean(cls, value: dict[str, float], info: ValidationInfo) -> dict[str, float]:
        method = info.data.get("method", "mean")
        if value and method not in WEIGHTED and not is_own(method):
            allowed = f"left out where aggregation.method is {method}, which counts all alike"
            raise refuse(Problem("", given(value), allowed))
        return value


class ServerOptimizerSection(Section):
    """What the server makes of the aggregate's difference from the global model."""

    type: Annotated[
        Literal["none", "fedavgm", "fedadagrad", "fedadam", "fedyogi"],
        Choice(("none", "fedavgm", "fedadagrad", "fedadam", "fedyogi")),
    ] = "none"
    """The optimiser: none takes the aggregate as it is, or fedavgm, fedadagrad, fedadam, fedyogi.

    Integers and bools always take the aggregate.
    """

    learning_rate: Annotated[float | None, Real(0, above_least=True)] = None
    """The server's learning rate; null is 1.0 for fedavgm and 0.1 for the others."""

    beta_1: Annotated[float | None, Real(0, below=1)] = None
    """How much of the momentum a round keeps; null is 0.9, and 0 for fedadagrad."""

    beta_2: Annotated[float, Real(0, below=1)] = 0.99
    """How much of the second moment a round of fedadam or fedyogi keeps."""

    tau: Annotated[float, Real(0, above_least=True)] = 0.001
    """How adaptive the adaptive optimisers are: the smaller, the more."""


class StreamingSection(Section):
    """How models move between the server and its clients."""

    mode: Annotated[
        Literal["pull", "push", "native", "map"], Choice(("pull", "push", "native", "map"))
    ] = "pull"
    """How a model moves: in chunks its receiver asks for (pull) or not (push), whole (native), or
    not at all (map).

    The model that results is the same, bit for bit. In push mode the sender streams at once, and
    the receiver grants how far; in native mode the model is serialised into one message. In map
    mode the clients of this machine map the server's checkpoint, and pay for what training writes
    to alone: it is for evaluation, and for models most of which is frozen. Updates are pulled. The
    page [mapping.md](mapping.md) says more.
    """

    tensor_download_chunk_size: Annotated[int | Literal["auto"], _CHUNK_SIZE] = "auto"
    """The longest frame of a model exchanged as tensors (bytes), or auto; 0 turns streaming off.

    With auto, a run whose workers are all on its machine measures at its start which of 1, 2 and
    4 MiB take least of the processor's time, for less than a tenth of a second. Over emulated links
    and to nodes, and with codecs, it is 2 MiB. The run's own job.conf has the size that was chosen,
    and a resumed run keeps to it. Models have the same bits in any size. Updates that are folded as
    they come have frames of 2 MiB at most, whatever the size.
    """

    np_download_chunk_size: Annotated[int | Literal["auto"], _CHUNK_SIZE] = "auto"
    """The longest frame of a model exchanged as arrays (bytes), or auto; 0 turns streaming off.

    Auto is as for tensors; where a job exchanges tensors of a size that it states, it is 2 MiB.
    """

    streaming_per_request_timeout: Annotated[float, Seconds()] = 600.0
    """How long one request may go unanswered (duration) before the download fails."""

    request_size: Annotated[int, Bytes(least=16, multiple_of=16)] = 64 * MIB
    """How much of a model one request asks for (bytes)."""

    window: Annotated[int, Whole(1, 64)] = 2
    """How many requests may be in flight at once."""

    codecs: CodecsSection = CodecsSection()

    reuse: Annotated[Literal["auto", "off"], Choice(("auto", "off"))] = "auto"
    """Whether a receiver fetches only what it lacks: where that pays (auto), or never (off).

    It compares digests of blocks of 64 KiB with those of what it has: the tensors that it receives
    into, or the model that an update was trained from. It does so in pull mode, and in map mode
    with updates. The page [fewer-bytes.md](fewer-bytes.md) says what it costs, and when there is
    nothing to compare.
    """

    @property
    def maps(self) -> bool:
        """Whether workers map models instead of fetching them."""
        return self.mode == "map"


class CheckpointsSection(Section):
    """Which models of its rounds a run keeps."""

    keep: Annotated[int | Literal["all"], Whole(1, word="all")] = "all"
    """How many rounds' checkpoints stay on disk: the last ones, and the best one besides; or all.

    The initial model goes like any other: the job and its seed give it again.
    """
