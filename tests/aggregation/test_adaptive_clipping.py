"""Adaptive clipping: the norm finds the quantile of the sites' norms, as in the paper."""

import numpy as np
import pytest

from flstream.aggregation.adaptive_clipping import AdaptiveNorm


def test_it_follows_the_papers_algorithm_step_by_step():
    """Algorithm 1 of arXiv:1905.03871 in NumPy, with the same noise."""
    rng = np.random.default_rng(3)
    cohort, quantile, rate, deviation = 50, 0.8, 0.2, 2.5
    adaptive = AdaptiveNorm(quantile, rate, cohort, deviation)
    norm = due = 0.1
    for _ in range(60):
        norms, noise = rng.lognormal(size=cohort), rng.normal()
        bits = (norms <= due).astype(float) - 0.5
        fraction = (bits.sum() + deviation * noise) / cohort + 0.5
        due = due * np.exp(-rate * (fraction - quantile))
        norm = adaptive.after(norm, cohort, int((norms > norm).sum()), noise)
        assert norm == pytest.approx(due, rel=1e-9)


def test_it_comes_to_the_quantile_of_the_norms():
    rng = np.random.default_rng(5)
    adaptive, norm, last = AdaptiveNorm(0.5, 0.2, 100, 5.0), 0.01, []
    for _ in range(300):
        norms = rng.lognormal(1.0, 0.5, 100)
        norm = adaptive.after(norm, 100, int((norms > norm).sum()), rng.normal())
        last.append(norm)
    assert np.median(last[150:]) == pytest.approx(np.e, rel=0.1)


def test_sites_that_sent_nothing_move_it_neither_up_nor_down():
    adaptive = AdaptiveNorm(0.5, 0.2, 10, 0.0)
    assert adaptive.after(2.0, 0, 0, 0.0) == 2.0
    assert adaptive.after(2.0, 4, 2, 0.0) == 2.0
    assert adaptive.after(2.0, 4, 4, 0.0) > 2.0 > adaptive.after(2.0, 4, 0, 0.0)
