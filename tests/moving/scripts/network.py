"""A small network with integers among its tensors, and points of four classes."""

import random

import torch
from torch import nn


class Network(nn.Sequential):
    def __init__(self):
        super().__init__(nn.Linear(8, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 4))


def points(name, size):
    """Points and labels of a site: they follow from its name alone."""
    generator = torch.Generator().manual_seed(random.Random(name).getrandbits(32))
    labels = torch.randint(4, (size,), generator=generator)
    found = torch.randn(size, 8, generator=generator) + nn.functional.one_hot(labels, 8)
    return torch.utils.data.TensorDataset(found, labels)
