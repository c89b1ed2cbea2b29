"""The clients' part of FedDyn: a regulariser that changes from round to round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flstream.client import session
from flstream.client.distance import squared_distance
from flstream.client.own_files import KeptTensors
from flstream.errors import ClientError
from flstream.job.bodies import FEDDYN_ALPHA

if TYPE_CHECKING:
    import torch

_STATE = "feddyn"


class DynamicRegulariser:
    """The dynamic regulariser of FedDyn: ``-<g, w> + alpha / 2 * ||w - w_global||^2``.

    Algorithm 1 of Acar et al. 2021 (arXiv:2111.04263). ``g`` is the gradient of the site's own loss
    where its last training has ended; it begins with zeros, and each training subtracts
    ``alpha * (w - w_global)`` from it. It is kept in the site's own files when the task is
    answered. Two lines of a script are enough::

        regulariser = flare.DynamicRegulariser(net)  # net has the received model
        ...
        loss = criterion(net(inputs), labels) + regulariser.term()

    In an evaluation, and where the server gives no alpha, the term is 0 and nothing is kept.

    It needs the memory of two more models: the received one, and ``g``.

    Args:
        module: Module with the received model, before its first step. Parameters that require a
            gradient are included.

    Raises:
        ClientError: No model was received, or the site's state is of another module.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        here = session.current()
        if here.received is None:
            raise ClientError(
                "DynamicRegulariser was made before a model was received; call receive() first"
            )
        self._alpha = float(here.received.meta.get(FEDDYN_ALPHA, 0.0))
        self._parameters: dict[str, torch.nn.Parameter] = {}
        if not self._alpha or here.kind != "train":
            self._alpha = 0.0
            return
        self._parameters = {
            name: each for name, each in module.named_parameters() if each.requires_grad
        }
        self._received = {
            name: _widened(each).detach().clone() for name, each in self._parameters.items()
        }
        self._kept = KeptTensors.of(here, _STATE)
        found = self._kept.read()
        self._gradients = self._first() if found is None else self._placed(found[0])
        here.before_keeping(self._keep)

    def term(self) -> torch.Tensor:
        """Return the term: a scalar, differentiable with respect to the module's parameters."""
        import torch

        total = torch.zeros(())
        for name, parameter in self._parameters.items():
            squares = squared_distance(parameter, self._received[name])
            linear = (self._gradients[name] * _widened(parameter)).sum()
            term = squares * (self._alpha / 2) - linear
            total = total.to(term.device) + term
        return total

    def _first(self) -> dict[str, torch.Tensor]:
        import torch

        return {name: torch.zeros_like(each) for name, each in self._received.items()}

    def _placed(self, found: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the gradients that were kept, where the parameters are."""
        for name, received in self._received.items():
            if name not in found or found[name].shape != received.shape:
                raise ClientError(
                    f"the site has kept no gradient of parameter {name!r} of shape "
                    f"{list(received.shape)}; give DynamicRegulariser the same module in each task"
                )
        return {name: found[name].to(each) for name, each in self._received.items()}

    def _keep(self) -> None:
        import torch

        with torch.no_grad():
            for name, parameter in self._parameters.items():
                drift = _widened(parameter.detach()) - self._received[name]
                self._gradients[name] -= self._alpha * drift
        self._kept.write(self._gradients, {"format": "pt"})


def _widened(value: torch.Tensor) -> torch.Tensor:
    """Return a tensor in float32 at the least: sums of half floats lose their small terms."""
    import torch

    return value.to(torch.promote_types(value.dtype, torch.float32))
