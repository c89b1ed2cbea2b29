"""A network of a base and a head."""

import torch


class Net(torch.nn.Module):
    """The same weights each time: ``width * width + 2 * width`` of the base, and a head.

    Args:
        width: Number of inputs, and of numbers between the layers.
    """

    def __init__(self, width):
        super().__init__()
        torch.manual_seed(1)
        self.base = torch.nn.Linear(width, width)
        self.head = torch.nn.Linear(width, 2)

    def forward(self, inputs):
        """Logits (n, 2) of inputs (n, width)."""
        return self.head(torch.tanh(self.base(inputs)))
