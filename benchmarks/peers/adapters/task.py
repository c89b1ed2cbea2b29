"""The two jobs of all peers, and the journal of a run: one line of JSON an event, in a file.

Every peer's own environment imports this, so it imports nothing but the standard library itself.
"""

from __future__ import annotations

import functools
import json
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

# The job on digits, as jobs/virtual has it for flstream.
SPLIT_SEED, HELD_OUT, EXAMPLES, COHORT = 7, 360, 18, 100
STEPS, LEARNING_RATE = 5, 0.5
# Logistic regression on all of the digits comes to about 0.95.
LEAST_ACCURACY = 0.85


def note(event: str, *, at: float | None = None, **fields: object) -> None:
    """Add a line to the journal; lines this short are written at once, whoever else writes."""
    line = json.dumps({"event": event, "time": time.time() if at is None else at, **fields})
    with Path(os.environ["PEERS_JOURNAL"]).open("a") as file:
        file.write(line + "\n")


def note_idle() -> None:
    """Note that this process is the server, has done its imports, and has no model yet."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    note("idle", pid=os.getpid(), rss=pages * os.sysconf("SC_PAGE_SIZE"))


def zeros() -> dict[str, torch.Tensor]:
    """Return the exchange job's model, with the tensors of jobs/exchange/model.py, in float32."""
    import torch

    shapes = json.loads(Path(os.environ["PEERS_SHAPES"]).read_text())
    # PyTorch allows no dot in the name of a parameter.
    return {name.replace(".", "_"): torch.zeros(count) for name, count in shapes.items()}


def add(params: Mapping[str, torch.Tensor], number: int) -> None:
    """Add a number to every weight, in place."""
    for tensor in params.values():
        tensor += number


def wrong_sums(tensors: Iterable[tuple[str, torch.Tensor]], clients: int, rounds: int) -> str:
    """Describe the first mistake in the exchange job's final model; empty if there is none."""
    # Each client adds its number, from 1; the server takes the mean.
    expected = rounds * (clients + 1) / 2
    missing = {name: tensor.numel() for name, tensor in zeros().items()}
    for name, tensor in tensors:
        if missing.pop(name, None) != tensor.numel():
            return f"{name} has {tensor.numel()} elements, which is wrong"
        if not bool((tensor == expected).all()):
            return f"{name} begins with {float(tensor.flatten()[0])}, not with {expected}"
    return f"{', '.join(missing)} missing" if missing else ""


@functools.cache
def digits() -> tuple[Any, Any, Any]:
    """Return images of 64 numbers, one-hot labels, and an order whose first part is held out."""
    import numpy as np
    from sklearn.datasets import load_digits  # type: ignore[import-untyped]

    loaded = load_digits()
    order = np.random.default_rng(SPLIT_SEED).permutation(len(loaded.data))
    return loaded.data.astype(np.float32) / 16, np.eye(10, dtype=np.float32)[loaded.target], order


def site_digits(index: int) -> tuple[Any, Any]:
    """Return images and labels of one site, drawn as in jobs/virtual."""
    import numpy as np

    images, labels, order = digits()
    rest = order[HELD_OUT:]
    mine = rest[np.random.default_rng([SPLIT_SEED, index]).integers(len(rest), size=EXAMPLES)]
    return images[mine], labels[mine]


def train(images: Any, labels: Any, weight: Any, bias: Any) -> None:
    """Take steps of gradient descent over all of a site's examples, in place."""
    import numpy as np

    for _ in range(STEPS):
        logits = images @ weight + bias
        powers = np.exp(logits - logits.max(axis=1, keepdims=True))
        error = powers / powers.sum(axis=1, keepdims=True) - labels
        error *= LEARNING_RATE / len(images)
        weight -= images.T @ error
        bias -= error.sum(axis=0)


def note_digits(weight: Any, bias: Any) -> None:
    """Note the accuracy of a final model, and whether it is too little."""
    images, labels, order = digits()
    held_out = order[:HELD_OUT]
    scores = images[held_out] @ weight + bias
    accuracy = float((scores.argmax(axis=1) == labels[held_out].argmax(axis=1)).mean())
    wrong = f"accuracy is only {accuracy:.3f}" if accuracy < LEAST_ACCURACY else ""
    note("result", wrong=wrong, accuracy=accuracy)
