"""Names of the files in a run's folder ``checkpoints``."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple, Self

from flstream.telemetry.events import ModelRecord

OPTIMIZER = "optimizer"
"""Name of the body that is the server optimizer's state."""

CHANGES = "changes"
"""Name of the body with a model's changes from the one before it, as sites are sent them."""

BASE = "base"
"""Name of the body that is the base of an adapter, where it is no longer the job's."""

_END = ".safetensors"
_NAME = re.compile(
    r"round-(?P<round>[0-9]{4,18})(?:\.step-(?P<step>[0-9]{2,18}))?(?:\.(?P<body>[a-z_-]+))?"
    r"\.safetensors(?P<temporary>\.tmp)?"
)


class ModelFile(NamedTuple):
    """A file that belongs to a model of a run.

    Attributes:
        round: Round in which the model was made; 0 is the initial model.
        step: How many models its round had made before it; None for the last of the round.
        body: Which body of the model it holds; empty for the model itself.
        is_temporary: Whether it is being written.
    """

    round: int
    step: int | None = None
    body: str = ""
    is_temporary: bool = False

    @property
    def name(self) -> str:
        """Name of the file."""
        step = "" if self.step is None else f".step-{self.step:02d}"
        body = f".{self.body}" if self.body else ""
        end = ".tmp" if self.is_temporary else ""
        return f"round-{self.round:04d}{step}{body}.safetensors{end}"

    @property
    def is_model(self) -> bool:
        """Whether the file is a whole model, rather than a body beside one."""
        return not self.body and not self.is_temporary

    @classmethod
    def parse(cls, name: str) -> Self | None:
        """Parse the name of a model's file; None for a name that no run gives."""
        match = _NAME.fullmatch(name)
        if match is None:
            return None
        step = None if match["step"] is None else int(match["step"])
        file = cls(int(match["round"]), step, match["body"] or "", bool(match["temporary"]))
        # A number of any other spelling, such as round-00001, is not of a run.
        return file if file.name == name else None


def body_file(checkpoint: Path, body: str) -> Path:
    """Return the path of a body beside a model.

    Args:
        checkpoint: Path of the model.
        body: Name of the body, such as :data:`OPTIMIZER`.
    """
    return checkpoint.with_name(f"{checkpoint.name.removesuffix(_END)}.{body}{_END}")


def round_name(file: Path) -> Path:
    """Return the path of a round's last model or body, from its path with a step."""
    own = ModelFile.parse(file.name)
    assert own is not None
    return file.with_name(own._replace(step=None).name)


def bodies_beside(model: ModelRecord) -> dict[str, str]:
    """Return the digests of the bodies beside a model, by name."""
    optimizer = {OPTIMIZER: model.optimizer_state} if model.optimizer_state else {}
    changes = {CHANGES: model.changes} if model.changes else {}
    base = {BASE: model.base} if model.base else {}
    return {**model.bodies, **optimizer, **changes, **base}
