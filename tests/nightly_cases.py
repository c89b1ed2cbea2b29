"""Cases of which a few are run each time, and all where there is time."""

from collections.abc import Iterable, Sequence
from typing import Any

import pytest


def first_and_nightly(
    names: str | Sequence[str], cases: Iterable[Any], *, brief: int = 1, **options: Any
) -> pytest.MarkDecorator:
    """Parametrize a test, and leave all cases but the first few to `make test-nightly`.

    Args:
        names: Names of the arguments, as for ``pytest.mark.parametrize``.
        cases: A value each, a tuple of values where there are several names, or a
            ``pytest.param`` of either.
        brief: How many cases run each time.
        options: What else ``pytest.mark.parametrize`` takes.
    """
    marked = []
    for number, case in enumerate(cases):
        if not isinstance(case, type(pytest.param())):
            several = not isinstance(names, str) or "," in names
            case = pytest.param(*(case if several else (case,)))
        marks = () if number < brief else pytest.mark.nightly
        marked.append(pytest.param(*case.values, marks=marks, id=case.id))
    return pytest.mark.parametrize(names, marked, **options)
