"""Residuals of adapters, which the layers of a base add to what they compute."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from flstream.errors import ClientError
from flstream.job.bodies import RESIDUAL
from flstream.model.lora import layer_in_base, residual_pair

if TYPE_CHECKING:
    import torch

_A = residual_pair("").a


class _Residual(NamedTuple):
    """Factors of a layer's residual."""

    a: torch.Tensor
    b: torch.Tensor


# Bases of this process with the scaling that its code gave, and the layers that add a residual.
_bases: weakref.WeakKeyDictionary[torch.nn.Module, tuple[float | None, set[str]]]
_bases = weakref.WeakKeyDictionary()
# Values that came with the last model, until a base takes the residual from there.
_received: Mapping[str, Any] | None = None
# Whether code has built a base in this process, which it is to keep.
_has_built = False
# Residuals by name of the layer, without those of zeros.
_residuals: dict[str, _Residual] = {}


def add_residuals(base: torch.nn.Module, scaling: float | None) -> None:
    """Add the residuals of received models in the layers of a base.

    Args:
        base: The base, before an adapter is built around it.
        scaling: Scaling of the adapter; None for that of PEFT's layers around those of the base.
    """
    global _has_built
    _bases[base], _has_built = (scaling, set()), True
    _take()


def receive_residuals(meta: Mapping[str, Any]) -> None:
    """Take the residuals of a received model from its ``meta``; none replaces the last ones."""
    global _received
    _received = meta
    _residuals.clear()
    if _bases:
        _take()


def check_residuals() -> None:
    """Refuse training with a residual that no base of this process has added.

    Raises:
        ClientError: The module of ``base_model()`` is gone, such as after a copy of it.
    """
    if _has_built and not _bases and _received is not None:
        sent = _received.get(RESIDUAL)
        if isinstance(sent, Mapping) and _filled(sent):
            raise ClientError(
                "the model came with a residual, which the module of flare.base_model() adds, and "
                "that module is gone; keep it, and build the adapter around it and not a copy"
            )


def adapter_scalings() -> set[float]:
    """Return the scalings of PEFT's layers around the bases of this process."""
    layers = [layer for base in _bases for layer in base.modules()]
    found = [getattr(layer, "scaling", None) for layer in layers if hasattr(layer, "lora_A")]
    return {float(value) for each in found if isinstance(each, Mapping) for value in each.values()}


def _take() -> None:
    """Take the residuals that were received, and let each base add them."""
    global _received
    if _received is not None:
        sent, _received = _received.get(RESIDUAL), None
        _residuals.update(_filled(sent) if isinstance(sent, Mapping) else {})
    for base, (_, layers) in _bases.items():
        for layer in _residuals.keys() - layers:
            try:
                adapted = base.get_submodule(layer)
            except AttributeError as error:
                raise ClientError(
                    f"the adapter has a layer {layer!r}, and the base has none; build the adapter "
                    "around flare.base_model(), and name its layers as PEFT does"
                ) from error
            own: Any = getattr(adapted, "base_layer", adapted)
            own.register_forward_hook(partial(_add, weakref.ref(base), layer))
            layers.add(layer)


def _filled(sent: Mapping[str, Any]) -> dict[str, _Residual]:
    """Return residuals by name of the layer in the base, without columns of zeros."""
    import torch

    residuals = {}
    for name in sent:
        layer = name.removesuffix(_A)
        if layer == name:
            continue
        a, b = (torch.as_tensor(sent[part]) for part in residual_pair(layer))
        counts = a.any(1) & b.any(0)
        if counts.any():
            residuals[layer_in_base(layer)] = _Residual(a[counts], b[:, counts])
    return residuals


def _add(
    base: weakref.ref[torch.nn.Module], layer: str, _: Any, inputs: Any, output: torch.Tensor
) -> torch.Tensor | None:
    """Add a layer's residual to its output, times the scaling of its adapter."""
    residual = _residuals.get(layer)
    if residual is None:
        return None
    values = inputs[0]
    if residual.a.device != values.device:
        a, b = residual
        residual = _residuals[layer] = _Residual(a.to(values.device), b.to(values.device))
    change = values.to(residual.a.dtype) @ residual.a.T @ residual.b.T
    added: torch.Tensor = output + (_scaling(base(), layer) * change).to(output.dtype)
    return added


def _scaling(base: torch.nn.Module | None, layer: str) -> float:
    """Return the scaling of the adapter of a layer."""
    own = None if base is None else _bases[base][0]
    if own is not None:
        return own
    adapted: Any = None if base is None else base.get_submodule(layer)
    scaling = getattr(adapted, "scaling", None)
    if not isinstance(scaling, Mapping) or not scaling:
        raise ClientError(
            f"the layer {layer!r} of the base has a residual, and no adapter of PEFT around it "
            "that says by what it is scaled; give flare.base_model(scaling=...) your adapter's "
            "lora_alpha / r"
        )
    active = [name for name in adapted.active_adapters if name in scaling]
    return float(scaling[active[0] if active else next(iter(scaling))])
