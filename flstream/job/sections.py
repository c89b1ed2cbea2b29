"""The sections of a job file: every key, its type, what it accepts, its default, its meaning.

This is the one definition of each key. The text under a field is its meaning; its first line
stands beside the key wherever a job is written out. In `Annotated[type, rule]` the rule says
what the file may give.
"""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationInfo, field_validator

from flstream.job.files import Factory, File, Script
from flstream.job.problems import MISSING, Problem, given
from flstream.job.rules import (
    Bytes,
    Choice,
    CountOrFraction,
    FreeArgs,
    Seconds,
    Text,
    Whole,
    refuse,
)

MIB, GIB = 1024**2, 1024**3

_CHUNK_SIZE = Bytes(least=16, most=GIB, multiple_of=16, zero="streaming off")


class Section(BaseModel):
    """A section of the job file: immutable, and closed to keys it does not know."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class Clients(Section):
    """Who takes part."""

    # Every client is a process of its own, hence the bound.
    count: Annotated[int, Whole(1, 64)]
    """How many clients (sites) the job has."""

    per_round: Annotated[int | float | None, CountOrFraction()] = None
    """How many clients a round samples: a number, or a fraction of them; null is all.

    `1` is one client, `1.0` is all of them.
    """

    threads: Annotated[int, Whole(1)] = 1
    """Torch threads of each client process.

    The number can change the last bits of what training gives, so it does not follow the machine.
    """

    round_timeout: Annotated[float, Seconds()] = 3600.0
    """How long a round waits for its clients (duration), after which the job fails.

    The failure names the clients that had not answered.
    """

    @field_validator("per_round")
    @classmethod
    def _no_more_than_there_are(
        cls, value: int | float | None, info: ValidationInfo
    ) -> int | float | None:
        count = info.data.get("count")
        if isinstance(value, int) and count is not None and value > count:
            raise refuse(Problem("", given(value), f"at most clients.count, which is {count}"))
        return value

    @property
    def names(self) -> list[str]:
        """The sites' names, in their fixed order: `site-1` and up."""
        return [f"site-{number}" for number in range(1, self.count + 1)]

    @property
    def cohort_size(self) -> int:
        """How many clients a round samples, as a number from 1 to `count`."""
        if self.per_round is None:
            return self.count
        if isinstance(self.per_round, int):
            return self.per_round
        return max(1, round(self.per_round * self.count))


class Model(Section):
    """Where the initial weights come from: a factory, or a file, which wins over it."""

    factory: Annotated[str | None, Factory()] = None
    """The callable that builds the model: `module:callable` or `path/to/file.py:callable`.

    The module is a .py file beside the job file, or an installed one.
    """

    args: Annotated[dict[str, Any], FreeArgs()] = Field(default_factory=dict)
    """Keyword arguments of the factory, as written."""

    initial: Annotated[Path | None, File(".safetensors")] = Field(
        default=None, validate_default=True
    )
    """A .safetensors file with the initial weights; null takes those the factory builds."""

    @field_validator("initial")
    @classmethod
    def _one_of_the_two(cls, value: Path | None, info: ValidationInfo) -> Path | None:
        # A factory that was refused is not in info.data: that mistake is reported already.
        if value is None and info.data.get("factory", "refused") is None:
            allowed = f"{Factory().allowed}, unless model.initial is given"
            raise refuse(Problem("model.factory", MISSING, allowed))
        return value


class Train(Section):
    """What each client runs."""

    script: Annotated[Path, Script()]
    """The training script that each client runs."""

    args: Annotated[dict[str, Any], FreeArgs()] = Field(default_factory=dict)
    """Arguments of the script, passed to it as `--key value`."""

    exchange_format: Annotated[Literal["pytorch", "numpy"], Choice(("pytorch", "numpy"))] = (
        "pytorch"
    )
    """What the script receives: pytorch tensors or numpy arrays.

    It decides which of the two chunk sizes applies on the way to the client.
    """


class FedAvgArgs(Section):
    """What the fedavg workflow can be told."""

    evaluate_every: Annotated[int, Whole(0)] = 1
    """Sites evaluate the new global model every so many rounds, and after the last; 0 is never."""

    key_metric: Annotated[str, Text(r"\S(.*\S)?", "the name of a metric")] = "accuracy"
    """The metric that decides which round was the best."""

    key_metric_mode: Annotated[Literal["max", "min"], Choice(("max", "min"))] = "max"
    """Whether the best value of the key metric is the largest or the smallest."""


class Workflow(Section):
    """What the job does round by round."""

    type: Annotated[Literal["fedavg"], Choice(("fedavg",))] = "fedavg"
    """The workflow: fedavg averages the clients' updates, weighted by number of examples."""

    args: FedAvgArgs = FedAvgArgs()
    """What the workflow can be told."""


class Aggregation(Section):
    """How updates become the next model."""

    method: Annotated[Literal["mean"], Choice(("mean",))] = "mean"
    """How updates are folded: mean is their average, weighted by number of examples."""

    memory_budget: Annotated[int, Bytes(least=MIB)] = 48 * MIB
    """The most memory the server's fold buffers may take (bytes)."""


class Streaming(Section):
    """How models move between the server and its clients."""

    mode: Annotated[Literal["pull", "native"], Choice(("pull", "native"))] = "pull"
    """How a model moves: pull streams it in chunks, native sends it as one message."""

    tensor_download_chunk_size: Annotated[int, _CHUNK_SIZE] = 2 * MIB
    """The most a frame carries of a model exchanged as tensors (bytes); 0 turns streaming off."""

    np_download_chunk_size: Annotated[int, _CHUNK_SIZE] = 2 * MIB
    """The most a frame carries of a model exchanged as arrays (bytes); 0 turns streaming off."""

    streaming_per_request_timeout: Annotated[float, Seconds()] = 600.0
    """How long one request may go unanswered (duration) before the download fails."""

    request_size: Annotated[int, Bytes(least=16, multiple_of=16)] = 64 * MIB
    """How much of a model one request asks for (bytes)."""

    window: Annotated[int, Whole(1, 64)] = 2
    """How many requests may be in flight at once."""


class Job(Section):
    """A job as resolved: every default filled in, every path absolute."""

    name: Annotated[
        str,
        Text(
            r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}",
            "at most 100 letters, digits, . _ and -, a letter or digit first",
        ),
    ]
    """The job's name, which is part of the name of its run directory."""

    seed: Annotated[int, Whole(0)] = 0
    """What all randomness starts from: the same job and seed give the same bits."""

    rounds: Annotated[int, Whole(1)]
    """How many rounds the job runs."""

    clients: Clients
    model: Model
    train: Train
    workflow: Workflow = Workflow()
    aggregation: Aggregation = Aggregation()
    streaming: Streaming = Streaming()

    _folder: Path = PrivateAttr(default_factory=Path.cwd)

    def model_post_init(self, context: Any) -> None:
        """Keep the folder that relative paths started from."""
        if context and context.get("folder"):
            self._folder = context["folder"]

    @property
    def folder(self) -> Path:
        """The folder of the job file, absolute; not a key, so equal jobs may differ in it."""
        return self._folder

    def __eq__(self, other: object) -> bool:
        """Compare the keys of two jobs, not where they were read from."""
        return isinstance(other, Job) and self.__dict__ == other.__dict__
