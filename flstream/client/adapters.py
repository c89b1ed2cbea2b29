"""Adapters of another rank than the run's model, and residuals that layers of a base add."""

from __future__ import annotations

import json
import math
import weakref
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from flstream.client import session
from flstream.errors import ClientError, LayoutError
from flstream.job.bodies import RESIDUAL
from flstream.model.lora import check_matrices, layer_in_base, lora_pairs, residual_pair

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


def to_rank(params: Mapping[str, Any], rank: int) -> dict[str, Any]:
    """Return LoRA factors of another rank, for workflows of sites of unequal ranks.

    A smaller rank keeps the first rows of A and columns of B, which have the largest singular
    values under ``workflow.type = hlora``; a larger one has zeros behind them, so that B times A
    stays the same::

        rank, most = flare.system_info()["site_args"]["rank"], 16
        net = get_peft_model(flare.base_model(), LoraConfig(r=rank, lora_alpha=2 * rank))
        while flare.is_running():
            model = flare.receive()
            set_peft_model_state_dict(net, flare.to_rank(model.params, rank))
            train(net)
            params = flare.to_rank(get_peft_model_state_dict(net), most)
            flare.send(flare.FLModel(params=params))

    The server averages products of factors as they are. So ``lora_alpha / r``, by which PEFT
    multiplies them, has to be the same at all sites: that of the run's model. It is checked where
    the adapter is around ``flare.base_model()``, and ``model.factory`` returns one of PEFT.

    Args:
        params: Tensors or NumPy arrays by name, as PEFT names them; those of no pair stay.
        rank: The rank, 1 or more.

    Returns:
        The tensors by name; factors of another rank than before are copies.

    Raises:
        ClientError: There is no pair of factors, the rank is none, or the site's adapter has
            another scaling than the run's model.
    """
    if not isinstance(rank, int) or isinstance(rank, bool) or rank < 1:
        raise ClientError(f"to_rank() was given the rank {rank!r}; give it a whole number from 1")
    try:
        pairs = lora_pairs(params)
        check_matrices({name: params[name].shape for pair in pairs.values() for name in pair})
    except LayoutError as error:
        raise ClientError(f"to_rank() was given no LoRA factors: {error}") from error
    _check_scaling()
    new = dict(params)
    for pair in pairs.values():
        for name, axis in ((pair.a, 0), (pair.b, 1)):
            new[name] = _of_length(params[name], axis, rank)
    return new


def _check_scaling() -> None:
    """Refuse an adapter of the site that scales its product otherwise than the run's model does."""
    own, scalings = session.present(), _adapter_scalings()
    if own is None or not scalings:
        return
    try:
        site = own.context
        # Kept by the model builder, for exports.
        path = Path(site.folder).parents[1] / "export" / "adapter_config.json"
        config = json.loads(path.read_bytes())
    except (ClientError, FileNotFoundError):  # no task yet, or another adapter than PEFT's
        return
    if config.get("rank_pattern") or config.get("alpha_pattern"):
        return
    rank = math.sqrt(config["r"]) if config.get("use_rslora") else config["r"]
    due = config["lora_alpha"] / rank
    wrong = sorted(scaling for scaling in scalings if not math.isclose(scaling, due))
    if wrong:
        raise ClientError(
            f"the adapter of {site.name} multiplies the product of its factors by {wrong[0]:g} "
            f"(lora_alpha / r), and that of model.factory by {due:g}; products are averaged as "
            "they are, so give the site's adapter a lora_alpha that comes to the same"
        )


def _of_length(tensor: Any, axis: int, length: int) -> Any:
    """Return a matrix cut, or with zeros behind it, to a length of an axis."""
    if tensor.shape[axis] == length:
        return tensor
    shape = list(tensor.shape)
    shape[axis] = length
    common = slice(min(length, tensor.shape[axis]))
    place = (common,) if axis == 0 else (slice(None), common)
    if hasattr(tensor, "new_zeros"):
        tensor, new = tensor.detach(), tensor.new_zeros(shape)
    else:
        import numpy as np

        new = np.zeros(shape, tensor.dtype)
    new[place] = tensor[place]
    return new


def add_residuals(base: torch.nn.Module, scaling: float | None) -> None:
    """Add the residuals of received models in the layers of a base.

    Args:
        base: The base, before an adapter is built around it.
        scaling: Scaling of the adapter; None for that of PEFT's layers around those of the base.
    """
    global _has_built
    _bases[base], _has_built = (scaling, set()), True
    _take()


def forget_bases() -> None:
    """Forget that code has built a base: another run begins in this process."""
    global _has_built
    _has_built = False


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


def _adapter_scalings() -> set[float]:
    """Return the scalings of PEFT's layers around the bases of this process."""
    layers = [layer for base in _bases for layer in base.modules()]
    by_name = [getattr(layer, "scaling", None) for layer in layers if hasattr(layer, "lora_A")]
    scalings = [scaling for scaling in by_name if isinstance(scaling, Mapping)]
    return {float(value) for scaling in scalings for value in scaling.values()}


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
