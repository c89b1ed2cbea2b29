"""Condition of `stop_when`: a comparison of a metric with a number."""

import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Annotated, NamedTuple

from pydantic import AfterValidator

from flstream.job.fields import Allowed, read_number

_COMPARE: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_OPERATORS = " ".join(_COMPARE)

_FORM = re.compile(r"\s*([^\s<>=]+)\s*([<>]=?)\s*([^\s<>=]+)\s*")


class Condition(NamedTuple):
    """Condition on a metric; `read_condition` reads its `str()` as the same condition."""

    metric: str
    """Name of the metric."""
    operator: str
    """Comparison: one of `>=`, `<=`, `>`, `<`."""
    number: float
    """Finite number that the metric is compared with."""

    def holds(self, value: float) -> bool:
        """Return whether a value of the metric meets the condition; NaN never does."""
        return _COMPARE[self.operator](value, self.number)

    def __str__(self) -> str:
        """Return the condition in its canonical form: `accuracy >= 0.97`."""
        return f"{self.metric} {self.bound}"

    @property
    def bound(self) -> str:
        """Condition without its metric: `>= 0.97`."""
        return f"{self.operator} {repr(self.number).removesuffix('.0')}"


def read_condition(text: str) -> Condition:
    """Read `<metric> <operator> <number>`; the spaces are optional.

    A metric's name may hold anything but spaces and the signs `<`, `>` and `=`.

    Raises:
        ValueError: It is not a condition; the message says what is wrong if that is its number.
    """
    parts = _FORM.fullmatch(text)
    if parts is None:
        raise ValueError("")  # the words of the type say all
    metric, comparison, written = parts.groups()
    number = read_number(written)
    if isinstance(number, str) or not math.isfinite(number):
        raise ValueError(f"{written} is no finite number")
    return Condition(metric, comparison, float(number))


def _canonical(text: str) -> str:
    return str(read_condition(text))


StopCondition = Annotated[
    str,
    AfterValidator(_canonical),
    Allowed(f'a metric, one of {_OPERATORS} and a number, such as "accuracy >= 0.97"'),
]
"""A condition on a metric, kept as text in its canonical form."""
