"""Filters that can be added to a recipe or a job, under NVFlare's names.

``flstream.job.filters`` defines what each does, and the range of its arguments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any, ClassVar, Literal

from flstream.errors import UsageError
from flstream.job.filters import EXCLUDE_VARS, GAUSSIAN, PERCENTILE, SVT
from flstream.recipe.checks import checked_arguments

Direction = Literal["up", "down"]


class FilterType(StrEnum):
    """What a filter is applied to: models that sites receive, or what they answer."""

    TASK_DATA = "task_data"
    TASK_RESULT = "task_result"


@checked_arguments
@dataclass(frozen=True)
class PercentilePrivacy:
    """Share of the largest changes alone, each bounded (Shokri and Shmatikov 2015).

    Attributes:
        percentile: Percentile of the absolute changes below which a number does not change.
        gamma: The most that a number changes in a step.
    """

    percentile: float = 10
    gamma: float = 0.01
    type: ClassVar[str] = PERCENTILE


@checked_arguments
@dataclass(frozen=True)
class SVTPrivacy:
    """Share of a noisy choice of changes, with noise (Li et al. 2019, arXiv:1910.00962).

    Attributes:
        fraction: Fraction of the numbers that is shared.
        epsilon: Budget of the choice.
        noise_var: Budget of the shared values.
        gamma: The most that a number changes in a step.
        tau: Absolute change from which on a number is likely to be shared.
    """

    fraction: float = 0.1
    epsilon: float = 0.1
    noise_var: float = 0.1
    gamma: float = 1e-5
    tau: float = 1e-6
    type: ClassVar[str] = SVT


@checked_arguments
@dataclass(frozen=True)
class ExcludeVars:
    """Tensors that are left out.

    Attributes:
        exclude_vars: Whole names, or one regular expression that is found in names.
    """

    exclude_vars: list[str] | str
    type: ClassVar[str] = EXCLUDE_VARS


@checked_arguments
@dataclass(frozen=True)
class Gaussian:
    """Gaussian noise on every number, which NVFlare has not.

    Attributes:
        sigma: Standard deviation of the noise.
    """

    sigma: float
    type: ClassVar[str] = GAUSSIAN


BuiltInFilter = PercentilePrivacy | SVTPrivacy | ExcludeVars | Gaussian
"""A filter that comes with flstream."""


def filter_section(given: Any) -> dict[str, Any]:
    """Return the section that stands for a filter in a job file.

    Args:
        given: A built-in filter; or one of a job file: its name, or its section.

    Raises:
        UsageError: It is something else.
    """
    if isinstance(given, BuiltInFilter):
        return {"type": given.type, "args": asdict(given)}
    if isinstance(given, str):
        return {"type": given}
    if not isinstance(given, Mapping):
        kind = type(given)
        raise UsageError(
            f"a {kind.__module__}.{kind.__qualname__} is no filter here; give one of "
            'flstream.recipe, or your own as {"type": "mine.py:Filter"}'
        )
    return dict(given)


def check_use(tasks: Sequence[str] | None, clients: Sequence[str] | None = None) -> None:
    """Refuse a filter that is for some sites alone, or not for trainings.

    Raises:
        UsageError: The sentence says what there is instead.
    """
    if clients is not None:
        raise UsageError(
            "a filter was given for single clients; a job's filters are those of all sites, so "
            "leave out clients"
        )
    if tasks is not None and not {"train", "*"} & set(tasks):
        raise UsageError(
            f"a filter was given for the tasks {', '.join(tasks)}; filters are for trainings, so "
            "leave out tasks"
        )
