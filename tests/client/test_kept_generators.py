"""Tests of the random generators, which a site's work on a model of its own leaves alone."""

import random

import numpy as np
import pytest
import torch

from flstream.client.seeding import kept_generators, seed_everything


def draws():
    return random.random(), np.random.rand(), torch.rand(1).item()


@pytest.mark.parametrize("fails", [False, True])
def test_generators_go_on_as_without_the_block(fails):
    with kept_generators():  # those of the test's own process
        seed_everything(3)
        expected = draws()
        seed_everything(3)
        try:
            with kept_generators():
                seed_everything(4)
                assert draws() != expected
                if fails:
                    raise ValueError
        except ValueError:
            assert fails
        assert draws() == expected
