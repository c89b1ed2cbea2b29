"""Gradient of FedProx's proximal term, for patches of trainers, which do not have the loss."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from flstream.client.distance import drift
from flstream.client.proximal import given_mu, times_in_loss
from flstream.client.ranks import broadcast
from flstream.client.session import current
from flstream.errors import ClientError
from flstream.job.bodies import PROXIMAL_MU
from flstream.model.modules import is_own_memory

if TYPE_CHECKING:
    import torch


class ProximalGradient:
    """The gradient of the proximal term, for trainers whose loss is not at hand.

    Args:
        mu: Weight of the term.
        origins: Parameters, each with its value in the global model.
    """

    def __init__(
        self, mu: float, origins: Sequence[tuple[torch.nn.Parameter, torch.Tensor]]
    ) -> None:
        self._mu = mu
        self._origins = origins
        self._times_in_loss = times_in_loss()

    def add(self, stepped: Iterable[torch.Tensor] | None = None, scale: float = 1.0) -> None:
        """Add the gradient to that of the loss, unless a loss of this training had the term.

        It is added once a step, when the gradients of all of its batches are summed, and before
        they are clipped. The bits are those of a loss with the term, but where that would add more
        than two numbers: with several batches a step, or a parameter in several places.

        Args:
            stepped: Parameters of the step; None for all.
            scale: Factor that the gradients have, as mixed precision scales them.
        """
        if self._times_in_loss != times_in_loss():
            return
        places = None if stepped is None else {id(parameter) for parameter in stepped}
        for parameter, origin in self._origins:
            if places is None or id(parameter) in places:
                pull = drift(parameter.detach(), origin).mul_(self._mu * scale).to(parameter.dtype)
                # In this order a sparse gradient will do.
                parameter.grad = pull if parameter.grad is None else pull.add_(parameter.grad)


def proximal_gradient(
    module: torch.nn.Module, state: Mapping[str, torch.Tensor]
) -> ProximalGradient | None:
    """Return the gradient of the term in the current training; None where the server gives no mu.

    All ranks of a site call it, once the model is loaded.

    Args:
        module: Module in training.
        state: Its tensors that are exchanged, by the server's names and over its memory.

    Raises:
        ClientError: The exchanged tensors are not the parameters that are trained.
    """
    import torch

    mu, session = given_mu(), current()
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
    received, personal = session.global_params or {}, session.personal_names

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
    return ProximalGradient(mu, pairs)
