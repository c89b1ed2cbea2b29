"""Folding in memory, for tests: updates as state dicts, the next model as one."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from support import FrontToBack, tensor, tensors_of

from flstream.aggregation.optimizers import Optimization, state_layout
from flstream.aggregation.rules import AggregationRule, rule_for
from flstream.aggregation.update import CollectedUpdate
from flstream.aggregation.update_body import LocalBody
from flstream.aggregation.walk import fold_updates
from flstream.codecs.chain import UpdateForm
from flstream.job.aggregation_section import AggregationSection
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource, MemoryBody

State = Mapping[str, torch.Tensor]


def rule_of(method: str, **keys) -> AggregationRule:
    """The rule of a job file with these keys of ``aggregation``, or of its ``args``."""
    own = {key: keys.pop(key) for key in [*keys] if key in AggregationSection.model_fields}
    return rule_for(AggregationSection(method=method, args=keys, **own))


class MemorySink(BufferSource):
    """A body in memory that is written by way of a buffer of its own, as a file's is."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(layout, memoryview(bytearray(layout.nbytes)))

    def views(self, start: int, stop: int) -> Sequence[memoryview]:
        self._view = bytearray(b"\xaa" * (stop - start))
        return [memoryview(self._view)]

    def commit(self, start: int, stop: int) -> None:
        self._body[start:stop] = self._view

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        return tensors_of(self)


class Opening(LocalBody):
    """The body of an update that is made anew for each pass."""

    def __init__(self, make) -> None:
        super().__init__(make())
        self._make = make

    def open(self, update, step):
        return self._make()


def update(site: str, state: State, weight=1.0, params_type="FULL", partial=False):
    body = MemoryBody.of(state)
    return opening(site, lambda: FrontToBack(body), weight, params_type, partial)


def opening(site: str, make, *facts, **keys) -> CollectedUpdate:
    """An update whose body a function makes for each pass over the model."""
    body = Opening(make)
    return CollectedUpdate(site, body, UpdateForm(body.source), *facts, **keys)


def sent(states: Sequence[State], weights=(), params_type="FULL", partial=False):
    """An update of each of site-0, site-1 and so on, of weight 1 where there is no other."""
    return [
        update(f"site-{i}", state, weights[i] if weights else 1.0, params_type, partial)
        for i, state in enumerate(states)
    ]


def fold_into(base: State, updates, rule=None, step=1 << 20, optimization=None, earlier=None):
    body, rule = MemoryBody.of(base), rule or AggregationRule()
    sink = MemorySink(body.layout)
    digest = fold_updates(body, updates, rule, sink, step, lambda _: None, optimization, earlier)
    return sink, digest


def fold(base: State, updates, rule=None, **how) -> dict[str, torch.Tensor]:
    return fold_into(base, updates, rule, **how)[0].tensors


def step_of(optimizer, base: State, updates, state=None, rule=None, step=1 << 20):
    layout = MemoryBody.of(base).layout
    out = MemorySink(state_layout(optimizer.moments, layout, rule or AggregationRule()))
    optimization = Optimization(optimizer, state, out)
    return fold(base, updates, rule, step=step, optimization=optimization), out


def shifted(state: State, seed: int) -> dict[str, torch.Tensor]:
    """Other values for a state dict whose names begin with their dtype."""
    return {name: tensor(name.split(".")[0], value.shape, seed) for name, value in state.items()}


def documented(number: int) -> str:
    """The code of an example of the documentation, which is short."""
    page = (Path(__file__).parents[2] / "docs" / "aggregation.md").read_text()
    block = re.findall(r"^```python\n(.*?)^```$", page, flags=re.MULTILINE | re.DOTALL)[number]
    assert len(block.splitlines()) <= 20
    return block
