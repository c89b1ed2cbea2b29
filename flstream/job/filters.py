"""Section of the job file that lists filters of what travels to and from training code."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, PlainValidator, ValidationInfo

from flstream.job.annotations import ValueKind
from flstream.job.filter_sections import BUILT_IN, EXCLUDE_VARS
from flstream.job.own_code import check_filter
from flstream.job.rules import Section, folder_of
from flstream.job.typed_sections import TypedSpec, parse_spec, render_specs


@dataclass(frozen=True)
class FilterSpec(TypedSpec):
    """One filter of a resolved job."""

    @property
    def changes_numbers(self) -> bool:
        """Whether it changes numbers, and does not leave out tensors."""
        return self.type != EXCLUDE_VARS


def _parsed(value: Any, info: ValidationInfo) -> FilterSpec:
    """Return a filter with all of its arguments; one of the user's own is imported."""
    spec = parse_spec(value, "filter", BUILT_IN, FilterSpec, folder_of(info))
    if spec.type not in BUILT_IN:
        check_filter(spec.type, spec.args)
    return spec


FILTERS = ValueKind(
    "a list of filters, each a name or a section { type, and the filter's own keys }",
    "[percentile_privacy]",
    render=render_specs,
)
_Filters = Annotated[list[Annotated[FilterSpec, PlainValidator(_parsed)]], FILTERS]


class FiltersSection(Section):
    """What is done at the sites to the models that travel, in the order of the lists.

    `up` filters take a training's update before it leaves its site: its difference from the model
    that the site was sent, so that the server and the wire see what they leave of it. `down`
    filters take the numbers of each model before the site's code sees it, to train or to evaluate.
    Integers and bools stay as they are. docs/filters.md has what they cost.
    """

    up: _Filters = Field(default_factory=list)
    """The filters of updates: percentile_privacy, svt_privacy, exclude_vars, gaussian or your own.

    One with arguments is a section, such as `{ type = gaussian, sigma = 0.01 }`. Your own is a
    class in a file beside the job file, `{ type = "mine.py:Filter" }` with its keyword arguments.
    """

    down: _Filters = Field(default_factory=list)
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
