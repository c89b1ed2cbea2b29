"""Built-in filters of numbers: percentile and SVT privacy, and Gaussian noise.

Each is a function from a model's numbers, its passage, the filter's place among those of its
direction and the job's arguments to the function that filters a block.
"""

from __future__ import annotations

import math

import numpy as np

from flstream.filters.block import (
    Block,
    BlockFilter,
    Passage,
    Values,
    block_at,
    blocks_of,
    filter_key,
    numbers_of,
)
from flstream.filters.selection import order_statistics, percentile_of
from flstream.model.random_numbers import Floats, exponentials, laplaces, logarithms

# Beyond it, a probability is so small that no choice depends on how small it is.
_MOST_EXPONENT = 600.0


def gaussian_noise(values: Values, passage: Passage, place: int, *, sigma: float) -> BlockFilter:
    """Add a normal random number to each number."""
    return lambda numbers, block: numbers + sigma * block.normals()


def percentile_privacy(
    values: Values, passage: Passage, place: int, *, percentile: float, gamma: float
) -> BlockFilter:
    """Share the largest changes alone, and bound them.

    Shokri and Shmatikov, "Privacy-preserving deep learning", CCS 2015,
    doi:10.1145/2810103.2813687, in the form of NVFlare's filter of that name.

    Args:
        values: The update's differences.
        passage: Its number of steps.
        place: Place of the filter.
        percentile: Percentile of the absolute changes below which a number does not change, from 0
            to 100.
        gamma: The most that a number changes in a step.
    """
    count = sum(map(numbers_of, values.tensors))
    cutoff, most = 0.0, gamma * passage.steps
    if count:
        cutoff = percentile_of(
            lambda: (np.abs(values.block(spec, index)) for spec, index in blocks_of(values)),
            count,
            percentile,
        )

    def apply(numbers: Floats, block: Block) -> Floats:
        if not block.shape:
            return numbers
        numbers[np.abs(numbers) < cutoff] = 0.0
        return np.clip(numbers, -most, most, out=numbers)

    return apply


def svt_privacy(
    values: Values,
    passage: Passage,
    place: int,
    *,
    fraction: float,
    epsilon: float,
    noise_var: float,
    gamma: float,
    tau: float,
) -> BlockFilter:
    """Share a noisy choice of changes with noise, by the sparse vector technique.

    Li et al. 2019, "Privacy-preserving federated brain tumour segmentation", arXiv:1910.00962, with
    the scales of the noise of NVFlare's filter of that name. There, numbers are tested again and
    again, each time with fresh noise, until enough have passed. A number that passes a test with
    probability p, and is tested at random times, passes first after a time that is exponentially
    distributed with rate p. So one draw for each number, E / p with E from the exponential
    distribution, gives the order in which they pass, and the first ones are shared. That takes a
    pass over the update instead of one for every test, and no memory for who has passed.

    Args:
        values: The update's differences.
        passage: Its seed, and its number of steps, by which changes are divided.
        place: Place of the filter.
        fraction: Fraction of the numbers that is shared.
        epsilon: Budget of the choice.
        noise_var: Budget of the shared values.
        gamma: The most that a number changes in a step.
        tau: Threshold of the choice, without its noise.
    """
    count = sum(numbers_of(spec) for spec in values.tensors if spec.shape)
    shared = min(math.ceil(count * fraction), count)
    drawn = float(laplaces(filter_key(passage, place, "threshold"), 0, 1)[0])
    threshold = tau + drawn * gamma * 2 / epsilon
    scale = gamma * 4 * max(shared, 1) / (epsilon * (2 * max(shared, 1)) ** (2 / 3))
    noise = gamma * 2 / noise_var

    def times(numbers: Floats, block: Block) -> Floats:
        change = np.minimum(np.abs(numbers) / passage.steps, gamma)
        lacking = (threshold - change) / scale
        tail = 0.5 * exponentials(-np.minimum(np.abs(lacking), _MOST_EXPONENT))
        chance = np.where(lacking >= 0, tail, 1.0 - tail)
        return -logarithms(block.uniforms("choice")) / chance

    last = 0.0
    if shared:
        (last,) = order_statistics(
            lambda: (
                times(values.block(spec, index), block_at(spec, index, passage, place))
                for spec, index in blocks_of(values, scalars=False)
            ),
            count,
            [shared - 1],
        )

    def apply(numbers: Floats, block: Block) -> Floats:
        if not block.shape:
            return numbers
        is_shared = times(numbers, block) <= last
        noisy = numbers / passage.steps + noise * block.laplaces("noise")
        return np.where(is_shared, np.clip(noisy, -gamma, gamma) * passage.steps, 0.0)

    return apply
