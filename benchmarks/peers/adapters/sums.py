"""The exchange job's model and arithmetic, for the peers: jobs/exchange does the same for flstream.

Each client adds its own number, from 1, to every weight; the server takes the mean. So each round
adds (clients + 1) / 2, and the result is known exactly.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

SHAPES_VARIABLE = "PEERS_SHAPES"
"""Environment variable with the path of the model's layout: JSON, elements by tensor's name."""


def zeros() -> dict[str, torch.Tensor]:
    """The model, in float32, with the very tensors that jobs/exchange/model.py makes."""
    shapes = json.loads(Path(os.environ[SHAPES_VARIABLE]).read_text())
    # PyTorch allows no dot in the name of a parameter.
    return {name.replace(".", "_"): torch.zeros(count) for name, count in shapes.items()}


def add(params: Mapping[str, torch.Tensor], number: int) -> None:
    """Add a number to every weight, in place."""
    for tensor in params.values():
        tensor += number


def check(tensors: Iterable[tuple[str, torch.Tensor]], clients: int, rounds: int) -> str:
    """Say what is wrong with the final model, or nothing."""
    expected = rounds * (clients + 1) / 2
    missing = {name: tensor.numel() for name, tensor in zeros().items()}
    for name, tensor in tensors:
        if missing.pop(name, None) != tensor.numel():
            return f"{name} has {tensor.numel()} elements, which is wrong"
        if not bool((tensor == expected).all()):
            return f"{name} begins with {float(tensor.flatten()[0])}, not with {expected}"
    return f"{', '.join(missing)} missing" if missing else ""
