"""Models whose checkpoints the server has handed to a worker, by their descriptors."""

from __future__ import annotations

import os

from flstream.client.peer_messages import MapModel
from flstream.errors import CheckpointError, RefusedError
from flstream.model.mapped import MappedModel


class HandedModels:
    """The descriptor of the next task's model. One thread may put it here, and another take it."""

    def __init__(self) -> None:
        self._waiting: dict[bytes, tuple[MapModel, int]] = {}

    def put(self, handed: MapModel, fd: int) -> None:
        """Keep a descriptor, in the place of one that no task has asked for.

        Args:
            handed: What the descriptor is of.
            fd: The descriptor, which is closed here.
        """
        self.close()
        self._waiting[handed.token] = handed, fd

    def take(self, token: bytes) -> MappedModel:
        """Map a model, once.

        Args:
            token: Token under which the server offers it.

        Raises:
            RefusedError: Its checkpoint was not handed over.
            CheckpointError: What was handed over is no sound checkpoint, or that of another model.
            LayoutError: The system has no room for the mapping.
        """
        handed, fd = self._waiting.pop(token, (None, -1))
        if handed is None:
            raise RefusedError("the server has not handed over the checkpoint of this task's model")
        origin = "the checkpoint that the server has handed over"
        try:
            model = MappedModel(fd, origin)
        finally:
            os.close(fd)
        if model.layout.fingerprint != handed.fingerprint:
            raise CheckpointError(f"{origin} has other tensors than the model of the task")
        return model

    def close(self) -> None:
        """Close what was not taken."""
        while self._waiting:
            os.close(self._waiting.popitem()[1][1])
