"""Section of the job file for how the sites of a round are chosen."""

from __future__ import annotations

from typing import Annotated, Self

from pydantic import Field, model_validator

from flstream.job.fields import Count, Real, Seconds, Section, Whole
from flstream.job.files import code_name
from flstream.job.problems import Problem, RefusedValueError
from flstream.job.typed import Sections, TypedSection


class PowerOfChoiceSection(Section):
    """Draw candidates by data size, and ask those of the highest loss."""

    candidates: Count | None = None
    """How many candidates are drawn, of which the round's clients are chosen; null is twice as many
    as those."""


class OortSection(Section):
    """Ask sites by how much and how fast they are likely to contribute, and explore new ones."""

    exploration: Annotated[Real, Field(ge=0, le=1)] = 0.9
    """The fraction of the first round's clients that are drawn from sites without a loss yet."""

    exploration_decay: Annotated[Real, Field(gt=0, le=1)] = 0.98
    """What that fraction is multiplied by after each round."""

    exploration_min: Annotated[Real, Field(ge=0, le=1)] = 0.2
    """The least that it becomes."""

    preferred_duration: Seconds | None = None
    """How long a site's task is to take at most (duration); slower sites count for less.

    null is the duration of the last tasks that 30% of the sites were faster than. Tasks have
    durations with time.clock = virtual alone.
    """

    alpha: Annotated[Whole, Field(ge=0, le=20)] = 2
    """The exponent of preferred_duration / duration, by which a slower site counts for less."""

    cutoff: Annotated[Real, Field(gt=0, le=1)] = 0.95
    """The fraction of the last chosen site's utility that a site needs to be drawn at all."""

    @model_validator(mode="after")
    def _decays(self) -> Self:
        if self.exploration_min > self.exploration:
            allowed = f"at most exploration, which is {self.exploration:g}"
            raise RefusedValueError(Problem("exploration_min", "", allowed))
        return self


SAMPLERS: Sections = {
    "uniform": Section,
    "by_data_size": Section,
    "power_of_choice": PowerOfChoiceSection,
    "oort": OortSection,
    "round_robin": Section,
}
"""Sections of the arguments of the samplers that come with flstream, by type."""


class SamplerSection(TypedSection):
    """Sampler of the sites of a round, where `clients.per_round` is fewer than all."""

    sections = SAMPLERS

    type: Annotated[str, *code_name("Class", lambda: SAMPLERS)] = "uniform"
    """The sampler: uniform, or one that chooses by what sites have reported, or one's own.

    by_data_size draws by numbers of examples; power_of_choice and oort prefer sites with a high
    loss, and oort fast ones; round_robin asks all in turn. docs/workflows.md says more of each. A
    class of your own is named `file.py:Class` or `module:Class`.
    """

    @property
    def is_uniform(self) -> bool:
        """Whether every site is as likely to be drawn, whatever it has reported."""
        return self.type == "uniform"
