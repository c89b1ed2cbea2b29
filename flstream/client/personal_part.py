"""Which tensors of a task are each site's own."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from flstream.aggregation.rules import found_names
from flstream.errors import UsageError
from flstream.model.layout import Layout

_KEY = "workflow.args.personal"


class PersonalPart(msgspec.Struct, frozen=True):
    """What each site has a version of its own of, in a task.

    Attributes:
        patterns: Regular expressions; a tensor in whose name one is found is the site's own.
        is_beside: Whether these tensors are a model beside the global one, of which nothing is
            sent; otherwise they are a part of it, and the others are trained and sent as ever.
    """

    patterns: list[str]
    is_beside: bool = False

    @property
    def file_name(self) -> str:
        """Name of the file in which a site keeps its version."""
        return f"{'beside' if self.is_beside else 'personal'}.safetensors"

    def names(self, layout: Layout) -> frozenset[str]:
        """Return the names of a model's tensors that are a site's own.

        Raises:
            UsageError: A pattern is found in no name, or nothing is left to aggregate.
        """
        names = found_names(_KEY, self.patterns, layout)
        if not self.is_beside and len(names) == len(layout.tensors):
            raise UsageError(
                f"{_KEY}: the patterns are found in the name of every tensor, so nothing is left "
                "to aggregate; flstream inspect lists the names"
            )
        return names


def part_of(patterns: Sequence[str], *, is_beside: bool) -> PersonalPart | None:
    """Return what is each site's own in a task; None for nothing.

    Args:
        patterns: Patterns of tensors of the model.
        is_beside: Whether it is a whole model beside the global one.
    """
    if is_beside:
        return PersonalPart([".*"], is_beside=True)
    return PersonalPart(list(patterns)) if patterns else None
