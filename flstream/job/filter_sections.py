"""Sections of the built-in filters: every key with its rule, default and meaning."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from flstream.job.annotations import ValueKind
from flstream.job.rules import NOT_EMPTY, Pattern, Real, Section

NamesOrPattern = Annotated[
    Annotated[list[str], NOT_EMPTY] | Annotated[Pattern, Field(min_length=1)],
    ValueKind("a list of names of tensors, or one regular expression"),
]
"""Whole names of tensors, or one regular expression that is found in names."""


class PercentilePrivacySection(Section):
    """Share the largest changes alone, and bound them.

    A number whose absolute change is below a percentile of all in the update does not change; the
    others change by at most gamma. From Shokri and Shmatikov, "Privacy-preserving deep learning",
    CCS 2015, doi:10.1145/2810103.2813687. Scalars stay as they are, as in NVFlare.
    """

    percentile: Annotated[Real, Field(ge=0, le=100)] = 10.0
    """The percentile: about so many of a hundred changes are left out."""

    gamma: Annotated[Real, Field(gt=0)] = 0.01
    """The most that a number changes, for each step of an update that gives their number."""


class SVTPrivacySection(Section):
    """Share a noisy choice of changes, with noise, by the sparse vector technique.

    A number that is not chosen does not change. From Li et al. 2019, "Privacy-preserving federated
    brain tumour segmentation", arXiv:1910.00962. Scalars stay as they are, as in NVFlare.
    """

    fraction: Annotated[Real, Field(gt=0, le=1)] = 0.1
    """The fraction of numbers that is shared, rounded up to a whole number of them."""

    epsilon: Annotated[Real, Field(gt=0)] = 0.1
    """The budget of the choice: the smaller, the more of it is chance."""

    noise_var: Annotated[Real, Field(gt=0)] = 0.1
    """The budget of the shared values: the scale of their Laplace noise is 2 gamma / noise_var."""

    gamma: Annotated[Real, Field(gt=0)] = 1e-5
    """The most that a number changes, for each step of an update that gives their number."""

    tau: Annotated[Real, Field(ge=0)] = 1e-6
    """The absolute change from which on a number is likely to be shared."""


class ExcludeVarsSection(Section):
    """Leave tensors out: they do not leave the site, or its code does not receive them."""

    exclude_vars: NamesOrPattern
    """The tensors: a list of whole names, or a regular expression that is found in names.

    A tensor with several tied names goes by any of them. Each has to be found in the model.
    """


class GaussianSection(Section):
    """Add independent Gaussian noise to every number."""

    sigma: Annotated[Real, Field(gt=0)]
    """The standard deviation of the noise."""


PERCENTILE, SVT, EXCLUDE_VARS, GAUSSIAN = (
    "percentile_privacy",
    "svt_privacy",
    "exclude_vars",
    "gaussian",
)
BUILT_IN: Mapping[str, type[Section]] = {
    PERCENTILE: PercentilePrivacySection,
    SVT: SVTPrivacySection,
    EXCLUDE_VARS: ExcludeVarsSection,
    GAUSSIAN: GaussianSection,
}
"""Sections of the arguments of built-in filters, by the filter's name."""
