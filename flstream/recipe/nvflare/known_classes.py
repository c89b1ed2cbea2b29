"""Records of NVFlare's classes: what each becomes, or why none is needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flstream.recipe.nvflare.arguments import Rule
from flstream.recipe.nvflare.draft import ConfiguredClass, JobDraft
from flstream.recipe.nvflare.notes import Kind, Note

Complete = Callable[[JobDraft, ConfiguredClass], Iterable[Note]]
"""Converts what follows from arguments that are not given; yields the notes."""


def _nothing_more(draft: JobDraft, owner: ConfiguredClass) -> Iterable[Note]:
    return ()


@dataclass(frozen=True)
class KnownClass:
    """A class of NVFlare, other than a controller."""

    kind: Kind
    """Whether its arguments are converted (becomes), or it is listed as a whole."""
    word: str
    """What it becomes, or why there is nothing to do."""
    args: Mapping[str, Rule] = field(default_factory=dict)
    """What becomes of its arguments, in the order in which they are converted."""
    complete: Complete = _nothing_more
    """Converts what follows from arguments that are not given."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the job file that it becomes by itself."""


def not_needed(why: str, *names: str) -> dict[str, KnownClass]:
    """Return classes that need nothing, by name."""
    return dict.fromkeys(names, KnownClass("not needed", why))


def later(why: str, *names: str) -> dict[str, KnownClass]:
    """Return classes that will have a counterpart, by name."""
    return dict.fromkeys(names, KnownClass("comes later", why))


def no_counterpart(why: str, *names: str) -> dict[str, KnownClass]:
    """Return classes without a counterpart, by name."""
    return dict.fromkeys(names, KnownClass("no counterpart", why))
