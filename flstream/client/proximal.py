"""Proximal term of FedProx, which a client adds to its loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flstream.errors import ClientError

if TYPE_CHECKING:
    import torch

    from flstream.model.memory import Params


def proximal_term(module: torch.nn.Module, global_params: Params, mu: float) -> torch.Tensor:
    """Proximal term of FedProx: ``mu / 2 * ||w - w_global||^2``.

    FedProx (Li et al. 2020, arXiv:1812.06127) adds it to the loss of each step, so that sites
    with different data do not drift apart::

        loss = criterion(net(inputs), labels) + flare.proximal_term(net, model.params, mu=0.01)

    Args:
        module: Module in training. Only parameters that require a gradient are included.
        global_params: Received tensors or arrays, by the names of the module's state dict, of the
            parameters' shapes and on any device. They must not share memory with the module, as
            they do after ``receive(into=module)``.
        mu: Weight of the term; 0 or more.

    Returns:
        A scalar on the parameters' device, differentiable with respect to them: float64 if one of
        the parameters is float64, else float32.

    Raises:
        ClientError: ``mu`` is negative, or a parameter has no received tensor of its shape or
            shares memory with it; the message names the parameter.
    """
    import torch

    if not mu >= 0:
        raise ClientError(f"proximal_term was given mu = {mu}; it must be 0 or more")
    total: torch.Tensor | None = None
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        origin = _counterpart(name, parameter, global_params)
        # In half precision, squares overflow and small terms are lost in their sum.
        wide = torch.promote_types(parameter.dtype, torch.float32)
        drift = parameter.to(wide) - origin.to(device=parameter.device, dtype=wide)
        squares = drift.abs().square().sum()
        total = squares if total is None else total + squares.to(total.device)
    if total is None:
        return torch.zeros(())
    return total * (mu / 2)


def _counterpart(
    name: str, parameter: torch.nn.Parameter, global_params: Mapping[str, object]
) -> torch.Tensor:
    import torch

    if name not in global_params:
        raise ClientError(
            f"parameter {name!r} is not in the global model that proximal_term was given; "
            "pass the params of receive(), under the names of the module's state dict"
        )
    origin = torch.as_tensor(global_params[name]).detach()
    if origin.shape != parameter.shape:
        raise ClientError(
            f"parameter {name!r} has shape {list(parameter.shape)}, but {list(origin.shape)} in "
            "the global model that proximal_term was given"
        )
    if origin.numel() and origin.data_ptr() == parameter.data_ptr():
        raise ClientError(
            f"parameter {name!r} shares its memory with the global model that proximal_term was "
            "given, so they would never differ; clone what was received"
        )
    return origin
