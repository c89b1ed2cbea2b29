"""Params of a task to submit a model, which brings none."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Any

from flstream.errors import ClientError
from flstream.worker.messages import SUBMIT_MODEL

NO_MODEL = (
    "this task is to submit a model, and brings none; ask is_submit_model() first, or leave it: "
    "the last model that the site sent then counts"
)


class NoParams(dict[str, Any]):
    """Params of a task to submit a model; code that reads them takes it for another task.

    Args:
        asks: Kinds of task that the code has asked for so far.
    """

    def __init__(self, asks: Collection[str]) -> None:
        super().__init__()
        self._asks = asks

    def _check(self) -> None:
        if SUBMIT_MODEL not in self._asks:
            raise ClientError(NO_MODEL)

    def __getitem__(self, name: str) -> Any:
        self._check()
        return super().__getitem__(name)

    def __iter__(self) -> Iterator[str]:
        self._check()
        return super().__iter__()

    def get(self, name: str, default: Any = None) -> Any:
        """Return a default."""
        self._check()
        return default

    def keys(self) -> Any:
        """Return no names."""
        self._check()
        return super().keys()

    def values(self) -> Any:
        """Return no tensors."""
        self._check()
        return super().values()

    def items(self) -> Any:
        """Return no names and tensors."""
        self._check()
        return super().items()
