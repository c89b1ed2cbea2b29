"""Received values that remember which of them training code has read."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


class WatchedValues(dict[str, Any]):
    """Values by name that remember which of them were read; copies are plain dicts.

    Whoever copies the values, or walks over more than their names, has read all of them. To ask
    whether there is a name reads nothing.

    Args:
        values: The values.
        read: Set to take the names of those that are read; None for a new one.

    Attributes:
        read: Names that were read, also of values that are not there.
    """

    def __init__(self, values: Mapping[str, Any], read: set[str] | None = None) -> None:
        super().__init__(values)
        self.read: set[str] = set() if read is None else read

    def __getitem__(self, name: str) -> Any:
        self.read.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or a default where there is none."""
        self.read.add(name)
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        """Remove a value and return it, or a default where there is none."""
        self.read.add(name)
        return super().pop(name, *default)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Return a value, or enter a default where there is none."""
        self.read.add(name)
        return super().setdefault(name, default)

    def items(self) -> Any:
        """Return names and values."""
        self.read.update(self)
        return super().items()

    def values(self) -> Any:
        """Return the values."""
        self.read.update(self)
        return super().values()

    def copy(self) -> dict[str, Any]:
        """Return a plain dict of the values."""
        return dict(self)

    def __or__(self, others: Any) -> Any:
        return dict(self) | others

    def __iter__(self) -> Iterator[str]:
        # Without a method of its own, dict(values) and {**values} would pass __getitem__ over.
        return super().__iter__()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def without(self, is_left_out: Callable[[Any], bool]) -> WatchedValues:
        """Return some of the values, of which reading counts as it does here.

        Args:
            is_left_out: Function that tells whether a value is not among them.
        """
        values = {name: value for name, value in super().items() if not is_left_out(value)}
        return WatchedValues(values, self.read)
