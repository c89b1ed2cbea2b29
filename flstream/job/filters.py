"""Section of the job file that lists filters of what travels to and from training code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field

from flstream.job.filter_code import check_filter
from flstream.job.filter_sections import BUILT_IN, EXCLUDE_VARS
from flstream.job.free_values import FreeArgs
from flstream.job.rules import ValueRule
from flstream.job.section import Section
from flstream.job.typed_sections import TypedSpec, arguments_of, parse_each, type_and_args
from flstream.job.values import render_value


@dataclass(frozen=True)
class FilterSpec(TypedSpec):
    """One filter of a resolved job."""

    @property
    def changes_numbers(self) -> bool:
        """Whether it changes numbers, and does not leave out tensors."""
        return self.type != EXCLUDE_VARS


@dataclass(frozen=True)
class FilterList(ValueRule):
    """A list of filters: names, or sections with a type and its arguments."""

    @property
    def allowed(self) -> str:
        """Description of allowed values."""
        return "a list of filters, each a name or a section { type, and the filter's own keys }"

    def parse(self, value: Any, folder: Path) -> list[FilterSpec]:
        """Return the filters with all of their arguments; those of the user's own are imported."""
        if not isinstance(value, list):
            raise self.refused(value, "write [percentile_privacy]")
        return parse_each(value, lambda each: _parsed(each, folder))

    def render(self, value: Any) -> str:
        """Return HOCON text that parses to these filters."""
        return render_value([each.as_section() for each in value])


class FiltersSection(Section):
    """What is done at the sites to the models that travel, in the order of the lists.

    `up` filters take a training's update before it leaves its site: its difference from the model
    that the site was sent, so that the server and the wire see what they leave of it. `down`
    filters take the numbers of each model before the site's code sees it, to train or to evaluate.
    Integers and bools stay as they are. docs/filters.md has what they cost.
    """

    up: Annotated[list[FilterSpec], FilterList()] = Field(default_factory=list)
    """The filters of updates: percentile_privacy, svt_privacy, exclude_vars, gaussian or your own.

    One with arguments is a section, such as `{ type = gaussian, sigma = 0.01 }`. Your own is a
    class in a file beside the job file, `{ type = "mine.py:Filter" }` with its keyword arguments.
    """

    down: Annotated[list[FilterSpec], FilterList()] = Field(default_factory=list)
    """The filters of the models that sites receive, of the same types."""

    @property
    def keep_models(self) -> bool:
        """Whether a model is kept as it was received, since filters need it after training."""
        return bool(self.down) or any(each.changes_numbers for each in self.up)

    def by_key(self) -> Iterator[tuple[str, FilterSpec]]:
        """Yield all filters, each with its key, such as `filters.up[0]`."""
        for direction, specs in (("up", self.up), ("down", self.down)):
            for place, spec in enumerate(specs):
                yield f"filters.{direction}[{place}]", spec


def _parsed(value: Any, folder: Path) -> FilterSpec:
    kind, args = type_and_args(value, "filter", tuple(BUILT_IN), folder)
    if kind in BUILT_IN:
        return FilterSpec(kind, arguments_of(BUILT_IN[kind], args, folder))
    spec = FilterSpec(kind, FreeArgs().parse(args, folder))
    check_filter(spec.type, spec.args)
    return spec
