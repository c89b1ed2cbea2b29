"""Updates, and reading one that has all of the model's tensors or a part of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np

from flstream.errors import (
    AbortedError,
    CodecError,
    FlstreamError,
    StreamingError,
    UpdateRefusedError,
)
from flstream.model.layout import Layout
from flstream.model.source import Scratch, Source, view_of

ParamsType = Literal["FULL", "DIFF"]


@dataclass(frozen=True)
class UpdateSource:
    """The answer of a site to a training task.

    Attributes:
        site: Name of the site.
        open: Opens its body, to be read once from front to back, in ranges of any length. It is
            called once for each pass over the model; a pass that is given up may leave a source
            half read.
        weight: Weight in the mean, before dividing by the sum of all weights; finite and above 0.
        params_type: ``FULL`` for the new weights, ``DIFF`` for new minus old.
        partial: Whether it may lack tensors of the model. Otherwise a missing tensor is an error.
        on_change: Called once a byte of it is not the model's; None where nobody wants to know.
        on_clip: Called with whether it is scaled down, where a rule limits its norm; None likewise.
        confirm: Called once all of it was read, before what was made of it counts; raises
            :class:`UpdateRefusedError` if it is not what the site offered.
        place: Its place among the updates that the fold was given, from 0.
        base: The model that it was trained from, where that is not the one it is folded into.
    """

    site: str
    open: Callable[[], Source]
    weight: float
    params_type: ParamsType = "FULL"
    partial: bool = False
    on_change: Callable[[], None] | None = None
    on_clip: Callable[[bool], None] | None = None
    confirm: Callable[[], None] = lambda: None
    place: int = 0
    base: Source | None = None


@contextmanager
def naming(site: str, *errors: type[FlstreamError]) -> Iterator[None]:
    """Refuse a site's update where decoding fails, or an error of these kinds arises."""
    try:
        yield
    except (AbortedError, UpdateRefusedError):
        raise
    except CodecError as error:
        raise UpdateRefusedError(site, f"cannot be decoded: {error}") from error
    except errors as error:
        raise UpdateRefusedError(site, f"could not be fetched: {error}") from error


class Reading:
    """Update that a walk reads, by ranges of the model's body.

    Attributes:
        update: The update.
        carried: Layout of its tensors.
        may_be_unchanged: Whether all bytes so far are the model's, and somebody wants to know.

    Raises:
        UpdateRefusedError: Its tensors are not the model's.
    """

    def __init__(self, update: UpdateSource, model: Layout) -> None:
        self.update = update
        self.carried = model
        self.may_be_unchanged = update.on_change is not None
        with naming(update.site, StreamingError):
            self._source = update.open()
        # Start and stop of what it has in the model, and where that begins in its own body.
        self._places = [(0, model.nbytes, 0)]
        if update.partial:
            # An update with a tensor's first name alone does not break the tie with its others.
            theirs = self._source.layout
            self.carried = model.subset(theirs.by_name, set(theirs.names))
            filled = [(model.by_name[s.name], s.start) for s in self.carried.tensors if s.nbytes]
            self._places = [(0, 0, 0), *((spec.start, spec.stop, own) for spec, own in filled)]
        self._starts = [start for start, _, _ in self._places]
        difference = self.carried.difference(self._source.layout)
        if difference:
            raise UpdateRefusedError(update.site, f"does not fit the model: {difference}")

    def read(self, start: int, stop: int, scratch: Scratch) -> memoryview:
        """Read the bytes for ``[start, stop)`` of the model, until the scratch is reused."""
        first, last = self.place(start), self.place(stop)
        if first == last:
            return memoryview(b"")
        with naming(self.update.site, StreamingError):
            return view_of(self._source, first, last, scratch)

    def copy(self, start: int, stop: int, into: memoryview) -> None:
        """Read the bytes ``[start, stop)`` of an update with all of the model's tensors."""
        with naming(self.update.site, StreamingError):
            self._source.read(start, stop, into)

    def compare(self, data: memoryview, old: memoryview) -> None:
        """Compare bytes of the update with the model's, unless earlier bytes differed."""
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
        """Return how many bytes the update has for the model's first ``offset`` bytes."""
        start, stop, own = self._places[bisect_right(self._starts, offset) - 1]
        return own + min(offset, stop) - start
