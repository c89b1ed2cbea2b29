"""Several bodies as one: a model, and what travels and is folded with it under a name of its own.

A tensor of the body ``control`` is named ``control::<name>`` in the joint body. Since a layout
follows from its set of tensors alone, each body's tensors keep their order there, and a range of
the joint body is a few ranges of its parts.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from flstream.errors import LayoutError
from flstream.model.digests import BodyDigest
from flstream.model.layout import Layout
from flstream.model.source import Source

SEPARATOR = "::"
"""Text between the name of a body and that of its tensor."""

MAIN = ""
"""Name of the model's own body, whose tensors keep their names."""

ValueT = TypeVar("ValueT")


def joint_name(body: str, name: str) -> str:
    """Name of a tensor of a body in the joint body."""
    return f"{body}{SEPARATOR}{name}" if body else name


def own_name(name: str, body: str) -> str:
    """Name of a tensor in its body, by that in the joint body."""
    return name.removeprefix(joint_name(body, ""))


def body_of(name: str, bodies: Iterable[str]) -> str:
    """Name of the body that a tensor of a joint body belongs to.

    Args:
        name: Name of the tensor in the joint body.
        bodies: Names of the bodies beside the model's.
    """
    before, separator, _ = name.partition(SEPARATOR)
    return before if separator and before in bodies else MAIN


def split(values: Mapping[str, ValueT], bodies: Sequence[str]) -> dict[str, dict[str, ValueT]]:
    """Values of a joint body's tensors, by body and by their names in it.

    Args:
        values: A value for each tensor or alias, by its name in the joint body.
        bodies: Names of the bodies beside the model's; each has an entry, even without a tensor.
    """
    parts: dict[str, dict[str, ValueT]] = {body: {} for body in (MAIN, *bodies)}
    for name, value in values.items():
        body = body_of(name, bodies)
        parts[body][own_name(name, body)] = value
    return parts


def joint_layout(layouts: Mapping[str, Layout]) -> Layout:
    """Layout of several bodies as one.

    Args:
        layouts: Layouts by name of the body; that of the model has the empty name.

    Raises:
        LayoutError: The model has a tensor that seems to be one of another body; the message names
            it.
    """
    for name in layouts[MAIN].names:
        if body := body_of(name, layouts):
            raise LayoutError(
                f"tensor {name!r} of the model is named like one of the body {body!r} beside it; "
                "rename it"
            )
    return Layout.of(
        (
            (joint_name(body, spec.name), spec.dtype, spec.shape)
            for body, layout in layouts.items()
            for spec in layout.tensors
        ),
        {
            joint_name(body, alias): joint_name(body, name)
            for body, layout in layouts.items()
            for alias, name in layout.aliases.items()
        },
    )


def part_layout(layout: Layout, body: str, bodies: Sequence[str]) -> Layout:
    """Layout of one body of a joint one.

    Args:
        layout: Layout of the joint body.
        body: Name of the body; empty for the model's own.
        bodies: Names of all bodies beside the model's.
    """
    specs = split({spec.name: spec for spec in layout.tensors}, bodies)[body]
    aliases = split(layout.aliases, bodies)[body]
    return Layout.of(
        ((name, spec.dtype, spec.shape) for name, spec in specs.items()),
        {alias: own_name(name, body) for alias, name in aliases.items()},
    )


class Segment(NamedTuple):
    """A range of a joint body that is one range of one of its bodies.

    Attributes:
        start: Offset in bytes of its first byte in the joint body.
        stop: Offset in bytes after its last byte there.
        body: Name of the body.
        offset: Offset in bytes of its first byte in that body.
    """

    start: int
    stop: int
    body: str
    offset: int


