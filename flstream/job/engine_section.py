"""Section of the job file that says which machines the workers are on."""

from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, PlainSerializer, PlainValidator, ValidationInfo

from flstream.job.fields import Allowed, Flag, Real, Seconds, Section, Whole, folder_of
from flstream.job.files import check_installed

Engine = Literal["local", "inline", "join", "ray"]
"""What workers come from."""


def _is_installed(name: str) -> str:
    if name == "ray":
        check_installed(name, "ray", "pip install 'flstream[ray]'")
    return name


def _absolute(value: Any, info: ValidationInfo) -> Path:
    """Return the absolute path of a file that need not exist."""
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError("")  # the words of the type say all
    try:
        return folder_of(info) / Path(value).expanduser()
    except RuntimeError:  # of a user that there is not
        raise ValueError("") from None


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
_Address = Annotated[
    str,
    Field(pattern=r"^\S{1,250}:\d{1,5}$"),
    AfterValidator(_with_port),
    Allowed("HOST:PORT, an address of this machine"),
]
_NewFile = Annotated[
    Path, PlainValidator(_absolute), PlainSerializer(str), Allowed("the path of a file")
]


class EngineSection(Section):
    """Machines of the workers, whose kind changes no bit of a model."""

    type: Annotated[Engine, AfterValidator(_is_installed)] = "local"
    """Where workers run: local (this machine), inline, join (where `flstream join` is run), or ray.

    With inline, all is in one process, one site after another: for `breakpoint()` in training code,
    workflows and aggregators ([debugging.md](debugging.md)). Nothing of time is limited there.

    With join, each node runs `flstream join HOST:PORT --key-file FILE`, by hand, ssh or srun. With
    ray, an actor on each node of a Ray cluster does; ray needs the extra `flstream[ray]`.
    """

    address: _Head | None = None
    """The Ray cluster, `HOST:PORT`; null is the one of this machine, or a new one."""

    bind: _Address | None = None
    """The address at which nodes join, `HOST:PORT`; port 0 is a free one.

    With ray, null is a free port of the address that this machine has in the cluster.
    """

    key_file: _NewFile | None = None
    """The file with the key that nodes need to join: made by the run, and removed at its end."""

    nodes: Annotated[Whole, Field(ge=1, le=1000)] | None = None
    """How many nodes have to join before the run begins; null is one, or all that Ray has.

    Those that join later are used, too.
    """

    cpus: Annotated[Real, Field(gt=0)] = 1.0
    """How many CPUs of a Ray cluster each worker takes, which is how many a node has room for."""

    wait: Seconds = 60.0
    """How long nodes are waited for (duration): at the beginning, and if none is left."""

    gpus: Annotated[Whole, Field(ge=0, le=64)] | None = None
    """How many whole GPUs each worker gets; null leaves all of its machine visible to it.

    A worker sees its own alone, and with 0 none. `flare.device()` says which is to be used.
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
