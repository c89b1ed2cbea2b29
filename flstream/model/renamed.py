"""A body whose tensors have other names."""

from __future__ import annotations

from collections.abc import Mapping

from flstream.model.body import Scratch, Source
from flstream.model.layout import Layout


class Renamed:
    """A source derived from another: the same bytes in the same order, under other names.

    Args:
        source: Source with random access.
        names: New name of each tensor, by its own. Tied names are left out.
    """

    random_access = True
    lendable = False
    extent = None
    changed = None
    deliver = None

    def __init__(self, source: Source, names: Mapping[str, str]) -> None:
        self._source = source
        self.layout = Layout(spec._replace(name=names[spec.name]) for spec in source.layout.tensors)

    def views(self, start: int, stop: int, scratch: Scratch) -> list[memoryview]:
        """Return the bytes ``[start, stop)``, as the other source has them."""
        return list(self._source.views(start, stop, scratch))