class Segments:
    """The segments of a joint body, in order.

    Args:
        layout: Layout of the joint body.
        parts: Layouts by name of the body.
    """

    def __init__(self, layout: Layout, parts: Mapping[str, Layout]) -> None:
        self._all: list[Segment] = []
        for spec in layout.tensors:
            if not spec.nbytes:
                continue
            body = body_of(spec.name, parts)
            own = parts[body].by_name[own_name(spec.name, body)]
            last = self._all[-1] if self._all else None
            if last is not None and last.body == body:
                # What follows each other in the joint body does so in its own.
                self._all[-1] = last._replace(stop=spec.stop)
            else:
                self._all.append(Segment(spec.start, spec.stop, body, own.start))
        self._starts = [segment.start for segment in self._all]

    def cut(self, start: int, stop: int) -> Iterator[Segment]:
        """Yield the segments in ``[start, stop)``, cut at its ends."""
        for index in range(max(bisect_right(self._starts, start) - 1, 0), len(self._all)):
            segment = self._all[index]
            if segment.start >= stop:
                return
            first, last = max(segment.start, start), min(segment.stop, stop)
            if first < last:
                offset = segment.offset + first - segment.start
                yield Segment(first, last, segment.body, offset)


class JoinedSource:
    """Several bodies as one source.

    Attributes:
        layout: Layout of the joint body.

    Args:
        parts: Sources with random access, by name of the body; that of the model has the empty
            name.

    Raises:
        LayoutError: The model has a tensor that seems to be one of another body.
    """

    def __init__(self, parts: Mapping[str, Source]) -> None:
        layouts = {body: source.layout for body, source in parts.items()}
        self.layout = joint_layout(layouts)
        self._parts = dict(parts)
        self._segments = Segments(self.layout, layouts)

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Read the bytes ``[start, stop)``, each segment from its part."""
        for first, last, body, offset in self._segments.cut(start, stop):
            room = into[first - start : last - start]
            self._parts[body].read(offset, offset + last - first, room)


class ZeroSource:
    """A body of zeros, which takes neither memory nor disk.

    Attributes:
        layout: Layout of the body.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Write zeros."""
        into[:] = bytes(stop - start)


def float_layout(layout: Layout, codes: Iterable[str]) -> Layout:
    """Layout of those tensors of a model that have one of some element types.

    Args:
        layout: Layout of the model.
        codes: Element types as safetensors codes.
    """
    kept = {spec.name for spec in layout.tensors if spec.dtype in set(codes)}
    return Layout.of(
        ((spec.name, spec.dtype, spec.shape) for spec in layout.tensors if spec.name in kept),
        {alias: name for alias, name in layout.aliases.items() if name in kept},
    )


def zeros_beside(layout: Layout, codes: Iterable[str]) -> ZeroSource:
    """A body that begins beside a model.

    Args:
        layout: Layout of the model.
        codes: Element types of these tensors as safetensors codes.
    """
    return ZeroSource(float_layout(layout, codes))


class WritesRanges(Protocol):
    """What takes the bytes of a body by their offset."""

    @property
    def layout(self) -> Layout:
        """Layout of the body."""
        ...

    def write(self, start: int, view: memoryview) -> None:
        """Write bytes that begin at ``start`` of the body."""
        ...


class DiscardWriter:
    """Takes the bytes of a body that nobody wants.

    Attributes:
        layout: Layout of the body.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def write(self, start: int, view: memoryview) -> None:
        """Take bytes, and keep nothing."""


class SplitWriter:
    """Writes a joint body to its parts, from front to back, and takes their digests.

    Attributes:
        layout: Layout of the joint body.

    Args:
        parts: What takes each part, by name of the body.
    """

    def __init__(self, parts: Mapping[str, WritesRanges]) -> None:
        layouts = {body: part.layout for body, part in parts.items()}
        self.layout = joint_layout(layouts)
        self._parts = dict(parts)
        self._segments = Segments(self.layout, layouts)
        self._layouts = layouts
        self._digests: dict[str, BodyDigest] = {}

    def write(self, start: int, view: memoryview) -> None:
        """Write bytes that begin at ``start`` of the joint body; 0 begins all of it again."""
        if start == 0:
            self._digests = {body: BodyDigest(layout) for body, layout in self._layouts.items()}
        for first, last, body, offset in self._segments.cut(start, start + len(view)):
            piece = view[first - start : last - start]
            self._parts[body].write(offset, piece)
            self._digests[body].update([piece])

    def digests(self) -> dict[str, str]:
        """Digest of each body, once all is written."""
        return {body: digest.hexdigest() for body, digest in self._digests.items()}
