"""Sections of the job file for central differential privacy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from flstream.job.fields import Count, Real, Section
from flstream.job.files import needs

if TYPE_CHECKING:
    from flstream.job.clients_section import ClientsSection

EPSILON = "epsilon"
"""Name that stands in ``stop_when`` for the privacy that a job has spent."""


_NEEDED = {"central": ("dp_accounting", "pip install 'flstream[privacy]'")}


class ClippingSection(Section):
    """Bound of an update's difference from the model; larger ones are scaled down."""

    type: Literal["fixed", "adaptive"] = "fixed"
    """Whether the norm stays as it is, or follows the sites' own norms round by round.

    adaptive is of Andrew et al. 2021 (arXiv:1905.03871): it moves the norm towards a quantile of
    the updates' norms, which it learns from a noisy count of those that are within it.
    """

    norm: Annotated[Real, Field(gt=0)] = 1.0
    """The most an update may differ from the model (L2 norm); adaptive clipping begins with it.

    The norm is over all aggregated floats of the update.
    """

    target_quantile: Annotated[Real, Field(gt=0, lt=1)] = 0.5
    """With adaptive: the fraction of updates whose norm is to be within the clipping norm."""

    learning_rate: Annotated[Real, Field(gt=0)] = 0.2
    """With adaptive: how fast the norm follows, as an exponent of its factor in a round."""

    count_stddev: Annotated[Real, Field(gt=0)] | None = None
    """With adaptive: the noise on the count of updates within the norm; null is cohort / 20."""


class PrivacySection(Section):
    """Differential privacy of sites, given by the server (central): DP-FedAvg.

    It needs the extra `flstream[privacy]`. With it each update counts alike, and integers and
    bools keep their values.
    """

    type: Annotated[Literal["none", "central"], needs(_NEEDED.get)] = "none"
    """Whether the mean of the updates is made private: none, or central, as it is folded.

    central clips each update, and adds Gaussian noise to the mean of their differences from the
    model (McMahan et al. 2018, arXiv:1710.06963). Who has the server's own files or the job's seed
    can subtract the noise.
    """

    noise_multiplier: Annotated[Real, Field(ge=0.01, le=10_000)] = 1.0
    """The noise on the sum of updates (standard deviation), in units of the clipping norm."""

    clipping: ClippingSection = ClippingSection()

    delta: Annotated[Real, Field(gt=0, lt=1)] = 1e-5
    """The probability at which epsilon may fail; far below one over the number of sites."""

    accountant: Literal["rdp", "pld"] = "rdp"
    """What computes epsilon: rdp (Renyi divergences), or pld (privacy loss distributions).

    pld is tighter, and slower. Both are of the package dp-accounting.
    """

    sampling: Literal["poisson", "without_replacement"] = "poisson"
    """How a round's sites are drawn where `clients.per_round` is fewer than all.

    poisson draws each site by itself with the same probability, so that the cohort's size varies:
    epsilon is for a site more or less. without_replacement draws as many each round: epsilon is for
    a site's data replaced by other data, which the accountant bounds less tightly.
    """

    noise_cohort_size: Count | None = None
    """The cohort whose noise is simulated with the smaller one of this job; null is its own.

    For research on what privacy costs a large federation: the noise and epsilon are those of a
    cohort of this size, drawn from `privacy.population` sites, and the job's own sites do not get
    that privacy.
    """

    population: Count | None = None
    """How many sites the accountant takes cohorts to be drawn from; null is `clients.count`."""

    @property
    def is_on(self) -> bool:
        """Whether the job is private."""
        return self.type != "none"

    def cohort(self, clients: ClientsSection) -> int:
        """Return the size of the cohort whose noise and epsilon the job has."""
        return self.noise_cohort_size or clients.cohort_size

    def drawn_from(self, clients: ClientsSection) -> int:
        """Return the number of sites that this cohort is drawn from."""
        return self.population or clients.count

    def count_stddev(self, clients: ClientsSection) -> float:
        """Return the noise on the count of the updates within the norm, of the cohort."""
        return self.clipping.count_stddev or self.cohort(clients) / 20

    def update_noise_multiplier(self, clients: ClientsSection) -> float:
        """Return the noise on the sum of updates, in units of the clipping norm.

        Adaptive clipping releases a noisy count, too. The updates then get more noise, so that both
        together cost as much as ``noise_multiplier`` says (Andrew et al. 2021, theorem 1).
        """
        total = self.noise_multiplier
        if self.clipping.type == "fixed":
            return total
        rest: float = total**-2 - (2 * self.count_stddev(clients)) ** -2
        return 1 / math.sqrt(rest)
