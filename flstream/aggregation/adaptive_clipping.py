"""Adaptive clipping: the clipping norm follows a quantile of the updates' norms, privately.

Algorithm 1 of Andrew et al. 2021 (arXiv:1905.03871), with the geometric update. What is released of
the norms is a noisy count of the updates that are within the clipping norm.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class AdaptiveNorm:
    """The step of the clipping norm after a fold.

    Attributes:
        target_quantile: Fraction of updates whose norm is to be within the clipping norm.
        learning_rate: How fast the norm follows.
        cohort: Number that counts are divided by: that of the sites that are expected.
        count_stddev: Standard deviation of the noise on the count.
    """

    target_quantile: float
    learning_rate: float
    cohort: int
    count_stddev: float

    def after(self, norm: float, received: int, clipped: int, noise: float) -> float:
        """Return the clipping norm of the next fold.

        As in the paper, an update counts 1/2 where it is within the norm and -1/2 where it is not,
        so that one site more or less changes the sum by 1/2 only. One that sent nothing counts 0.

        Args:
            norm: Clipping norm of the fold.
            received: Number of updates that were folded.
            clipped: Number of those that were scaled down.
            noise: Standard normal number.
        """
        count = (received - clipped) - received / 2 + self.count_stddev * noise
        fraction = count / self.cohort + 0.5
        step = math.exp(-self.learning_rate * (fraction - self.target_quantile))
        # Implementations of exp differ in the last bits; the norm must not.
        return float(f"{norm * step:.12g}")
