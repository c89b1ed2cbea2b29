"""Softmax regression in PyTorch: the code that clients of flstream and of pfl-research both run."""

from __future__ import annotations

import functools

import torch
from task import LEARNING_RATE, STEPS, site_digits


class Softmax(torch.nn.Module):
    """The model of jobs/virtual, of zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(64, 10))
        self.bias = torch.nn.Parameter(torch.zeros(10))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits (n, 10) of images (n, 64)."""
        return images @ self.weight + self.bias


@functools.cache
def site_tensors(index: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images (n, 64) and one-hot labels (n, 10) of one site; each process keeps them."""
    images, labels = site_digits(index)
    return torch.from_numpy(images), torch.from_numpy(labels)


def train(module: Softmax, images: torch.Tensor, labels: torch.Tensor) -> None:
    """Take steps of gradient descent over all of a site's examples, in place."""
    optimizer = torch.optim.SGD(module.parameters(), lr=LEARNING_RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(module(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
