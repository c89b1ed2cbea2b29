"""Cases that cover pairs of values, chosen greedily."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import combinations, product

Case = tuple[object, ...]
Pair = tuple[tuple[int, object], tuple[int, object]]


def pairwise(
    first: Sequence[object], others: Sequence[Sequence[object]], allowed: Callable[[Case], bool]
) -> Iterator[Case]:
    """Yield cases in which each value of the first dimension meets each that it can occur with.

    Other pairs come along, or do not, which :func:`lacking` tells.

    Args:
        first: Values of the dimension with the most of them, in whose order the cases come.
        others: Values of each other dimension.
        allowed: Whether there is such a case at all.
    """
    possible: Mapping[object, list[Case]] = {
        value: [case for rest in product(*others) if allowed(case := (value, *rest))]
        for value in first
    }
    missing = {pair for cases in possible.values() for case in cases for pair in pairs_of(case)}
    for cases in possible.values():
        own = {pair for case in cases for pair in pairs_of(case) if pair[0][0] == 0}
        while own & missing:
            case = max(cases, key=lambda case: len(pairs_of(case) & missing))
            missing -= pairs_of(case)
            yield case


def lacking(
    cases: Iterable[Case], dimensions: Iterable[Iterable[object]], allowed: Callable[[Case], bool]
) -> frozenset[Pair]:
    """Pairs of values that can occur together and that no case covers."""
    possible = {pair for case in product(*dimensions) if allowed(case) for pair in pairs_of(case)}
    return frozenset(possible.difference(*map(pairs_of, cases)))


def pairs_of(case: Case) -> frozenset[Pair]:
    """The pairs of values that a case covers, each value with its dimension."""
    return frozenset(combinations(enumerate(case), 2))
