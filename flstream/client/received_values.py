"""Received values that note which of them training code reads."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from flstream.errors import ClientError

NO_MODEL = (
    "this task is to submit a model, and brings none; ask is_submit_model() first, or leave it: "
    "the last model that the site sent then counts"
)


class WatchedValues(dict[str, Any]):
    """Values by name that note which of them are read; copies are plain dicts.

    Whoever copies the values, or walks over more than their names, has read all of them. To ask
    whether there is a name reads nothing.

    Args:
        values: The values.
        read: Function called with the names of those that are read, also of some that are not
            there, and with none where code walks over the names.
    """

    def __init__(self, values: Mapping[str, Any], read: Callable[[Collection[str]], None]) -> None:
        super().__init__(values)
        self._read = read

    def __getitem__(self, name: str) -> Any:
        self._read([name])
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        """Return a value, or a default where there is none."""
        self._read([name])
        return super().get(name, default)

    def pop(self, name: str, *default: Any) -> Any:
        """Remove a value and return it, or a default where there is none."""
        self._read([name])
        return super().pop(name, *default)

    def setdefault(self, name: str, default: Any = None) -> Any:
        """Return a value, or enter a default where there is none."""
        self._read([name])
        return super().setdefault(name, default)

    def items(self) -> Any:
        """Return names and values."""
        self._read(super().keys())
        return super().items()

    def values(self) -> Any:
        """Return the values."""
        self._read(super().keys())
        return super().values()

    def keys(self) -> Any:
        """Return the names."""
        self._read(())
        return super().keys()

    def copy(self) -> dict[str, Any]:
        """Return a plain dict of the values."""
        return dict(self)

    def __or__(self, others: Any) -> Any:
        return dict(self) | others

    def __iter__(self) -> Iterator[str]:
        # Without a method of its own, dict(values) and {**values} would pass __getitem__ over.
        self._read(())
        return super().__iter__()

    def __reduce__(self) -> tuple[Any, ...]:
        return dict, (dict(self),)

    def without(self, is_left_out: Callable[[Any], bool]) -> WatchedValues:
        """Return some of the values; reading them counts as reading these.

        Args:
            is_left_out: Function that tells whether a value is not among them.
        """
        values = {name: value for name, value in super().items() if not is_left_out(value)}
        return WatchedValues(values, self._read)


def no_params(asks: Collection[str]) -> WatchedValues:
    """Return params for a task to submit a model, which refuse code that reads them.

    Args:
        asks: Kinds of task that the code has asked for so far.
    """

    def check(names: Collection[str]) -> None:
        if "submit_model" not in asks:
            raise ClientError(NO_MODEL)

    return WatchedValues({}, check)


def without_tensors(meta: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a model that are no bodies."""
    if isinstance(meta, WatchedValues):
        return meta.without(_is_body)
    return {key: value for key, value in meta.items() if not _is_body(value)}


def _is_body(value: object) -> bool:
    return isinstance(value, Mapping) and any(hasattr(item, "shape") for item in value.values())
