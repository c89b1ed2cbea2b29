"""Rules of what NVFlare's classes become with their settings, or why one is not needed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flstream.job.workflow_code import find_workflow
from flstream.recipe.nvflare.draft import Argument, ConfiguredClass, JobDraft
from flstream.recipe.nvflare.notes import Kind, Note

Rule = Callable[[JobDraft, Argument], Note]
"""Converts a setting, and returns the note on it."""

Complete = Callable[[JobDraft, ConfiguredClass], Iterable[Note]]
"""Converts what follows from arguments that are not given; yields the notes."""


def nothing_more(draft: JobDraft, owner: ConfiguredClass) -> Iterable[Note]:
    """Convert nothing."""
    return ()


@dataclass(frozen=True)
class KnownClass:
    """A class of NVFlare."""

    kind: Kind
    """Whether its arguments are converted (becomes), or it is listed as a whole."""
    word: str
    """What it becomes, or why there is nothing to do."""
    args: Mapping[str, Rule] = field(default_factory=dict)
    """What becomes of its arguments, in the order in which they are converted."""
    complete: Complete = nothing_more
    """Converts what follows from arguments that are not given."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """Keys of the job file that it becomes by itself."""
    workflow: str = ""
    """Name of the workflow that a controller becomes; empty for what is none."""


def to(key: str) -> Rule:
    """Return the rule of a setting that is a key of the job file, with the same values."""

    def rule(draft: JobDraft, argument: Argument) -> Note:
        if argument.value is None:
            return argument.not_needed("null is the default")
        return argument.becomes_unless(draft.put(key, argument.value), key)

    return rule


def unneeded(why: str) -> Rule:
    """Return the rule of a setting that has nothing to do here."""
    return lambda draft, argument: argument.not_needed(why)


def lost(why: str) -> Rule:
    """Return the rule of a setting without a counterpart; null and false ask for nothing."""

    def rule(draft: JobDraft, argument: Argument) -> Note:
        if argument.value in (None, False) or argument.value == [] or argument.value == {}:
            return argument.not_needed("nothing is asked for")
        return argument.lost(why)

    return rule


def only(value: Any, why: str, otherwise: str = "") -> Rule:
    """Return the rule of a setting that is as it should be, or else has no counterpart.

    Args:
        value: The value that needs nothing.
        why: Why it needs nothing.
        otherwise: What to say of other values.
    """

    def rule(draft: JobDraft, argument: Argument) -> Note:
        if argument.value in (None, value):
            return argument.not_needed(why)
        return argument.lost(otherwise)

    return rule


def in_workflow(name: str = "") -> Rule:
    """Return the rule of a setting that is an argument of the workflow.

    Args:
        name: Name of the workflow's argument; empty where it is the same.
    """

    def rule(draft: JobDraft, argument: Argument) -> Note:
        stage = draft.stages[-1]
        own = name or argument.name
        if argument.value is None:
            return argument.not_needed("null is the default")
        if own not in find_workflow(stage.type).args.model_fields:
            return argument.lost(f"the workflow {stage.type} has no such argument")
        stage.args[own] = argument.value
        return argument.becomes(f"workflow.args.{own}")

    return rule


def not_needed(why: str, *names: str) -> dict[str, KnownClass]:
    """Return classes that need nothing, by name."""
    return dict.fromkeys(names, KnownClass("not needed", why))


def later(why: str, *names: str) -> dict[str, KnownClass]:
    """Return classes that will have a counterpart, by name."""
    return dict.fromkeys(names, KnownClass("comes later", why))


def no_counterpart(why: str, *names: str) -> dict[str, KnownClass]:
    """Return classes without a counterpart, by name."""
    return dict.fromkeys(names, KnownClass("no counterpart", why))


ONE_OF_EACH = unneeded("a job has one of each")
AS_SENT = unneeded("tensors travel in their own dtype")
