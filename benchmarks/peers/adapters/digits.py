"""The job on digits for the peers, in NumPy: jobs/virtual does the same for flstream."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import numpy as np
from sklearn.datasets import load_digits  # type: ignore[import-untyped]

SPLIT_SEED, HELD_OUT, EXAMPLES = 7, 360, 18
STEPS, LEARNING_RATE = 5, 0.5
COHORT = 100
# What logistic regression on all of the digits comes to is about 0.95.
LEAST_ACCURACY = 0.85

Array = np.ndarray[Any, Any]


class Digits(NamedTuple):
    """Images of 64 numbers, one-hot labels, and an order whose first part is held out."""

    images: Array
    labels: Array
    order: Array

    def of_site(self, index: int) -> tuple[Array, Array]:
        """Images and labels of one site, drawn as in jobs/virtual."""
        rest = self.order[HELD_OUT:]
        mine = rest[np.random.default_rng([SPLIT_SEED, index]).integers(len(rest), size=EXAMPLES)]
        return self.images[mine], self.labels[mine]


@functools.cache
def load() -> Digits:
    """All of them, once in a process; they come with scikit-learn."""
    digits = load_digits()
    order = np.random.default_rng(SPLIT_SEED).permutation(len(digits.data))
    images = digits.data.astype(np.float32) / 16
    return Digits(images, np.eye(10, dtype=np.float32)[digits.target], order)


def train(images: Array, labels: Array, weight: Array, bias: Array) -> None:
    """Steps of gradient descent over all of a site's examples, in place."""
    for _ in range(STEPS):
        logits = images @ weight + bias
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = powers / powers.sum(axis=1, keepdims=True) - labels
        error *= LEARNING_RATE / len(images)
        weight -= images.T @ error
        bias -= error.sum(axis=0)


def check(weight: Array, bias: Array) -> str:
    """Say what is wrong with the final model, or nothing."""
    digits = load()
    held_out = digits.order[:HELD_OUT]
    scores = digits.images[held_out] @ weight + bias
    right = scores.argmax(axis=1) == digits.labels[held_out].argmax(axis=1)
    accuracy = float(right.mean())
    return f"accuracy is only {accuracy:.3f}" if accuracy < LEAST_ACCURACY else ""
