"""Robust rules in plain NumPy, on whole models in memory: what the walk has to come to."""

import numpy as np


def distances(updates):
    """Distances of all pairs of rows."""
    return np.linalg.norm(updates[:, None] - updates[None], axis=2)


def krum_order(updates, byzantine):
    """The places of the rows, the one with the lowest score first."""
    squares = distances(updates) ** 2
    near = len(updates) - byzantine - 2
    scores = [
        np.sort(np.delete(row, place))[: max(near, 0)].sum() for place, row in enumerate(squares)
    ]
    return np.argsort(scores, kind="stable")


def multi_krum(updates, byzantine, chosen):
    """The mean of the rows with the lowest scores."""
    return updates[np.sort(krum_order(updates, byzantine)[:chosen])].mean(axis=0)


def bulyan(updates, byzantine):
    """Of n - 2 f rows by repeated Krum, the mean of the n - 4 f values nearest to the median."""
    left, selected = list(range(len(updates))), []
    while len(selected) < len(updates) - 2 * byzantine:
        selected.append(left.pop(krum_order(updates[left], byzantine)[0]))
    values = updates[selected]
    near = np.argsort(np.abs(values - np.median(values, axis=0)), axis=0, kind="stable")
    kept = len(values) - 2 * byzantine
    return np.take_along_axis(values, near[:kept], axis=0).mean(axis=0)


def geometric_median(updates):
    """The point with the least sum of distances, by many plain Weiszfeld iterations."""
    point = np.median(updates, axis=0)
    for _ in range(20_000):
        weights = 1 / np.maximum(np.linalg.norm(updates - point, axis=1), 1e-13)
        point = weights @ updates / weights.sum()
    return point
