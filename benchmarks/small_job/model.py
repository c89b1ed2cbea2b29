"""A model of so many random elements."""

import torch


def build(elements):
    """The same weights each time, and an integer beside them."""
    generator = torch.Generator().manual_seed(1)
    return {"w": torch.randn(elements, generator=generator), "steps": torch.tensor(0)}
