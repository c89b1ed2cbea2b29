"""Square matrices in float32, each with an adapter of about 1% of its bytes."""

import torch
from torch import nn

from flstream.units import parse_bytes

WIDTH, RANK = 2048, 10


class Layer(nn.Module):
    """A matrix, and the two of its adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(WIDTH, WIDTH), requires_grad=False)
        self.adapter_a = nn.Parameter(torch.empty(RANK, WIDTH))
        self.adapter_b = nn.Parameter(torch.empty(WIDTH, RANK))


def empty(size: str | int) -> nn.ModuleList:
    """Make as many layers as there is room for, at least one, of uninitialised memory."""
    layer = 4 * (WIDTH * WIDTH + 2 * RANK * WIDTH)
    return nn.ModuleList(Layer() for _ in range(max(parse_bytes(size) // layer, 1)))


def build(size: str | int) -> nn.ModuleList:
    """Make the layers, with random numbers."""
    model = empty(size)
    for each in model.parameters():
        nn.init.normal_(each)
    return model
