"""Names of the ways to combine updates, and how many updates they need."""

from __future__ import annotations

import inspect
from typing import Annotated, Any, Literal, NamedTuple, get_args

from flstream.job.files import CodeName
from flstream.job.own_code import import_named
from flstream.job.problems import Problem, RefusedValueError, given

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


MethodName = Annotated[str, CodeName("Class", lambda: METHODS)]
"""Name of a method that comes with flstream, or a class in a file or a module."""


class OwnRuleCode(NamedTuple):
    """Class of a user's own rule, imported and checked.

    Attributes:
        make: The class.
        folds: Whether its objects have a method ``fold``.
        weighs: Whether they have a method ``weigh``.
    """

    make: Any
    folds: bool
    weighs: bool


def find_own_rule(method: str) -> OwnRuleCode:
    """Import the class of a user's own rule, unless this process has it already.

    Args:
        method: Place of the class, as `MethodName` resolves it.

    Raises:
        RefusedValueError: It cannot be imported, or is not a rule.
    """
    found = import_named(method, method, "class")
    if not isinstance(found, type):
        raise _no_rule(method, f"it is of the type {type(found).__name__}")
    methods = {name: getattr(found, name, None) for name in ("fold", "weigh")}
    there = {name: each for name, each in methods.items() if each is not None}
    if not there:
        raise _no_rule(method, f"{found.__name__} has neither")
    for name, each in there.items():
        if not callable(each):
            raise _no_rule(method, f"its {name} is not a method")
        try:
            inspect.signature(each).bind("self", "first", "weights")
        except TypeError as error:
            raise _no_rule(method, f"its {name} takes {inspect.signature(each)}") from error
    return OwnRuleCode(found, "fold" in there, "weigh" in there)


def _no_rule(method: str, hint: str) -> RefusedValueError:
    allowed = "a class with a method fold(values, weights) or weigh(gram, weights), or both"
    return RefusedValueError(Problem("", given(method), allowed, hint))


def checked_method(method: str) -> str:
    """Return the name of a method, after an import of the class where it is a user's own."""
    if is_own(method):
        find_own_rule(method)
    return method
