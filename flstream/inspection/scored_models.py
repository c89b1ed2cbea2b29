"""How many models the sites of a run have scored, going by what the workflow has written."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from flstream.errors import CheckpointError

_MOST_BYTES = 64 << 20


class ScoredModels(NamedTuple):
    """What sites have scored, each for itself.

    Attributes:
        sites: number of sites that have scored a model.
        models: number of models that a site has scored.
    """

    sites: int
    models: int


def read_scored_models(path: Path) -> ScoredModels | None:
    """Count what a file with the results of a cross-site evaluation has; None without a file.

    Raises:
        CheckpointError: It cannot be read, or is none.
    """
    try:
        with path.open("rb") as file:
            found = msgspec.json.decode(file.read(_MOST_BYTES), type=dict[str, dict[str, Any]])
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise CheckpointError(
            f"{path} cannot be read: {error}; remove it or put it back"
        ) from error
    scored = [owners for owners in found.values() if owners]
    return ScoredModels(len(scored), len({owner for owners in scored for owner in owners}))
