"""What travels and is folded beside a job's models: bodies of workflows and of optimizers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from flstream.job.stage import Stage
    from flstream.job.train_section import TrainSection

BodyKind = Literal["zeros", "scalars"]
"""What a body begins with: a zero for each float of the model, or one for each tensor of floats."""

OptimizerState = Literal["reset", "local", "global"]
"""What an optimizer begins a training with: a new state, its site's last one, or the mean."""

OPTIMIZER_STEPS = "optimizer_steps"
"""Name of the body that has the counts of steps of the sites' optimizers."""

RESERVED_NAMES = frozenset(
    {"optimizer", "num_examples", "partial", "personal", "site_name", "task"}
)
"""Names that a body may not have: a file's, or a value's in the ``meta`` of models and answers."""

BODY_NAME = re.compile(r"[a-z_]+")
"""What the name of a body looks like."""


def is_body_name(name: str) -> bool:
    """Whether a body beside a model may have this name."""
    return BODY_NAME.fullmatch(name) is not None and name not in RESERVED_NAMES


def optimizer_bodies(train: TrainSection) -> dict[str, BodyKind]:
    """Bodies of ``train.optimizer_state = global`` by name; none for other values."""
    if train.optimizer_state != "global":
        return {}
    moments: dict[str, BodyKind] = dict.fromkeys(train.optimizer_moments, "zeros")
    return moments | {OPTIMIZER_STEPS: "scalars"}


def stage_bodies(stage: Stage, train: TrainSection) -> dict[str, BodyKind]:
    """All bodies that travel with the models of a workflow, by name."""
    own: dict[str, BodyKind] = dict.fromkeys(stage.args.bodies, "zeros")
    return optimizer_bodies(train) | own


def senders(stages: Iterable[Stage], train: TrainSection | None) -> Iterator[str]:
    """Yield what has tensors sent beside the model, in words that follow "in"."""
    for stage in stages:
        if stage.args.bodies:
            yield stage.name
    if train is not None and optimizer_bodies(train):
        yield "a job whose train.optimizer_state is global"
