"""What each site of a run has found of each model, as a workflow has written it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

Matrix = Mapping[str, Mapping[str, Mapping[str, float | None]]]
"""Metrics by the site that scored and the model's owner."""

_MOST_BYTES = 64 << 20


def read_cross_site(path: Path) -> Matrix:
    """Read the results of a cross-site evaluation.

    Args:
        path: The file.

    Returns:
        The metrics; none where there is no file, or where it is not what the workflow writes.
    """
    try:
        with path.open("rb") as file:
            kind = dict[str, dict[str, dict[str, float | None]]]
            return msgspec.json.decode(file.read(_MOST_BYTES), type=kind)
    except (OSError, ValueError):
        return {}
