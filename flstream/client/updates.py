"""What training code answers, checked and made ready to be sent."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from flstream.client.fl_model import FLModel
from flstream.errors import ClientError
from flstream.model.dense import dense
from flstream.model.header import check_name
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource, Framework, MemoryBody, Params
from flstream.model.ties import find_ties, restore_ties

RESERVED_METRICS = frozenset({"round", "train"})
"""Keys of the summary's table of metrics that are not metrics."""


def metrics_of(model: FLModel) -> dict[str, float]:
    """The metrics of an answer, as plain numbers.

    Raises:
        ClientError: one has a name that is taken; the message names it.
    """
    metrics = {name: float(value) for name, value in (model.metrics or {}).items()}
    for name in metrics.keys() & RESERVED_METRICS:
        raise ClientError(f"a metric may not be named {name!r}, which the summary uses; rename it")
    return metrics


def weight_of(model: FLModel) -> float:
    """The weight of an answer: its number of examples, or 1.

    Raises:
        ClientError: no mean can be made with it.
    """
    for key in ("num_examples", "NUM_STEPS_CURRENT_ROUND"):
        if key in model.meta:
            weight = float(model.meta[key])
            if not (math.isfinite(weight) and weight > 0):
                raise ClientError(f"meta[{key!r}] is {weight}; an update's weight must be above 0")
            return weight
    return 1.0


def framework_of(params: Params) -> Framework:
    """What an update is made of: NumPy arrays only, or tensors too."""
    arrays = all(isinstance(value, np.ndarray | np.generic) for value in params.values())
    return "numpy" if arrays and params else "pytorch"


def params_to_send(
    model: FLModel, round_number: int, layout: Layout | None, selected: Collection[str] | None
) -> tuple[Params, bool]:
    """The tensors of an update that have to travel, and whether it is partial.

    Tensors that are not aggregated keep their old values whatever a site makes of them.

    Args:
        model: the answer.
        round_number: of the task, for messages.
        layout: of the model that was received, None if it was not.
        selected: names of the tensors of that layout that are aggregated, None for all.

    Raises:
        ClientError: there are no tensors, or one is missing that the update has to have.
    """
    if model.params is None:
        raise ClientError(
            f"the answer to round {round_number}'s training has no params; "
            "send FLModel(params=..., ...)"
        )
    partial = bool(model.meta.get("partial", False))
    if layout is None or selected is None or len(selected) == len(layout.tensors):
        return model.params, partial
    own_name = {name: layout.aliases.get(name, name) for name in model.params}
    if not partial:
        # The server will take this update for a partial one, and not miss what should be in it.
        missing = set(selected).difference(own_name.values())
        if missing:
            raise ClientError(
                f"the update of round {round_number} lacks tensor {min(missing)!r}; send it, "
                "or say that it is meant: meta={'partial': True}"
            )
    left_out = layout.by_name.keys() - selected
    params = {name: value for name, value in model.params.items() if own_name[name] not in left_out}
    return params, True


def copies_of(body: MemoryBody) -> Params:
    """New tensors like those of a body, tied where those are."""
    tensors: dict[str, Any] = {}
    for spec in body.layout.tensors:
        value = body.tensors[spec.name]
        tensors[spec.name] = value.copy() if isinstance(value, np.ndarray) else value.clone()
    return tensors | {alias: tensors[name] for alias, name in body.layout.aliases.items()}


class Piece(NamedTuple):
    """A copy of one tensor: its name, dtype code, shape and bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    data: bytes


def copied(params: Params, tied: Mapping[str, str] | None) -> list[Piece]:
    """A copy of an update, with tensors that are tied in it once.

    Args:
        params: its tensors.
        tied: the aliases of the model, None to find those of the tensors.

    Raises:
        LayoutError: a value cannot be streamed, or names that are tied hold different values; the
            message names them.
    """
    for name in params:
        check_name(name)
    known = {name: dense(name, value) for name, value in params.items()}
    kept = restore_ties(known, find_ties(known) if tied is None else tied)
    return [Piece(name, code, array.shape, array.tobytes()) for name, (code, array) in kept.items()]


class Bundle:
    """Copies of the updates of several sites in one body, each tensor named ``<index>/<name>``."""

    def __init__(self) -> None:
        self._pieces: dict[str, Piece] = {}
        self._count = 0

    def add(self, pieces: Iterable[Piece]) -> None:
        """Take in the next update."""
        self._pieces |= {f"{self._count}/{piece.name}": piece for piece in pieces}
        self._count += 1

    def source(self) -> BufferSource:
        """All of them as one body, in one piece. The bundle is empty afterwards."""
        layout = Layout.of((name, piece.dtype, piece.shape) for name, piece in self._pieces.items())
        body = bytearray(layout.nbytes)
        for spec in layout.tensors:
            # Let go of one by one, so that they are not all there twice.
            body[spec.start : spec.stop] = self._pieces.pop(spec.name).data
        return BufferSource(layout, memoryview(body))
