"""The proximal term of FedProx, which a client adds to its loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flstream.errors import ClientError

if TYPE_CHECKING:
    import torch

    from flstream.model.memory import Params


def proximal_term(module: torch.nn.Module, global_params: Params, mu: float) -> torch.Tensor:
    """What training pays for leaving the global model: ``mu / 2 * ||w - w_global||^2``.

    FedProx (Li et al. 2020, arXiv:1812.06127) adds it to the loss of each step, so that sites
    whose data differ do not drift apart::

        loss = criterion(net(inputs), labels) + flare.proximal_term(net, model.params, mu=0.01)

    Args:
        module: what is being trained. Its parameters that require a gradient count.
        global_params: tensors or arrays as they were received, by the names of the module's state
            dict; of the same shapes, on any device. They must not be the module's own memory, as
            those received with ``receive(into=module)`` are.
        mu: how much it costs; 0 or more.

    Returns:
        A scalar on the parameters' device, differentiable by the module's parameters: float64 if
        one of them is, or else float32.

    Raises:
        ClientError: ``mu`` is negative, or a parameter has no counterpart of its shape and memory
            of its own; the message names it.
    """
    import torch

    if not mu >= 0:
        raise ClientError(f"proximal_term was given mu = {mu}; it must be 0 or more")
    total: torch.Tensor | None = None
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad:
            continue
        origin = _counterpart(name, parameter, global_params)
        # Squares of half floats overflow, and their sums lose small ones.
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
