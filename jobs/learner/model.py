"""Logistic regression in the plane: two weights and a bias."""

import numpy as np


def build():
    """All zeros, from which this convex problem may as well start."""
    return {"weight": np.zeros(2, np.float32), "bias": np.zeros(1, np.float32)}
