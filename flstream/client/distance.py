"""The squared distance of a parameter from fixed values, in little memory."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def squared_distance(parameter: torch.Tensor, origin: torch.Tensor) -> torch.Tensor:
    """Return ``||parameter - origin||^2``, differentiable once with respect to the parameter.

    Torch's own operators would keep three tensors of the parameter's size until the gradient is
    taken, which for a whole model is more than its training needs. This keeps none.

    Args:
        parameter: Tensor of any shape.
        origin: Tensor of the same shape, on the same device, without a gradient.

    Returns:
        A scalar: float64 if the parameter is of double precision, else float32.
    """
    distance: torch.Tensor = _function().apply(parameter, origin)
    return distance


@cache
def _function() -> Any:
    import torch
    from torch.autograd.function import once_differentiable

    class SquaredDistance(torch.autograd.Function):
        """Computes the distance, and its gradient anew from the two tensors."""

        @staticmethod
        def forward(context: Any, parameter: torch.Tensor, origin: torch.Tensor) -> torch.Tensor:
            """Return the squared distance."""
            context.save_for_backward(parameter, origin)
            away = drift(parameter, origin)
            if away.is_complex():
                away = torch.view_as_real(away)
            return away.square_().sum()

        @staticmethod
        @once_differentiable
        def backward(context: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
            """Return the gradient with respect to the parameter."""
            parameter, origin = context.saved_tensors
            away = drift(parameter, origin).mul_(2 * gradient)
            return away.to(parameter.dtype), None

    return SquaredDistance


def drift(parameter: torch.Tensor, origin: torch.Tensor) -> torch.Tensor:
    """Return the difference of a parameter from fixed values, in float32 at the least."""
    wide = widened(parameter)
    return wide - origin.to(wide.dtype)


def widened(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float32 at the least."""
    import torch

    # In half precision, squares overflow and small terms are lost in their sum.
    return value.to(torch.promote_types(value.dtype, torch.float32))
