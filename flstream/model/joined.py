"""Several bodies as one: a model, and named bodies that travel and fold with it.

A tensor of the body ``control`` is named ``control::<name>`` in the joint body. Since a layout
follows from its set of tensors alone, each body's tensors keep their order there, and a range of
the joint body is a few ranges of its parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeVar

from flstream.errors import LayoutError
from flstream.job.bodies import MAIN
from flstream.model.composed import ComposedSource, Segments
from flstream.model.digests import BodyDigest
from flstream.model.dtypes import FLOATS
from flstream.model.layout import Layout
from flstream.model.source import Source

SEPARATOR = "::"
"""Text between the name of a body and that of its tensor."""


ValueT = TypeVar("ValueT")


def joint_name(body: str, name: str) -> str:
    """Return the name in the joint body of a body's tensor."""
    return f"{body}{SEPARATOR}{name}" if body else name


def own_name(name: str, body: str) -> str:
    """Return the name in its body of a joint body's tensor."""
    return name.removeprefix(joint_name(body, ""))


def body_of(name: str, bodies: Iterable[str]) -> str:
    """Return the name of the body with a tensor of a joint body.

    Args:
        name: Name of the tensor in the joint body.
        bodies: Names of the bodies beside the model's.
    """
    before, separator, _ = name.partition(SEPARATOR)
    return before if separator and before in bodies else MAIN


def split(values: Mapping[str, ValueT], bodies: Sequence[str]) -> dict[str, dict[str, ValueT]]:
    """Return the values of a joint body's tensors, by body and by own name.

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
    """Return the layout of several bodies as one.

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
    """Return the layout of one body of a joint body.

    Args:
        layout: Layout of the joint body.
        body: Name of the body; empty for the model's own.
        bodies: Names of all bodies beside the model's.
    """
    names = {name: own_name(name, body) for name in layout.names if body_of(name, bodies) == body}
    return Layout.of(
        ((names[s.name], s.dtype, s.shape) for s in layout.tensors if s.name in names),
        {names[a]: names[name] for a, name in layout.aliases.items() if a in names},
    )


def join_bodies(parts: Mapping[str, Source]) -> ComposedSource:
    """Compose several bodies as one.

    Args:
        parts: Sources by name of the body; that of the model has the empty name.

    Raises:
        LayoutError: The model has a tensor that seems to be one of another body.
    """
    places = {
        joint_name(body, spec.name): (source, spec)
        for body, source in parts.items()
        for spec in source.layout.tensors
    }
    return ComposedSource(
        joint_layout({body: source.layout for body, source in parts.items()}), places
    )


class ZeroSource:
    """Body of zeros, which takes neither memory nor disk.

    Attributes:
        layout: Layout of the body.
    """

    def __init__(self, layout: Layout) -> None:
        self.layout = layout

    def read(self, start: int, stop: int, into: memoryview) -> None:
        """Fill the view with zeros."""
        into[:] = bytes(stop - start)


def zeros_beside(layout: Layout) -> ZeroSource:
    """Make the initial body beside a model: zeros for each of its floats."""
    return ZeroSource(layout.subset({s.name for s in layout.tensors if s.dtype in FLOATS}))


def is_sent(body: Layout, model: Layout) -> bool:
    """Return whether sites send a part of a body: it has names of the model's, and no others."""
    return body.by_name.keys() <= model.by_name.keys()


class WritesRanges(Protocol):
    """A writer of a body by offsets."""

    @property
    def layout(self) -> Layout:
        """Layout of the body."""
        ...

    def write(self, start: int, view: memoryview) -> None:
        """Write bytes that begin at ``start`` of the body."""
        ...


class SplitWriter:
    """Writer of a joint body's parts, from front to back, with their digests.

    Attributes:
        layout: Layout of the joint body.

    Args:
        parts: Writer of each part, by name of the body.
        layout: Layout of the joint body, where it has further bodies, which nobody wants.
    """

    def __init__(self, parts: Mapping[str, WritesRanges], layout: Layout | None = None) -> None:
        self.layout = layout or joint_layout({body: part.layout for body, part in parts.items()})
        self._parts = dict(parts)
        self._begin()
        places = {
            joint_name(body, spec.name): (body, spec.start)
            for body, part in parts.items()
            for spec in part.layout.tensors
        }
        tensors = [spec for spec in self.layout.tensors if spec.name in places]
        self._segments = Segments((spec, *places[spec.name]) for spec in tensors)

    def write(self, start: int, view: memoryview) -> None:
        """Write bytes that begin at ``start`` of the joint body; 0 begins it anew."""
        if start == 0:
            self._begin()
        for at in self._segments.cut(start, start + len(view)):
            piece = view[at.start - start : at.stop - start]
            self._parts[at.part].write(at.offset, piece)
            self._digests[at.part].update([piece])

    def _begin(self) -> None:
        self._digests = {body: BodyDigest(part.layout) for body, part in self._parts.items()}

    def digests(self) -> dict[str, str]:
        """Return the digest of each body, once all are written."""
        return {body: digest.hexdigest() for body, digest in self._digests.items()}
