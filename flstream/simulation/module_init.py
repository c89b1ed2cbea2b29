"""Initial models that are built module by module: on the meta device, then initialised one by one.

A module's own tensors are allocated, initialised by its ``reset_parameters``, and by the
``_init_weights`` of a pretrained model that it is a part of, with a seed of its own, written, and
freed. The values are others than those of the factory as a whole.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from itertools import chain

import torch

from flstream.client.seeding import seed_everything
from flstream.errors import ModelError
from flstream.model.checkpoint import BodyFile
from flstream.model.layout import TensorInfo
from flstream.model.memory import MemoryBody
from flstream.model.source import Scratch, view_of
from flstream.simulation.factory import FactoryModel, place_of

# Bytes of a tensor that are searched at a time.
_STEP = 1 << 20
_INITIALISERS = ("reset_parameters", "_reset_parameters")
_UNSET = 0xFF  # in each byte; of floating-point numbers, NaN


class ModuleByModule:
    """Model whose modules are initialised one by one.

    Args:
        built: Model of the factory on the meta device.
        seed: Seed of the job.

    Attributes:
        layout: Layout of the model.
        peak: Most bytes of tensors in memory at a time: those of the largest module.

    Raises:
        ModelError: A tensor is not a parameter or a buffer of a module.
    """

    def __init__(self, built: FactoryModel, seed: int) -> None:
        self.layout, self._seed = built.layout, seed
        module = built.made.parts[0]
        if built.weights is not None or not isinstance(module, torch.nn.Module):
            raise ModelError(
                "model.build = by_module: the factory returns no module on torch's meta device; "
                "set model.build = auto"
            )
        self._root = module
        names = {place_of(built.made.state[name]): name for name in reversed(self.layout.names)}
        own = {spec.name: spec for spec in self.layout.tensors}
        # Tensors of each module to make and to write, by attribute; tied ones in the first module.
        self._modules: list[tuple[str, dict[str, TensorInfo]]] = []
        for path, child in module.named_modules():
            specs = {}
            for attribute, tensor in _own_tensors(child):
                name = names.pop(place_of(tensor), None)
                name = None if name is None else self.layout.aliases.get(name, name)
                if name in own:
                    specs[attribute] = own.pop(name)
            if specs:
                self._modules.append((path, specs))
        if own:
            raise ModelError(
                f"model.build = by_module: {next(iter(own))!r} is no parameter or buffer of a "
                "module; set model.build = auto"
            )
        self.peak = max(sum(spec.nbytes for spec in specs.values()) for _, specs in self._modules)

    def write(self, file: BodyFile) -> None:
        """Initialise the modules, and write their tensors to a file of the layout.

        Raises:
            ModelError: Nothing initialises a tensor.
            CheckpointError: The file cannot be written.
        """
        scratch = Scratch()
        for path, specs in self._modules:
            child = self._root.get_submodule(path)
            for attribute, spec, body in self._initialised(path, child, specs):
                if _is_unset(body, scratch):
                    raise ModelError(
                        f"model.build = by_module: nothing initialises {spec.name!r}; give its "
                        f"{type(child).__name__} a reset_parameters() that sets {attribute}, or "
                        "set model.build = auto"
                    )
                file.write_tensor(spec.name, body)

    def _initialised(
        self, path: str, module: torch.nn.Module, specs: Mapping[str, TensorInfo]
    ) -> Iterator[tuple[str, TensorInfo, MemoryBody]]:
        """Initialise a module's own tensors, yield them, and free them."""
        metas = {attribute: getattr(module, attribute) for attribute in specs}
        for attribute, meta in metas.items():
            values = torch.empty(meta.shape, dtype=meta.dtype)
            values.view(-1).view(torch.uint8).fill_(_UNSET)
            _put(module, attribute, values, meta)
        key = random.Random(f"flstream/module/{self._seed}/{path}")
        seed_everything(key.getrandbits(63))
        try:
            for name in _INITIALISERS:
                if callable(function := getattr(module, name, None)):
                    function()
            for parent in self._parents(path):
                if callable(function := getattr(parent, "_init_weights", None)):
                    with torch.no_grad():
                        function(module)
                    break
        except Exception as error:
            raise ModelError(
                f"model.build = by_module: the initialiser of {path or 'the model'} "
                f"({type(module).__name__}) raised {type(error).__name__}: {error}; set "
                "model.build = auto"
            ) from error
        for attribute, spec in specs.items():
            yield attribute, spec, MemoryBody.of({spec.name: getattr(module, attribute).detach()})
        for attribute, meta in metas.items():
            _put(module, attribute, meta, meta)

    def _parents(self, path: str) -> Iterator[torch.nn.Module]:
        """Yield a module and those around it, the innermost first."""
        parts = path.split(".")
        for count in range(len(parts), 0, -1):
            yield self._root.get_submodule(".".join(parts[:count]))
        yield self._root


def _own_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    return chain(module.named_parameters(recurse=False), module.named_buffers(recurse=False))


def _put(module: torch.nn.Module, attribute: str, values: torch.Tensor, like: torch.Tensor) -> None:
    """Make a tensor a module's own, as a parameter or buffer as before."""
    if attribute not in module._parameters:
        module._buffers[attribute] = values
    elif isinstance(values, torch.nn.Parameter):
        module._parameters[attribute] = values
    else:
        module._parameters[attribute] = torch.nn.Parameter(values, like.requires_grad)


def _is_unset(body: MemoryBody, scratch: Scratch) -> bool:
    """Return whether no byte of a tensor was written; of integers, -1 may have been."""
    if body.layout.tensors[0].dtype[0] in "IU":
        return False
    ranges = body.layout.ranges(_STEP)
    return body.layout.nbytes > 0 and all(
        bytes(view_of(body, start, stop, scratch)).count(_UNSET) == stop - start
        for start, stop in ranges
    )
