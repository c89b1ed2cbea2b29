"""Updates, and reading one that has all of the model's tensors or a part of them."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

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

if TYPE_CHECKING:
    from flstream.aggregation.update_body import LocalBody, RemoteBody
    from flstream.codecs.chain import UpdateForm

ParamsType = Literal["FULL", "DIFF"]


@dataclass(eq=False)
class CollectedUpdate:
    """Update of a site, from its answer until a fold has settled it.

    Attributes:
        site: Name of the site.
        body: Where its tensors are.
        form: Form of the tensors, and the model that the site trained.
        weight: Weight in the mean, before dividing by the sum of all weights; finite and above 0.
        params_type: ``FULL`` for the new weights, ``DIFF`` for new minus old.
        partial: Whether it may lack tensors of the model. Otherwise a missing tensor is an error.
        place: Its place among the updates that a fold was given, from 0.
        base: The model that it was trained from, where that is not the one it is folded into.
        copy: The model that it makes, to be read in its place where that was kept; None otherwise.
        has_changed: Whether a fold has found that it is not the model that was received.
        is_clipped: Whether the last fold has scaled it down.
    """

    site: str
    body: LocalBody | RemoteBody
    form: UpdateForm
    weight: float = 1.0
    params_type: ParamsType = "FULL"
    partial: bool = False
    place: int = 0
    base: Source | None = None
    copy: Source | None = None
    has_changed: bool = False
    is_clipped: bool = False

    def open(self, step: int) -> Source:
        """Open the tensors for one pass over the model, to be read from front to back.

        A pass that is given up may leave a source half read.

        Args:
            step: Most bytes that are read at a time.

        Raises:
            UpdateRefusedError: It cannot be fetched.
        """
        if self.copy is not None:
            return self.copy
        return self.form.decoded(self.body.open(self, step), self.params_type)

    def expect_fit(self, layout: Layout) -> None:
        """Refuse the layout of a body that is not of the model, before it is fetched."""
        self.form.expect_fit(self.site, layout, partial=self.partial)

    def confirm(self) -> None:
        """Confirm that the bytes read of it are those that its site offered.

        Raises:
            UpdateRefusedError: They are not, or the site's process is gone.
        """
        with naming(self.site, FlstreamError):
            self.body.confirm()


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
        weight: Weight in this fold.

    Raises:
        UpdateRefusedError: Its tensors are not the model's.
    """

    def __init__(
        self, update: CollectedUpdate, model: Layout, step: int, weight: float = 1.0
    ) -> None:
        self.update = update
        self.carried = model
        self.weight = weight
        with naming(update.site, StreamingError):
            self._source = update.open(step)
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
        self.update.has_changed |= differs

    def place(self, offset: int) -> int:
        """Return how many bytes the update has for the model's first ``offset`` bytes."""
        start, stop, own = self._places[bisect_right(self._starts, offset) - 1]
        return own + min(offset, stop) - start
