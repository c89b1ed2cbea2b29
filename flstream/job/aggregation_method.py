"""Names of the ways to combine updates, and how many updates they need."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from flstream.job.files import code_name

BuiltInMethod = Literal[
    "mean",
    "median",
    "trimmed_mean",
    "krum",
    "multi_krum",
    "bulyan",
    "geometric_median",
    "norm_bounded_mean",
]
"""Name of a method that comes with flstream."""

METHODS: tuple[str, ...] = get_args(BuiltInMethod)
"""The methods that come with flstream."""

WEIGHTED = ("mean", "norm_bounded_mean")
"""Those of them that weight updates; others count all alike."""

# Updates needed for f that may be Byzantine, as (a, b) of a f + b: Blanchard et al. 2017
# (arXiv:1703.02757) and El Mhamdi et al. 2018 (arXiv:1802.07927).
_NEEDED = {"krum": (2, 3), "multi_krum": (2, 3), "bulyan": (4, 3)}

CHOOSING = tuple(_NEEDED)
"""Those that choose among the updates, for a number of them that may be Byzantine."""


def least_updates(method: str, byzantine: int) -> int:
    """Return the least number of updates for a number of them that may be Byzantine."""
    factor, more = _NEEDED[method]
    return factor * byzantine + more


def most_byzantine(method: str, updates: int) -> int:
    """Return how many of the updates may be Byzantine at most; -1 if there are too few for any."""
    factor, more = _NEEDED[method]
    return max((updates - more) // factor, -1)


def is_own(method: str) -> bool:
    """Whether a method is a user's own, in a file or a module."""
    return ":" in method


MethodName = Annotated[str, *code_name("Class", lambda: METHODS)]
"""Name of a method that comes with flstream, or a class in a file or a module."""
