"""Names of values and bodies that travel beside models and updates."""

import re
from typing import Literal

MAIN = ""
"""Name of the model's own body, whose tensors keep their names."""

OptimizerState = Literal["reset", "local"]
"""What an optimizer begins a training with: a new state, or its site's last one."""

PROXIMAL_MU = "fedprox_mu"
"""The weight of FedProx's term."""

DITTO_LAMBDA = "ditto_lambda"
"""The same, for a model of the site's own."""

FEDDYN_ALPHA = "feddyn_alpha"
"""The weight of FedDyn's regulariser."""

PERSONAL = "personal"
"""Patterns of the names of tensors that stay with their site."""

CONTROL = "control"
"""SCAFFOLD's control variates: those of the server, and a site's part of the next ones."""

RESIDUAL = "residual"
"""Factors of what the mean of adapters leaves, which the base adds: a body of the server's own."""

NUM_STEPS = "NUM_STEPS_CURRENT_ROUND"
"""The number of steps of a training in the ``meta`` of its answer, as in NVFlare."""

INNER_STEPS = "inner_steps"
"""The number of inner steps of a segment."""

KEEPS_MOMENTS = "keeps_moments"
"""Whether a site keeps its optimizer's state that was left out of segments, or failed there."""

LATE_STEP = "late_step"
"""The step of a segment, from 1, before which tensors are received that its model came without."""

LATE_ALPHA = "alpha"
"""How much of a site's own values stays then, from 0 to 1."""

RESERVED_NAMES = frozenset(
    {
        "at",
        "base",
        "changes",
        "num_examples",
        "optimizer",
        "partial",
        "personal",
        "rule",
        "site_name",
        "step",
        "task",
        "tensors",
    }
)
"""Names that a body may not have: a file's, a value's in the ``meta`` of models and answers, or an
argument's of ``run.fold``."""

_NAME = re.compile(r"[a-z_]+")


def is_body_name(name: str) -> bool:
    """Return whether a body beside a model may have this name."""
    return _NAME.fullmatch(name) is not None and name not in RESERVED_NAMES
