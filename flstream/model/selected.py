"""Some tensors of one or several sources as a body of their own, of which nothing is copied."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from itertools import islice
from typing import NamedTuple, Self

from flstream.errors import LayoutError
from flstream.model.digests import ChunkDigests
from flstream.model.header import TensorInfo
from flstream.model.layout import Layout
from flstream.model.source import InMemory, Source, change_of
from flstream.text import quotable

# Names that an unknown one is compared with. A peer may ask for many, and these take 0.1 s.
_MOST_COMPARED = 2000
_MOST_CHARACTERS = 200


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
        self.lendable = all(getattr(source, "lendable", False) for source, _ in chosen.values())
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

    def changed(self) -> str | None:
        """Return what the first source to have changed says of it."""
        sources = {id(span.source): span.source for span in self._spans}.values()
        return next((flaw for flaw in map(change_of, sources) if flaw), None)

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Read the bytes ``[start, stop)``, each span from its source."""
        for span in self._cut(start, stop):
            size = span.stop - span.start
            room = into[span.start - start : span.stop - start]
            span.source.read(span.offset, span.offset + size, room)

    def in_place(self, start: int, stop: int) -> list[memoryview] | None:
        """Return the bytes ``[start, stop)`` where they lie, if all of them are in memory."""
        views: list[memoryview] = []
        for span in self._cut(start, stop):
            there = None
            if isinstance(span.source, InMemory):
                there = span.source.in_place(span.offset, span.offset + span.stop - span.start)
            if there is None:
                return None
            views += there
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


def _hint(name: str, layout: Layout) -> str:
    known = islice((*layout.by_name, *layout.aliases), _MOST_COMPARED)
    near = get_close_matches(name[:_MOST_CHARACTERS], known, n=1)
    return f"; did you mean {near[0]!r}?" if near else "; name one of its layout"
