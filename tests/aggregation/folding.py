"""Folding in memory, for tests: updates as state dicts, the next model as one."""

from collections.abc import Mapping, Sequence

import torch
from support import FrontToBack, tensor

from flstream.aggregation.optimizers import Optimization
from flstream.aggregation.partial_sum import PartialSum
from flstream.aggregation.rules import AggregationRule
from flstream.aggregation.update import UpdateSource
from flstream.aggregation.walk import fold_updates
from flstream.model.copy import copy
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource, MemoryBody

State = Mapping[str, torch.Tensor]


class MemorySink:
    """A sink in memory that hands out a buffer of its own, as a file's does."""

    def __init__(self, layout: Layout) -> None:
        self.layout = layout
        self.body = bytearray(layout.nbytes)
        self._view = bytearray()

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        self._view = bytearray(b"\xaa" * (stop - start))
        return [memoryview(self._view)]

    def commit(self, start: int, stop: int) -> None:
        self.body[start:stop] = self._view

    def source(self) -> BufferSource:
        return BufferSource(self.layout, memoryview(self.body))

    def tensors(self) -> dict[str, torch.Tensor]:
        into = MemoryBody.allocate(self.layout)
        copy(self.source(), into)
        return into.tensors


def update(site: str, state: State, weight=1.0, params_type="FULL", partial=False):
    body = MemoryBody.of(state)
    return UpdateSource(site, lambda: FrontToBack(body), weight, params_type, partial)


def fold_into(
    base: State,
    updates: Sequence[UpdateSource],
    rule: AggregationRule | None = None,
    step: int = 1 << 20,
    optimization: Optimization | None = None,
    earlier: PartialSum | None = None,
) -> tuple[MemorySink, str]:
    body, rule = MemoryBody.of(base), rule or AggregationRule()
    sink = MemorySink(body.layout)
    digest = fold_updates(body, updates, rule, sink, step, lambda _: None, optimization, earlier)
    return sink, digest


def fold(base: State, updates: Sequence[UpdateSource], rule=None, **how):
    """The next model, as tensors."""
    return fold_into(base, updates, rule, **how)[0].tensors()


def shifted(state: State, seed: int) -> dict[str, torch.Tensor]:
    """Other values for a state dict whose names begin with their dtype."""
    return {name: tensor(name.split(".")[0], value.shape, seed) for name, value in state.items()}
