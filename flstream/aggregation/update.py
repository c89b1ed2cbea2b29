"""Updates, and reading one that has all of the model's tensors or a part of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from flstream.errors import UpdateRefusedError
from flstream.model.header import TensorInfo
from flstream.model.layout import Layout
from flstream.model.source import Scratch, Source, views_of

ParamsType = Literal["FULL", "DIFF"]


@dataclass(frozen=True)
class UpdateSource:
    """The answer of a site to a training task.

    Attributes:
        site: Name of the site.
        open: Opens its body, to be read once from front to back. It is called once for each pass
            over
        the model; a pass that is given up may leave a source half read.
        weight: Weight in the mean, before dividing by the sum of all weights; finite and above 0.
        params_type: ``FULL`` for the new weights, ``DIFF`` for new minus old.
        partial: Whether it may lack tensors of the model. Otherwise a missing tensor is an error.
        on_change: Called once a byte of it is not the model's; None where nobody wants to know.
        on_clip: Called with whether it is scaled down, where a rule limits its norm; None likewise.
    """

    site: str
    open: Callable[[], Source]
    weight: float
    params_type: ParamsType = "FULL"
    partial: bool = False
    on_change: Callable[[], None] | None = None
    on_clip: Callable[[bool], None] | None = None


class Reading:
    """An update that is being read, in ranges of the model's body.

    Args:
        update: Update to read.
        model: Layout of the model.
        frame: Bytes of which the ends of the source's reads must be multiples.

    Attributes:
        update: As given.
        carried: Layout of the update's tensors.
        may_be_unchanged: Whether all bytes so far are the model's, and somebody wants to know.

    Raises:
        UpdateRefusedError: Its tensors are not the model's.
    """

    def __init__(self, update: UpdateSource, model: Layout, frame: int) -> None:
        self.update = update
        self.carried = model
        self.may_be_unchanged = update.on_change is not None
        self._source = update.open()
        self._window: _Window | None = None
        if update.partial:
            self.carried = _part_of(model, self._source.layout)
            self._window = _Window(self._source, frame)
            filled = [spec for spec in self.carried.tensors if spec.nbytes]
            self._places = [model.by_name[spec.name] for spec in filled]
            self._starts = [spec.start for spec in self._places]
            self._own = filled
        difference = self.carried.difference(self._source.layout)
        if difference:
            raise UpdateRefusedError(update.site, f"does not fit the model: {difference}")

    def read(self, start: int, stop: int, scratch: Scratch, joined: Scratch) -> Range:
        """Read the bytes for ``[start, stop)`` of the model, valid until a scratch is reused."""
        if self._window is None:
            data = join(views_of(self._source, start, stop, scratch), joined)
            return Range(self, start, data)
        first = self.place(start)
        return Range(self, first, self._window.read(first, self.place(stop), scratch, joined))

    def compare(self, data: memoryview, old: memoryview) -> None:
        """Compare bytes of the update with the model's, unless some others have differed."""
        sent = np.frombuffer(data, np.uint8)
        if self.update.params_type == "DIFF":
            differs = bool(sent.any())
        else:
            differs = not np.array_equal(sent, np.frombuffer(old, np.uint8))
        if differs:
            self.may_be_unchanged = False
            assert self.update.on_change is not None
            self.update.on_change()

    def place(self, offset: int) -> int:
        """Return the number of bytes that the update has for the model's first ``offset`` bytes."""
        if self._window is None:
            return offset
        index = bisect_right(self._starts, offset) - 1
        if index < 0:
            return 0
        place, own = self._places[index], self._own[index]
        return own.start + min(offset, place.stop) - place.start


class Range(NamedTuple):
    """The bytes of an update for a range of the model.

    Attributes:
        reading: Reading of the update.
        start: Offset in bytes of the range in the update's own body.
        bytes: The bytes.
    """

    reading: Reading
    start: int
    bytes: memoryview

    def data(self, start: int, stop: int) -> memoryview:
        """Return the bytes for ``[start, stop)`` of the model, all of which the update has."""
        offset = self.reading.place(start) - self.start
        return self.bytes[offset : offset + stop - start]


class _Window:
    """Reads consecutive ranges of any length from a source whose reads must end with a frame.

    Bytes read beyond a range, less than a frame, are kept for the next one.
    """

    def __init__(self, source: Source, frame: int) -> None:
        self._source = source
        self._frame = frame
        self._reached = 0
        self._rest = b""

    def read(self, start: int, stop: int, scratch: Scratch, joined: Scratch) -> memoryview:
        """Return the bytes ``[start, stop)``, where ``start`` is the last ``stop``."""
        reach = min(-(-stop // self._frame) * self._frame, self._source.layout.nbytes)
        views: Sequence[memoryview] = ()
        if reach > self._reached:
            views = views_of(self._source, self._reached, reach, scratch)
            self._reached = reach
        data = _gather([memoryview(self._rest), *views], joined)
        self._rest = bytes(data[stop - start :])
        return data[: stop - start]


def join(views: Sequence[memoryview], scratch: Scratch) -> memoryview:
    """Return views as one: only tensors in memory give more than one, which are copied."""
    return views[0] if len(views) == 1 else _gather(views, scratch)


def _gather(views: Sequence[memoryview], scratch: Scratch) -> memoryview:
    joined = scratch.take(sum(map(len, views)))
    offset = 0
    for view in views:
        joined[offset : offset + len(view)] = view
        offset += len(view)
    return joined


def _part_of(model: Layout, theirs: Layout) -> Layout:
    """Return the model's layout without the tensors that an update lacks."""
    specs: list[TensorInfo] = []
    for spec in model.tensors:
        if spec.name in theirs.by_name:
            start = specs[-1].stop if specs else 0
            specs.append(spec._replace(start=start, stop=start + spec.nbytes))
    # An update that has only the tensor's first name does not break the tie with its others.
    named = {*theirs.by_name, *theirs.aliases}
    aliases = {a: n for a, n in model.aliases.items() if n in theirs.by_name and a in named}
    return Layout(specs, aliases)
