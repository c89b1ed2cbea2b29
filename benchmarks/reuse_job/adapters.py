"""Square matrices in float32, each with an adapter of about 1% of its bytes, and their training.

It adds numbers of the site's own to the adapters, or to all tensors, in place.
"""

import argparse

import torch
from torch import nn

import flstream.client as flare
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
    for parameter in model.parameters():
        nn.init.normal_(parameter)
    return model


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--size")
    parser.add_argument("--trained", choices=["adapters", "all"])
    options = parser.parse_args()
    flare.init()
    number = int(flare.get_site_name().removeprefix("site-"))
    net = empty(options.size)
    tensors = net.state_dict()
    while flare.is_running():
        flare.receive(into=net)
        for name, tensor in tensors.items():
            if "adapter" in name:
                tensor += torch.randn(tensor.shape) / number
            elif options.trained == "all":
                tensor += number / 8
        flare.send(flare.FLModel(params=tensors))
