"""Section of the job file that says which machines the workers are on."""

import importlib.util
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from flstream.job.problems import MISSING, Problem
from flstream.job.rules import Choice, Real, Seconds, Text, ValueRule, Whole, refuse
from flstream.job.section import Section

ENGINES = ("local", "join", "ray")


@dataclass(frozen=True)
class EngineType(Choice):
    """Name of an engine whose libraries are installed."""

    def parse(self, value: Any, folder: Path) -> str:
        """Return the name."""
        name = super().parse(value, folder)
        if name == "ray" and importlib.util.find_spec("ray") is None:
            missing = "given ray, and there is no module ray"
            raise refuse(Problem("", missing, "", "install it: pip install 'flstream[ray]'"))
        return name


@dataclass(frozen=True)
class NewPath(ValueRule):
    """The path of a file that need not exist; resolves to an absolute path."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return "the path of a file"

    def parse(self, value: Any, folder: Path) -> Path:
        """Return the absolute path."""
        if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
            raise self.refused(value)
        try:
            return folder / Path(value).expanduser()
        except RuntimeError:  # of a user that there is not
            raise self.refused(value) from None


class EngineSection(Section):
    """Which machines the workers are on. Models are the same, bit for bit, on all of them."""

    type: Annotated[Literal["local", "join", "ray"], EngineType(ENGINES)] = "local"
    """Where workers run: local (this machine), join (where `flstream join` is run), or ray.

    With join, each node runs `flstream join HOST:PORT --key-file FILE`, by hand, ssh or srun. With
    ray, an actor on each node of a Ray cluster does; ray needs the extra `flstream[ray]`.
    """

    address: Annotated[str | None, Text(r"\S{1,250}", "HOST:PORT of a Ray cluster's head")] = None
    """The Ray cluster, `HOST:PORT`; null is the one of this machine, or a new one."""

    bind: Annotated[
        str | None, Text(r"\S{1,250}:\d{1,5}", "HOST:PORT, an address of this machine")
    ] = Field(default=None, validate_default=True)
    """The address at which nodes join, `HOST:PORT`; port 0 is a free one.

    With ray, null is a free port of the address that this machine has in the cluster.
    """

    key_file: Annotated[Path | None, NewPath()] = Field(default=None, validate_default=True)
    """The file with the key that nodes need to join: made by the run, and removed at its end."""

    nodes: Annotated[int | None, Whole(1, 1000)] = None
    """How many nodes have to join before the run begins; null is one, or all that Ray has.

    Those that join later are used, too.
    """

    cpus: Annotated[float, Real(0, above_least=True)] = 1.0
    """How many CPUs of a Ray cluster each worker takes, which is how many a node has room for."""

    wait: Annotated[float, Seconds()] = 60.0
    """How long nodes are waited for (duration): at the beginning, and if none is left."""

    gpus: Annotated[int | None, Whole(0, 64)] = None
    """How many whole GPUs each worker gets; null leaves all of its machine visible to it.

    A worker sees its own alone, and with 0 none. `flare.device()` says which is to be used.
    """

    @field_validator("bind", "key_file")
    @classmethod
    def _given_where_nodes_join(cls, value: Any, info: ValidationInfo) -> Any:
        # A type that was refused is not in info.data: that mistake is reported already.
        if value is None and info.data.get("type") == "join":
            raise refuse(Problem("", MISSING, "given where engine.type is join"))
        return value

    @property
    def is_local(self) -> bool:
        """Whether all workers are on the launcher's machine."""
        return self.type == "local"
