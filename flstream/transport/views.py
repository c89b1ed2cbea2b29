"""Cutting lists of memoryviews that stand for consecutive bytes."""

from __future__ import annotations

from collections.abc import Sequence


def advance(views: Sequence[memoryview], count: int) -> list[memoryview]:
    """Return what is left of the views after their first ``count`` bytes."""
    return split(views, count)[1]


def split(views: Sequence[memoryview], count: int) -> tuple[list[memoryview], list[memoryview]]:
    """Return the first ``count`` bytes of the views, and the rest."""
    index = 0
    while index < len(views) and count >= len(views[index]):
        count -= len(views[index])
        index += 1
    first, rest = list(views[:index]), list(views[index:])
    if count:
        first.append(rest[0][:count])
        rest[0] = rest[0][count:]
    return first, rest


def part_of(views: Sequence[memoryview], start: int, stop: int) -> Sequence[memoryview]:
    """Return the bytes ``[start, stop)`` of the views."""
    if start == 0 and stop == sum(map(len, views)):
        return views
    return split(advance(views, start), stop - start)[0]
