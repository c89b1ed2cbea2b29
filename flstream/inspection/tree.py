"""The modules of a model, as the dots in its tensors' names tell them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from flstream.inspection.overview import Count
from flstream.model.layout import TensorSpec


@dataclass
class Module:
    """A module: what is below it.

    Attributes:
        name: its full name; empty for the root.
        label: the part of it that the module above lacks.
        total: what there is of its tensors and those of the modules below.
        modules: directly below it, in the order of their first tensors.
        tensors: of its own, each with the part of its name that the module lacks.
    """

    name: str
    label: str
    total: Count = field(default_factory=lambda: Count(0, 0, 0))
    modules: dict[str, Module] = field(default_factory=dict)
    tensors: list[tuple[str, TensorSpec]] = field(default_factory=list)

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Module]]:
        """Every module below this one, with its depth, each before those below it."""
        todo = [(depth, module) for module in reversed(self.modules.values())]
        while todo:
            here, module = todo.pop()
            yield here, module
            todo += [(here + 1, below) for below in reversed(module.modules.values())]

    def document(self) -> list[dict[str, Any]]:
        """The totals of all modules below, for JSON."""
        return [{"name": module.name, **module.total._asdict()} for _, module in self.walk()]


def build_tree(tensors: Iterable[TensorSpec]) -> Module:
    """The modules of some tensors. A module with one module in it and nothing else is one with it.

    Names of more than 64 parts are not taken apart any further.
    """
    root = Module("", "")
    for spec in tensors:
        *parents, last = spec.name.split(".", 64)
        module = root
        _count(module, spec)
        for parent in parents:
            if parent not in module.modules:
                name = f"{module.name}.{parent}" if module is not root else parent
                module.modules[parent] = Module(name, parent)
            module = module.modules[parent]
            _count(module, spec)
        module.tensors.append((last, spec))
    _join(root)
    return root


def _count(module: Module, spec: TensorSpec) -> None:
    total = module.total
    module.total = Count(
        total.tensors + 1, total.parameters + spec.elements, total.bytes + spec.nbytes
    )


def _join(module: Module) -> None:
    for key, below in module.modules.items():
        while len(below.modules) == 1 and not below.tensors:
            (only,) = below.modules.values()
            only.label = f"{below.label}.{only.label}"
            below = only
        module.modules[key] = below
        _join(below)
