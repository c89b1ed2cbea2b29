"""Control variates of SCAFFOLD (Karimireddy et al. 2020, arXiv:1910.06378)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flstream.client.own_files import KeptTensors
from flstream.client.session import current
from flstream.errors import ClientError
from flstream.job.bodies import CONTROL

if TYPE_CHECKING:
    import torch

    from flstream.client.fl_model import FLModel

_STATE = "scaffold"


class ScaffoldControl:
    """SCAFFOLD at a site: takes the drift towards the site's data out of gradients.

    With plain SGD of a constant learning rate::

        model = flare.receive()
        net.load_state_dict(model.params)
        control = flare.ScaffoldControl(net, model)
        for inputs, labels in batches:
            optimizer.zero_grad()
            criterion(net(inputs), labels).backward()
            control.correct()
            optimizer.step()
        meta = {"control": control.difference(lr), "num_examples": len(data)}
        flare.send(flare.FLModel(params=net.state_dict(), meta=meta))

    The site's own control is kept in its state (:func:`flstream.client.get_state_dir`), zeros at
    first. Beside the model, this takes memory for the received weights and for both controls: three
    times the parameters that require a gradient.

    Args:
        net: Module with the received weights, before its first step.
        model: The model that :func:`flstream.client.receive` returned.

    Raises:
        ClientError: The workflow sends no control variates, or none for a parameter.
    """

    def __init__(self, net: torch.nn.Module, model: FLModel) -> None:
        import torch

        sent = model.meta.get(CONTROL)
        if not isinstance(sent, Mapping):
            raise ClientError(
                f"the received model has no meta[{CONTROL!r}], which the workflow scaffold sends; "
                "set workflow.type = scaffold"
            )
        self._parameters = {
            name: tensor for name, tensor in net.named_parameters() if tensor.requires_grad
        }
        if missing := sorted(self._parameters.keys() - sent.keys()):
            raise ClientError(
                f"parameter {missing[0]!r} has no control variate in meta[{CONTROL!r}]; the net "
                "must have the names of the received model"
            )
        self._names = list(sent)
        self._like = {name: torch.as_tensor(tensor) for name, tensor in sent.items()}
        self._start = {name: tensor.detach().clone() for name, tensor in self._parameters.items()}
        self._global = {
            name: self._like[name].to(device=tensor.device, dtype=tensor.dtype)
            for name, tensor in self._parameters.items()
        }
        self._kept = KeptTensors.of(current(), _STATE)
        self._own = self._kept.read_like(self._global)
        self._steps = 0

    def correct(self) -> None:
        """Add the controls' difference to the gradients, between backward() and step()."""
        self._steps += 1
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                parameter.grad += self._global[name] - self._own[name]

    def difference(self, lr: float) -> dict[str, torch.Tensor]:
        """Renew the site's control, and return its change for ``meta["control"]``.

        That is option II of the paper: the mean of the gradients that the site has followed.

        Args:
            lr: Learning rate of the steps.

        Returns:
            The change of the site's control, by name; zeros for what requires no gradient.

        Raises:
            ClientError: There was no step, or the learning rate is not above 0.
        """
        import torch

        if not (self._steps and lr > 0):
            raise ClientError(
                f"difference({lr!r}) was called after {self._steps} steps; call correct() in each "
                "step, and give it the learning rate of them"
            )
        changes = {name: torch.zeros_like(self._like[name]) for name in self._names}
        for name, parameter in self._parameters.items():
            drift = (self._start[name] - parameter.detach()) / (self._steps * lr)
            change = drift - self._global[name]
            self._own[name] += change
            changes[name] = change.to(changes[name])
        self._kept.write(self._own)
        return changes


class PTScaffoldHelper:
    """NVFlare's SCAFFOLD helper, with the site's control in the site's state.

    So a site has its own control where processes are shared, and a run that is resumed comes to the
    same bits.
    """

    def __init__(self) -> None:
        self._steps = 0
        self._zeros: dict[str, torch.Tensor] = {}
        self._global: dict[str, torch.Tensor] = {}
        self._local: dict[str, torch.Tensor] = {}
        self._difference: dict[str, Any] | None = None

    def init(self, model: torch.nn.Module) -> None:
        """Begin with controls of zeros for a model."""
        import torch

        self._zeros = {
            name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()
        }
        self._global = dict(self._zeros)

    def load_global_controls(self, weights: Mapping[str, Any]) -> None:
        """Take the global control, by the names of the model's state dict."""
        import torch

        self._global = {
            name: torch.as_tensor(weights[name]).to(zero) for name, zero in self._zeros.items()
        }

    def get_params(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Return the global and the site's own control, as of the training's start."""
        self._steps = 0
        self._kept = KeptTensors.of(current(), _STATE)
        self._local = self._kept.read_like(self._zeros)
        return dict(self._global), dict(self._local)

    def model_update(
        self,
        model: torch.nn.Module,
        curr_lr: float,
        c_global_para: Mapping[str, torch.Tensor],
        c_local_para: Mapping[str, torch.Tensor],
    ) -> None:
        """Correct a model after a step of its optimizer."""
        self._steps += 1
        state = model.state_dict()
        for name, value in state.items():
            state[name] = value - curr_lr * (c_global_para[name] - c_local_para[name])
        model.load_state_dict(state)

    def terms_update(
        self,
        model: torch.nn.Module,
        curr_lr: float,
        c_global_para: Mapping[str, torch.Tensor],
        c_local_para: Mapping[str, torch.Tensor],
        model_global: torch.nn.Module,
    ) -> None:
        """Renew the site's control at the end of a training."""
        trained, received = model.state_dict(), model_global.state_dict()
        new: dict[str, torch.Tensor] = {}
        difference: dict[str, Any] = {}
        for name, zero in self._zeros.items():
            drift = (received[name] - trained[name]) / (self._steps * curr_lr)
            new[name] = (self._local[name] - c_global_para[name] + drift).to(zero)
            difference[name] = (new[name] - c_local_para[name]).cpu().numpy()
        self._local, self._difference = new, difference
        self._kept.write(new)

    def get_delta_controls(self) -> dict[str, Any]:
        """Return the change of the site's control, after :meth:`terms_update`."""
        if self._difference is None:
            raise ClientError(
                "get_delta_controls() was called before terms_update(), which makes what is sent"
            )
        return self._difference
