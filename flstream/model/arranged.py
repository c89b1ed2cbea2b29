"""A body in the canonical order of its tensors, read from a source in any other order."""

from __future__ import annotations

from flstream.model.body import Scratch, Source
from flstream.model.copy import scatter
from flstream.model.formats.file import read_parts
from flstream.model.header import TensorInfo
from flstream.model.layout import Layout


class Arranged:
    """A source derived from another: the same tensors, as :meth:`Layout.of` orders them.

    Of tied names the first in alphabetical order stands for the tensor. Empty tensors share no
    bytes, so ties between them are dropped.

    Args:
        source: Source with random access. Threads must not read it through this one at once.
    """

    random_access = True
    lendable = False
    extent = None
    changed = None
    deliver = None

    def __init__(self, source: Source) -> None:
        self._source = source
        self._scratch = Scratch()
        self._origins: dict[str, TensorInfo] = {}
        names: dict[str, list[str]] = {spec.name: [spec.name] for spec in source.layout.tensors}
        for alias, name in source.layout.aliases.items():
            names[name].append(alias)
        ties = {}
        for spec in source.layout.tensors:
            first, *others = sorted(names[spec.name])
            self._origins[first] = spec
            if spec.nbytes:
                ties.update(dict.fromkeys(others, first))
            else:
                self._origins.update(dict.fromkeys(others, spec))
        self.layout = Layout.of(
            ((name, spec.dtype, spec.shape) for name, spec in self._origins.items()), ties
        )

    def views(self, start: int, stop: int, scratch: Scratch) -> list[memoryview]:
        """Return the bytes ``[start, stop)``, gathered into ``scratch``."""
        return read_parts(self.layout, start, stop, scratch, self._read)

    def _read(self, spec: TensorInfo, view: memoryview, offset: int) -> None:
        start = self._origins[spec.name].start + offset
        scatter(self._source.views(start, start + len(view), self._scratch), [view])
