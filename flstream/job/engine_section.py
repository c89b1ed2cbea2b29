"""Section of the job file that says which machines the workers are on."""

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from flstream.job.fields import Allowed, Flag, FreeArgs, Real, Seconds, Section, Whole
from flstream.job.files import needs

Engine = Literal["local", "inline", "ray"]
"""What workers come from."""

_NEEDED = {"ray": ("ray", "pip install 'flstream[ray]'")}


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

    type: Annotated[Engine, needs(_NEEDED.get)] = "local"
    """Where workers run: local (this machine), inline, or ray (the nodes of a Ray cluster).

    With inline, all is in one process, one site after another: for `breakpoint()` in training code,
    workflows and aggregators ([debugging.md](debugging.md)). Nothing of time is limited there.

    With ray, the run directory is on a folder that all nodes see; it needs the extra
    `flstream[ray]`.
    """

    address: _Head | None = None
    """The Ray cluster, `HOST:PORT`; null is the one of this machine, or a new one."""

    cpus: Annotated[Real, Field(gt=0)] = 1.0
    """How many CPUs of a Ray cluster each worker takes, which is how many a node has room for."""

    wait: Seconds = 60.0
    """How long a run waits for nodes (duration): for all at the beginning, and if none is left.

    It begins with those that are ready then; others are used once they are.
    """

    gpus: Annotated[Whole, Field(ge=0, le=64)] | None = None
    """How many whole GPUs each worker gets; null leaves all of its machine visible to it.

    A worker sees its own alone, and with 0 none. `flare.device()` says which is to be used.
    """

    runtime_env: FreeArgs = Field(default_factory=dict)
    """What else Ray brings to the nodes, as its `runtime_env` has it: pip, env_vars, excludes, ...

    The job's folder is its `working_dir`; [cluster.md](cluster.md) says what of it stays behind.
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
