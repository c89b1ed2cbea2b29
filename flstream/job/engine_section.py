"""Section of the job file that says which machines the workers are on."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationInfo, field_validator

from flstream.job.problems import MISSING, Problem
from flstream.job.rules import Choice, Seconds, Text, ValueRule, Whole, refuse
from flstream.job.section import Section

ENGINES = ("local", "join")


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
        return folder / Path(value).expanduser()


class EngineSection(Section):
    """Which machines the workers are on. Models are the same, bit for bit, on all of them."""

    type: Annotated[Literal["local", "join"], Choice(ENGINES)] = "local"
    """Where workers run: local (this machine), or join (wherever `flstream join` is run).

    With join, each node runs `flstream join HOST:PORT --key-file FILE`, by hand, ssh or srun.
    """

    bind: Annotated[
        str | None, Text(r"\S{1,250}:\d{1,5}", "HOST:PORT, an address of this machine")
    ] = Field(default=None, validate_default=True)
    """The address at which nodes join, `HOST:PORT`; port 0 is a free one."""

    key_file: Annotated[Path | None, NewPath()] = Field(default=None, validate_default=True)
    """The file with the key that nodes need to join: made by the run, and removed at its end."""

    nodes: Annotated[int, Whole(1, 1000)] = 1
    """How many nodes have to join before the run begins; those that join later are used, too."""

    wait: Annotated[float, Seconds()] = 60.0
    """How long nodes are waited for (duration): at the beginning, and if none is left."""

    @field_validator("bind", "key_file")
    @classmethod
    def _given_where_nodes_join(cls, value: Any, info: ValidationInfo) -> Any:
        # A type that was refused is not in info.data: that mistake is reported already.
        if value is None and info.data.get("type") == "join":
            raise refuse(Problem("", MISSING, "given where engine.type is join"))
        return value
