"""Names of what travels and is folded beside a job's models."""

import re
from typing import Literal

OptimizerState = Literal["reset", "local"]
"""What an optimizer begins a training with: a new state, or its site's last one."""

RESERVED_NAMES = frozenset(
    {"optimizer", "num_examples", "partial", "personal", "site_name", "task"}
)
"""Names that a body may not have: a file's, or a value's in the ``meta`` of models and answers."""

_NAME = re.compile(r"[a-z_]+")


def is_body_name(name: str) -> bool:
    """Whether a body beside a model may have this name."""
    return _NAME.fullmatch(name) is not None and name not in RESERVED_NAMES
