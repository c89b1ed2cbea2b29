"""Body of tensors of other sources, without copies of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Generic, TypeVar

import msgspec

from flstream.model.layout import Layout, TensorInfo
from flstream.model.source import Source, change_of, in_place

PartT = TypeVar("PartT")
Place = tuple[Source, TensorInfo]
"""A source, and one of its tensors."""


class Segment(msgspec.Struct, Generic[PartT], gc=False):
    """Range of a body that is one range of a part of the body."""

    start: int  # in the body, in bytes
    stop: int
    part: PartT
    offset: int  # of its first byte in the part


class Segments(Generic[PartT]):
    """Segments of a body, in order: each tensor's part, and its offset there."""

    def __init__(self, tensors: Iterable[tuple[TensorInfo, PartT, int]]) -> None:
        self._all: list[Segment[PartT]] = []
        last = None
        for spec, part, offset in tensors:
            if not spec.nbytes:
                continue
            if (
                last is not None
                and last.part is part
                and last.stop == spec.start
                and last.offset + last.stop - last.start == offset
            ):
                last.stop = spec.stop
            else:
                last = Segment(spec.start, spec.stop, part, offset)
                self._all.append(last)

    def cut(self, start: int, stop: int) -> Iterator[Segment[PartT]]:
        """Yield the segments in ``[start, stop)``, cut at its ends."""
        first_index = bisect_right(self._all, start, key=lambda segment: segment.start) - 1
        for index in range(max(first_index, 0), len(self._all)):
            segment = self._all[index]
            first, last = max(segment.start, start), min(segment.stop, stop)
            if segment.start >= stop:
                return
            if last - first == segment.stop - segment.start:
                yield segment
            elif first < last:
                yield Segment(first, last, segment.part, segment.offset + first - segment.start)

    @property
    def parts(self) -> list[PartT]:
        """The parts, each once."""
        return list({id(segment.part): segment.part for segment in self._all}.values())


class ComposedSource:
    """Source of tensors of one or several sources, at places of its own."""

    def __init__(self, layout: Layout, places: Mapping[str, Place]) -> None:
        self.layout = layout
        parts = ((spec, *places[spec.name]) for spec in layout.tensors)
        self._segments: Segments[Any] = Segments((s, part, at.start) for s, part, at in parts)

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Read the bytes ``[start, stop)``, each segment from its source."""
        for at in self._segments.cut(start, stop):
            view = into[at.start - start : at.stop - start]
            at.part.read(at.offset, at.offset + len(view), view)

    def in_place(self, start: int, stop: int) -> list[memoryview] | None:
        """Return the bytes ``[start, stop)`` in place; None unless all are in memory."""
        views: list[memoryview] = []
        for at in self._segments.cut(start, stop):
            own = in_place(at.part, at.offset, at.offset + at.stop - at.start)
            if own is None:
                return None
            views += own
        return views

    def changed(self) -> str | None:
        """Return the sentence of the first source that has changed, if any."""
        return next((flaw for flaw in map(change_of, self._segments.parts) if flaw), None)


def composed(places: Mapping[str, Place], ties: Mapping[str, str] | None = None) -> ComposedSource:
    """Compose tensors in the order of :meth:`Layout.of`.

    Args:
        places: The place of each tensor, by the name that it gets.
        ties: Names of tensors by their further names.

    Raises:
        LayoutError: A name cannot be written into a header.
    """
    entries = ((name, info.dtype, info.shape) for name, (_, info) in places.items())
    return ComposedSource(Layout.of(entries, ties), places)


def part_of(source: Source, names: Collection[str]) -> Source:
    """Return the tensors of some names of a source; the source itself if these are all."""
    layout = source.layout
    if layout.by_name.keys() <= set(names):
        return source
    places = {name: (source, spec) for name, spec in layout.by_name.items() if name in names}
    ties = {a: own for a, own in layout.aliases.items() if a in names and own in places}
    return composed(places, ties)


def arranged(source: Source) -> Source:
    """Return all tensors of a source in the order of :meth:`Layout.of`: itself, if it has that.

    Of tied names the first in alphabetical order stands for the tensor. Empty tensors share no
    bytes, so ties between them are dropped.
    """
    if source.layout.is_canonical:
        return source
    places: dict[str, Place] = {}
    ties: dict[str, str] = {}
    for name, names in source.layout.all_names.items():
        info = source.layout.by_name[name]
        first, *others = sorted(names)
        places[first] = source, info
        if info.nbytes:
            ties |= dict.fromkeys(others, first)
        else:
            places |= dict.fromkeys(others, (source, info))
    return composed(places, ties)
