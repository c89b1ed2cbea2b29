"""Models whose checkpoints the server hands to a worker, which maps them.

Their tensors become those of training code, without a copy.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from flstream.client.peer_messages import MapModel
from flstream.errors import CheckpointError, ClientError, RefusedError
from flstream.model.mapped import MappedModel
from flstream.model.memory import Framework, MemoryBody, Params
from flstream.model.modules import exchanged_state
from flstream.model.rebinding import owners_of, rebind

if TYPE_CHECKING:
    from flstream.client.task_model import Into, Place

# Of smaller models it does not matter how they are written to.
_LEAST_LOOKED_AT = 16 << 20


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


def received_mapped(
    model: MappedModel, into: Into | None, place: Place | None, framework: Framework
) -> Params:
    """Return the tensors of a mapped model as training code receives them.

    Args:
        model: The model.
        into: Module or state dict that receives the tensors. Those of them that nothing else
            shows become views of the mapping; the others are copied into.
        place: Function that returns what receives them, given the model's layout, or None; in the
            place of ``into``.
        framework: Kind of the tensors where nothing receives them.

    Raises:
        ClientError: The model does not fit ``into``.
        LayoutError: A tensor cannot be written to; the message names it.
    """
    if into is None and place is not None:
        into = place(model.layout)
    if into is None:
        return model.tensors(framework)
    difference = model.layout.difference(MemoryBody.over(into).layout)
    if difference:
        raise ClientError(f"the model does not fit what it is received into: {difference}")
    # Taken anew, since what the body has made of its tensors shows their memory, too.
    state = dict(into) if isinstance(into, Mapping) else dict(exchanged_state(into))
    moved = _moved(model, into, state)
    rest = {name: state[name] for name in model.layout.by_name if name not in moved}
    if rest:
        model.copy_into(MemoryBody.of(rest, writable=True))
    return state


def _moved(model: MappedModel, into: Into, state: Mapping[str, Any]) -> set[str]:
    """Make tensors views of a mapping, as far as they may be such, and return their names."""
    if all(isinstance(each, np.ndarray) for each in state.values()):
        return set()
    views: dict[str, Any] = dict(model.views("pytorch"))
    return rebind(state, owners_of(into), views)


def copied_bytes(model: MappedModel) -> int:
    """Return how much of a model's mapping was written to; 0 of a small one."""
    return model.written_bytes() if model.layout.nbytes >= _LEAST_LOOKED_AT else 0
