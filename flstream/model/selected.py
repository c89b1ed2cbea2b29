"""Some tensors of one or several sources as a body of their own, of which nothing is copied."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import NamedTuple, Self

from flstream.errors import LayoutError
from flstream.model.body import Extent, Scratch, Source
from flstream.model.digests import ChunkDigests
from flstream.model.header import TensorInfo
from flstream.model.layout import Layout
from flstream.text import quotable

# Names that an unknown one is compared with. A peer may ask for many, and these take 0.1 s.
_MOST_COMPARED = 2000
_MOST_CHARACTERS = 200
# What a source may need beside the bytes of a range: the rest of its first and its last element.
_ROOM = 32


class _Span(NamedTuple):
    """A range of the body that is one range of a source.

    Attributes:
        start: Offset in bytes of its first byte in the body.
        stop: Offset in bytes after its last byte there.
        source: The source.
        offset: Offset in bytes of its first byte in the source.
    """

    start: int
    stop: int
    source: Source
    offset: int


class SelectedSource:
    """Some tensors of one or several sources as one source.

    Two names for the same bytes of one source are tied.

    Args:
        parts: Each tensor, under the name that it gets and at its place in the source beside it,
            which has random access.

    Attributes:
        layout: Layout of the tensors, in the order of :meth:`Layout.of`.
        lendable: Whether all of the sources are.

    Raises:
        LayoutError: There are none, or two of one name; the message has it.
    """

    random_access = True
    deliver = None

    def __init__(self, parts: Sequence[tuple[Source, TensorInfo]]) -> None:
        if not parts:
            raise LayoutError("no tensor is selected; name one at least")
        chosen: dict[str, tuple[Source, TensorInfo]] = {}
        names: dict[tuple[object, ...], str] = {}
        ties: dict[str, str] = {}
        for source, info in sorted(parts, key=lambda part: part[1].name):
            if info.name in chosen or info.name in ties:
                raise LayoutError(f"tensor {quotable(info.name)!r} is selected twice; name it once")
            place = (id(source), *info[1:])
            first = names.setdefault(place, info.name) if info.nbytes else info.name
            if first == info.name:
                chosen[first] = source, info
            else:
                ties[info.name] = first
        self.layout = Layout.of(
            ((name, info.dtype, info.shape) for name, (_, info) in chosen.items()), ties
        )
        self.lendable = all(source.lendable for source, _ in chosen.values())
        self._spans: list[_Span] = []
        for spec in self.layout.tensors:
            if spec.nbytes:
                source, info = chosen[spec.name]
                self._add(_Span(spec.start, spec.stop, source, info.start))
        self._starts = [span.start for span in self._spans]
        # Those of a source are of other ranges.
        self._digests = ChunkDigests()

    @classmethod
    def of(cls, source: Source, names: Sequence[str]) -> Self:
        """Select tensors of a source by name.

        Args:
            source: The source.
            names: Names of tensors. One that is tied to another's selects that tensor, under the
                name that is given.

        Raises:
            LayoutError: The source lacks a name, a name is there twice, or there is none.
        """
        layout = source.layout
        parts = []
        for name in names:
            info = layout.find(name)
            if info is None:
                raise LayoutError(f"there is no tensor {quotable(name)!r}{_hint(name, layout)}")
            parts.append((source, info))
        return cls(parts)

    @property
    def extent(self) -> Callable[[int, int], Extent] | None:
        """Function for the place of a range in a file, where all is one range of a file."""
        if len(self._spans) != 1 or self._spans[0].source.extent is None:
            return None
        return self._extent

    def _extent(self, start: int, stop: int) -> Extent:
        span = self._spans[0]
        assert span.source.extent is not None
        extent = span.source.extent(span.offset + start, span.offset + stop)
        return extent._replace(digests=self._digests)

    def changed(self, start: int, stop: int) -> str | None:
        """Return what the first source to have changed in a range says of it."""
        for span in self._cut(start, stop):
            changed, size = span.source.changed, span.stop - span.start
            flaw = changed(span.offset, span.offset + size) if changed is not None else None
            if flaw is not None:
                return flaw
        return None

    def views(self, start: int, stop: int, scratch: Scratch) -> list[memoryview]:
        """Return the bytes ``[start, stop)``, those not in memory side by side in ``scratch``."""
        spans = list(self._cut(start, stop))
        rooms = scratch
        if len(spans) > 1:
            rooms = _Rooms(scratch, stop - start + _ROOM * len(spans))
        views: list[memoryview] = []
        for span in spans:
            size = span.stop - span.start
            views += span.source.views(span.offset, span.offset + size, rooms)
        return views

    def _add(self, span: _Span) -> None:
        last = self._spans[-1] if self._spans else None
        if (
            last is not None
            and last.source is span.source
            and last.offset + last.stop - last.start == span.offset
        ):
            self._spans[-1] = last._replace(stop=span.stop)
        else:
            self._spans.append(span)

    def _cut(self, start: int, stop: int) -> Iterator[_Span]:
        """Yield the spans in ``[start, stop)``, cut at its ends."""
        for index in range(max(bisect_right(self._starts, start) - 1, 0), len(self._spans)):
            span = self._spans[index]
            if span.start >= stop:
                return
            first, last = max(span.start, start), min(span.stop, stop)
            offset = span.offset + first - span.start
            yield span._replace(start=first, stop=last, offset=offset)


class _Rooms(Scratch):
    """Rooms side by side in another scratch, which is left alone as long as nobody takes one.

    Args:
        scratch: The other scratch.
        size: Bytes of all rooms. A room that goes beyond it is new memory.
    """

    def __init__(self, scratch: Scratch, size: int) -> None:
        super().__init__()
        self._scratch = scratch
        self._size = size
        self._left: memoryview | None = None

    def take(self, size: int) -> memoryview:
        """Return a room of ``size`` bytes, as long valid as what the other scratch gives."""
        if self._left is None:
            self._left = self._scratch.take(self._size)
        room, self._left = self._left[:size], self._left[size:]
        return room if len(room) == size else memoryview(bytearray(size))


def _hint(name: str, layout: Layout) -> str:
    known = islice((*layout.by_name, *layout.aliases), _MOST_COMPARED)
    near = get_close_matches(name[:_MOST_CHARACTERS], known, n=1)
    return f"; did you mean {near[0]!r}?" if near else "; name one of its layout"
