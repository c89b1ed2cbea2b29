"""Client for the exchange job that keeps the model in a file, not in memory.

It stands for a client that trains a part of a model, or on another device, and never has more than
a range of the model in memory. Like the exchange job's script, it adds the site's number to every
weight, here 2 MiB at a time.
"""

from pathlib import Path

import numpy as np

import flstream.client as flare
from flstream.model.checkpoint import FileSource

_STEP = 2 << 20


def add(path: Path, number: int) -> None:
    """Add a number to every weight of a float32 file, in place, 2 MiB at a time."""
    with open(path, "r+b", buffering=0) as file:
        file.seek(FileSource(path).header_bytes)
        while weights := file.read(_STEP):
            file.seek(-len(weights), 1)
            file.write((np.frombuffer(weights, np.float32) + np.float32(number)).data)


flare.init()
number = flare.system_info()["site_index"] + 1
while flare.is_running():
    model = flare.receive(file="model.safetensors")
    assert model is not None
    assert model.file is not None
    add(Path(model.file), number)
    flare.send(flare.FLModel(file=model.file))
