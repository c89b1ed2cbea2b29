"""Control variates of SCAFFOLD at a site (Karimireddy et al. 2020, arXiv:1910.06378)."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from flstream.errors import ClientError
from flstream.job.bodies import CONTROL

if TYPE_CHECKING:
    import torch

    from flstream.client.fl_model import FLModel

_FILE = "scaffold.safetensors"


class ScaffoldControl:
    """A site's part in SCAFFOLD: it takes the drift towards the site's own data out of gradients.

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
        model: What :func:`flstream.client.receive` returned.

    Raises:
        ClientError: The workflow sends no control variates, or none for a parameter.
    """

    def __init__(self, net: torch.nn.Module, model: FLModel) -> None:
        import torch

        from flstream.client import get_state_dir

        sent = model.meta.get(CONTROL)
        if not isinstance(sent, Mapping):
            raise ClientError(
                f"the received model has no meta[{CONTROL!r}], which the workflow scaffold sends; "
                "set workflow.type = scaffold"
            )
        self._parameters = {
            name: each for name, each in net.named_parameters() if each.requires_grad
        }
        if missing := sorted(self._parameters.keys() - sent.keys()):
            raise ClientError(
                f"parameter {missing[0]!r} has no control variate in meta[{CONTROL!r}]; the net "
                "must have the names of the received model"
            )
        self._names = list(sent)
        self._like = {name: torch.as_tensor(each) for name, each in sent.items()}
        self._start = {name: each.detach().clone() for name, each in self._parameters.items()}
        self._global = {
            name: self._like[name].to(device=each.device, dtype=each.dtype)
            for name, each in self._parameters.items()
        }
        self._file = get_state_dir() / _FILE
        self._own = kept_control(self._file, self._global)
        self._steps = 0

    def correct(self) -> None:
        """Add the difference of the controls to the gradients, between backward() and step()."""
        self._steps += 1
        for name, parameter in self._parameters.items():
            if parameter.grad is not None:
                parameter.grad += self._global[name] - self._own[name]

    def difference(self, lr: float) -> dict[str, torch.Tensor]:
        """Renew the site's control, and return what is to be sent in ``meta["control"]``.

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
        found = {name: torch.zeros_like(self._like[name]) for name in self._names}
        for name, parameter in self._parameters.items():
            drift = (self._start[name] - parameter.detach()) / (self._steps * lr)
            change = drift - self._global[name]
            self._own[name] += change
            found[name] = change.to(found[name])
        keep_control(self._file, self._own)
        return found


def kept_control(path: Path, like: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """A site's control as its last training has left it; zeros before the first."""
    import torch

    if not path.is_file():
        return {name: torch.zeros_like(each) for name, each in like.items()}
    from safetensors.torch import load_file

    kept = load_file(path)
    return {name: kept[name].to(each) for name, each in like.items()}


def keep_control(path: Path, control: Mapping[str, torch.Tensor]) -> None:
    """Keep a site's control for its next training."""
    from safetensors.torch import save_file

    save_file({name: each.cpu().contiguous() for name, each in control.items()}, path)
