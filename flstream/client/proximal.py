"""Proximal term of FedProx for a client's loss, and its gradient for trainers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from flstream.client import session
from flstream.client.ranks import broadcast
from flstream.errors import ClientError
from flstream.job.bodies import DITTO_LAMBDA, PROXIMAL_MU
from flstream.model.modules import is_own_memory

if TYPE_CHECKING:
    import torch

    from flstream.model.memory import Params


def proximal_term(
    module: torch.nn.Module, global_params: Params | None = None, mu: float | None = None
) -> torch.Tensor:
    """Proximal term of FedProx and Ditto: ``mu / 2 * ||w - w_global||^2``.

    FedProx (Li et al. 2020, arXiv:1812.06127) adds it to the loss of each step, so that sites
    with different data do not drift apart::

        loss = criterion(net(inputs), labels) + flare.proximal_term(net)

    Ditto (Li et al. 2021, arXiv:2012.04221) draws a site's own model to the global one with it: see
    :func:`own_model`.

    A patched trainer adds the term's gradient itself, unless its loss has the term.

    Args:
        module: Module in training. Only parameters that require a gradient are included, and none
            of those that stay with their site.
        global_params: Received tensors or arrays, by the names of the module's state dict, of the
            parameters' shapes and on any device. They must not share memory with the module, as
            they do after ``receive(into=module)``. None takes the global model of the task.
        mu: Weight of the term; 0 or more. None takes what the server gives (``fedprox_mu`` of the
            received ``meta``, or ``ditto_lambda`` for a model of the site's own), and 0 where it
            gives nothing.

    Returns:
        A scalar on the parameters' device, differentiable with respect to them: float64 if one of
        the parameters is float64, else float32.

    Raises:
        ClientError: ``mu`` is negative; or a parameter has no received tensor of its shape or
            shares memory with it, and the message names the parameter; or there is no task to take
            either from.
    """
    import torch

    if mu is None:
        mu = _given_mu()
        if mu == 0:
            return torch.zeros(())
    if not mu >= 0:
        raise ClientError(f"proximal_term was given mu = {mu}; it must be 0 or more")
    global_params = _global_params(global_params)
    running = session.present()
    personal = running.turn.personal_names if running is not None and running.kind else ()
    total: torch.Tensor | None = None
    for name, parameter in module.named_parameters():
        if not parameter.requires_grad or name in personal:
            continue
        origin = _counterpart(name, parameter, global_params)
        squares = squared_distance(parameter, origin.to(parameter.device))
        total = squares if total is None else total + squares.to(total.device)
    if total is None:
        return torch.zeros(())
    return seen_in_loss(total * (mu / 2))


_differentiated = 0  # how often a loss with a proximal term in it was, in this process


def seen_in_loss(term: torch.Tensor) -> torch.Tensor:
    """Return a proximal term by which a patched trainer sees whether its loss has one."""

    def seen(gradient: object) -> None:
        global _differentiated
        _differentiated += 1

    if term.requires_grad:
        term.register_hook(seen)  # type: ignore[no-untyped-call]
    return term


AddGradient = Callable[..., None]
"""Function that adds the proximal term's gradient to the loss's, for trainers, which lack the loss.

It does nothing where a loss of this training had the term. It is called once a step, when the
gradients of all of its batches are summed, and before they are clipped. The bits are those of a
loss with the term, but where that would add more than two numbers: with several batches a step, or
a parameter in several places. ``stepped`` are the step's parameters, None for all; ``scale`` is the
factor of mixed precision on the gradients.
"""


def proximal_gradient(
    module: torch.nn.Module, state: Mapping[str, torch.Tensor]
) -> AddGradient | None:
    """Return what adds the term's gradient in the current training; None where mu is not given.

    All ranks of a site call it, once the model is loaded.
    """
    import torch

    mu, turn = _given_mu(), session.current().turn
    if not mu:
        return None
    if not is_own_memory(module, state):
        raise ClientError(
            f"the workflow sends {PROXIMAL_MU}, and the adapter's tensors are made of the "
            "parameters that are trained, so the patch cannot add the proximal term; set it to 0"
        )
    names = {tensor.data_ptr(): name for name, tensor in state.items() if tensor.numel()}
    trained = [
        parameter
        for parameter in module.parameters()
        if parameter.requires_grad and parameter.data_ptr() in names
    ]
    if not trained:
        return None
    received, personal = turn.global_params or {}, turn.personal_names

    def origin_of(parameter: torch.nn.Parameter) -> torch.Tensor | None:
        name = names[parameter.data_ptr()]
        value = None if name in personal else received.get(name)
        is_exchanged = value is not None and tuple(value.shape) == tuple(parameter.shape)
        return torch.as_tensor(value).detach().to(parameter) if is_exchanged else None

    origins = [origin_of(parameter) for parameter in trained]
    # Rank 0 alone knows which of them the global model has, and their values there.
    exchanged = torch.tensor([origin is not None for origin in origins], device=trained[0].device)
    broadcast([exchanged])
    pairs = [
        (parameter, torch.empty_like(parameter.detach()) if origin is None else origin)
        for parameter, origin, is_there in zip(trained, origins, exchanged.tolist(), strict=True)
        if is_there
    ]
    broadcast(origin for _, origin in pairs)
    before = _differentiated

    def add(stepped: Iterable[torch.Tensor] | None = None, scale: float = 1.0) -> None:
        if _differentiated != before:
            return
        places = None if stepped is None else {id(parameter) for parameter in stepped}
        for parameter, origin in pairs:
            if places is None or id(parameter) in places:
                pull = drift(parameter.detach(), origin).mul_(mu * scale).to(parameter.dtype)
                # In this order a sparse gradient will do.
                parameter.grad = pull if parameter.grad is None else pull.add_(parameter.grad)

    return add


def _given_mu() -> float:
    """Return the mu that the server gives in the current task; 0 without one."""
    task = session.current()
    _, received = task.received_by("proximal_term was given no mu")
    key = PROXIMAL_MU if task.own_origin is None else DITTO_LAMBDA
    return float(received.meta.get(key, 0.0))


def _global_params(params: Params | None) -> Params:
    """Return the global model's tensors, or the training code's own choice of them."""
    task = session.present()
    # Received tensors may be trained in place, and then differ from the global model.
    if task is not None and task.kind is not None:
        received = task.turn.received
        if params is None or (received is not None and params is received.params):
            params = task.own_origin or task.turn.global_params or params
    if params is None:
        raise ClientError(
            "the global model's tensors were not kept in this task, as the server gives no mu; "
            "give proximal_term a copy of what was received"
        )
    return params


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


def squared_distance(parameter: torch.Tensor, origin: torch.Tensor) -> torch.Tensor:
    """Return ``||parameter - origin||^2``, once differentiable in the parameter.

    Torch's own operators would keep three tensors of the parameter's size until the gradient is
    taken, which for a whole model is more than its training needs. This keeps none. The scalar is
    float64 if the parameter is of double precision, else float32.
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
