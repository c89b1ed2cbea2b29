"""The weight of an answer: the number of examples that a site gives, and what is taken for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from flstream.client.number import no_number, number_of
from flstream.errors import ClientError

LEAST_WEIGHT, MOST_WEIGHT = 1e-15, 1e15
"""The weights that an answer may have.

Up to the largest, a number of examples is exact in float64. A sum of a million of them is finite,
and so is that of their products with values of any type but float64.
"""

_KEYS = ("num_examples", "NUM_STEPS_CURRENT_ROUND")


def is_weight(weight: float) -> bool:
    """Whether a number may be the weight of an answer; NaN may not."""
    return LEAST_WEIGHT <= weight <= MOST_WEIGHT


def weight_of(meta: Mapping[str, Any]) -> float:
    """Return the weight that the meta of an answer gives: its number of examples, or else 1.0.

    Raises:
        ClientError: It is no number, or not between :data:`LEAST_WEIGHT` and :data:`MOST_WEIGHT`;
            the message names the key.
    """
    key = next((each for each in _KEYS if each in meta), None)
    if key is None:
        return 1.0
    value = meta[key]
    # A bool is a condition, most likely, and no count.
    weight = None if isinstance(value, bool | np.bool_) else number_of(value)
    if weight is None:
        raise ClientError(f"meta[{key!r}] is {no_number(value)}; send the number of examples")
    if not is_weight(weight):
        raise ClientError(
            f"meta[{key!r}] is {weight:g}, and an update's weight is a number from "
            f"{LEAST_WEIGHT:g} to {MOST_WEIGHT:g}; send the number of examples"
        )
    return weight
