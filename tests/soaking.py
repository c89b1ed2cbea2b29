"""Cases of which a few are run each time, and all where there is time."""

from collections.abc import Iterable
from typing import Any

import pytest


def soaking(cases: Iterable[Any], brief: int = 1) -> list[Any]:
    """Return the cases for ``parametrize``, all but the first few of them marked as soak tests.

    Args:
        cases: A value each, or a tuple of several.
        brief: How many are not marked.
    """
    return [
        case
        if number < brief
        else pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.soak)
        for number, case in enumerate(cases)
    ]
