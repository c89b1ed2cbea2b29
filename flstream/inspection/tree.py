"""The tree of a model's modules, from the dots in its tensors' names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from flstream.inspection.overview import Count
from flstream.model.layout import TensorInfo


@dataclass
class Module:
    """A module in the tree of a model.

    Attributes:
        name: full name of the module; empty for the root.
        label: name of the module relative to its parent.
        total: counts over the tensors of the module and of all modules below it.
        modules: child modules by label, in the order of their first tensors.
        tensors: tensors of the module itself, each with its name relative to the module.
    """

    name: str
    label: str
    total: Count = field(default_factory=lambda: Count(0, 0, 0))
    modules: dict[str, Module] = field(default_factory=dict)
    tensors: list[tuple[str, TensorInfo]] = field(default_factory=list)

    def walk(self, depth: int = 0) -> Iterator[tuple[int, Module]]:
        """Yield every module below this one with its depth, parents before children.

        Args:
            depth: depth of the modules directly below this one.
        """
        todo = [(depth, module) for module in reversed(self.modules.values())]
        while todo:
            here, module = todo.pop()
            yield here, module
            todo += [(here + 1, below) for below in reversed(module.modules.values())]

    def document(self) -> list[dict[str, Any]]:
        """Convert the counts of all modules below this one to JSON."""
        return [{"name": module.name, **module.total._asdict()} for _, module in self.walk()]


def build_tree(tensors: Iterable[TensorInfo]) -> Module:
    """Build the tree of modules of some tensors.

    A module with nothing but one module in it is merged with that one. Names are split into at
    most 65 parts.

    Returns:
        The root, whose name is empty.
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


def _count(module: Module, spec: TensorInfo) -> None:
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
