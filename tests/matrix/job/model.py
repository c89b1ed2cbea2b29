"""A model of several dtypes, and training whose bits no processor's vector units decide.

All factors are powers of two, so that a product is exact whether or not it is fused with a sum, and
random numbers are drawn as integers.
"""

import random

import numpy as np
import torch


class Net(torch.nn.Module):
    """``width`` float32 weights of a base, a head, and buffers of other dtypes."""

    def __init__(self, width):
        super().__init__()
        steps = torch.arange(width)
        self.base = torch.nn.Parameter((steps % 37 - 18) / 64)
        self.head = torch.nn.Parameter((steps[: width // 8] % 11 - 5) / 32)
        self.register_buffer("wide", ((steps[:5] - 2) / 4).double())
        self.register_buffer("narrow", ((steps[: width // 4] % 5 - 2) / 8).bfloat16())
        self.register_buffer("steps", torch.tensor(0))


class Adapter(torch.nn.Module):
    """What is trained around a base of ``width`` weights: an eighth of that."""

    def __init__(self, width):
        super().__init__()
        self.adapter = torch.nn.Parameter((torch.arange(width // 8) % 7 - 3) / 64)


class Dense(torch.nn.Module):
    """A linear layer of ``width / 4`` inputs and eight outputs."""

    def __init__(self, width):
        super().__init__()
        self.fc = torch.nn.Linear(width // 4, 8, bias=False)
        steps = torch.arange(2 * width).view(8, -1)
        self.fc.weight = torch.nn.Parameter((steps % 13 - 6) / 64)


class Factors(torch.nn.Module):
    """Factors of rank two of that layer's change."""

    def __init__(self, width):
        super().__init__()
        self.fc = torch.nn.Module()
        for name, shape in (("lora_A", (2, width // 4)), ("lora_B", (8, 2))):
            factor = torch.nn.Linear(shape[1], shape[0], bias=False)
            steps = torch.arange(factor.weight.numel()).view(shape)
            factor.weight = torch.nn.Parameter((steps % 7 - 3) / 64 * (name == "lora_A"))
            setattr(self.fc, name, factor)


def targets(net, index):
    """Targets of a site's base and head, by the index of the site."""
    generator = torch.Generator().manual_seed(index)
    shapes = net.base.shape, net.head.shape
    return [torch.randint(-64, 65, shape, generator=generator) / 64 for shape in shapes]


def loss_of(net, aims):
    """Half the squared distance from the targets, plus noise that only the task's seed decides."""
    loss = 0.0
    for weights, aim in zip((net.base, net.head), aims, strict=True):
        noise = torch.randint(-8, 9, aim.shape) / 256
        loss = loss + ((weights - aim + noise) ** 2).sum() / 2
    return loss


@torch.no_grad()
def move_buffers(net, index):
    """Change what no gradient moves, by all three global generators."""
    net.steps += 1 + index
    net.wide += random.randrange(-4, 5) / 8
    net.narrow += (int(np.random.randint(-4, 5)) / 16) * torch.ones_like(net.narrow)


@torch.no_grad()
def accuracy(net, aims):
    """The share of base weights within a half of their target."""
    return ((net.base - aims[0]).abs() < 0.5).sum().item() / aims[0].numel()
