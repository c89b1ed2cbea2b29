"""The clients' part of FedDyn: a regulariser that changes from round to round."""

from __future__ import annotations

from typing import TYPE_CHECKING

from flstream.client import session
from flstream.client.fl_model import FLModel
from flstream.client.own_files import KeptTensors
from flstream.client.proximal import drift, squared_distance, widened
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
        site_session = session.current()
        turn, received = site_session.received_by("DynamicRegulariser was made")
        self._alpha = float(received.meta.get(FEDDYN_ALPHA, 0.0))
        self._parameters: dict[str, torch.nn.Parameter] = {}
        if not self._alpha or turn.kind != "train":
            self._alpha = 0.0
            return
        self._parameters = {
            name: parameter
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        self._received = {
            name: widened(parameter).detach().clone()
            for name, parameter in self._parameters.items()
        }
        self._kept = KeptTensors.of(site_session, _STATE)
        self._gradients = self._kept.read_like(self._received)
        turn.before_keeping[self._kept.path.name] = self._keep

    def term(self) -> torch.Tensor:
        """Return the term: a scalar, differentiable in the module's parameters."""
        import torch

        total = torch.zeros(())
        for name, parameter in self._parameters.items():
            squares = squared_distance(parameter, self._received[name])
            linear = (self._gradients[name] * widened(parameter)).sum()
            term = squares * (self._alpha / 2) - linear
            total = total.to(term.device) + term
        return total

    def _keep(self, answer: FLModel) -> None:
        import torch

        with torch.no_grad():
            for name, parameter in self._parameters.items():
                away = drift(parameter.detach(), self._received[name])
                self._gradients[name] -= self._alpha * away
        self._kept.write(self._gradients)
