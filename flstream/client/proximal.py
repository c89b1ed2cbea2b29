"""Proximal term of FedProx, which a client adds to its loss."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from flstream.client import session
from flstream.client.distance import squared_distance
from flstream.errors import ClientError
from flstream.job.bodies import DITTO_LAMBDA, PROXIMAL_MU

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
        mu = given_mu()
        if mu == 0:
            return torch.zeros(())
    if not mu >= 0:
        raise ClientError(f"proximal_term was given mu = {mu}; it must be 0 or more")
    global_params = _global_params(global_params)
    running = session.present()
    personal = () if running is None else running.personal_names
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


_differentiated = 0


def times_in_loss() -> int:
    """Return how often a loss with a proximal term in it was differentiated in this process."""
    return _differentiated


def seen_in_loss(term: torch.Tensor) -> torch.Tensor:
    """Return a proximal term, such that a patched trainer sees whether its loss has it."""

    def seen(gradient: object) -> None:
        global _differentiated
        _differentiated += 1

    if term.requires_grad:
        term.register_hook(seen)  # type: ignore[no-untyped-call]
    return term


def given_mu() -> float:
    """Return the weight that the server gives in the current task; 0 where it gives none.

    Raises:
        ClientError: The model was not received yet.
    """
    received = session.current().received
    if received is None:
        raise ClientError(
            "proximal_term was given no mu before a model was received; call receive() first"
        )
    key = PROXIMAL_MU if session.current().own_origin is None else DITTO_LAMBDA
    return float(received.meta.get(key, 0.0))


def _global_params(given: Params | None) -> Params:
    """Return the tensors of the global model.

    Args:
        given: What the training code takes them to be; None for nothing.
    """
    here = session.present()
    kept = None if here is None else here.own_origin or here.global_params
    if given is None and kept is None:
        raise ClientError(
            "the global model's tensors were not kept in this task, as the server gives no mu; "
            "give proximal_term a copy of what was received"
        )
    if given is None or (
        # Where that is what is trained, its values are those of the model no more.
        kept is not None
        and here is not None
        and here.received is not None
        and given is here.received.params
    ):
        assert kept is not None
        return kept
    return given


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
