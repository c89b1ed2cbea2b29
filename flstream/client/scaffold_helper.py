"""SCAFFOLD for a script that is written for NVFlare's helper."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from flstream.client.scaffold import keep_control, kept_control
from flstream.errors import ClientError

if TYPE_CHECKING:
    import torch

_FILE = "scaffold_local.safetensors"


class PTScaffoldHelper:
    """What NVFlare's class of that name does, with the site's control in the site's state.

    So a site has its own where processes are shared, and a run that is resumed comes to the same
    bits.
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

        self._zeros = {name: torch.zeros_like(each) for name, each in model.state_dict().items()}
        self._global = dict(self._zeros)

    def load_global_controls(self, weights: Mapping[str, Any]) -> None:
        """Take the global control, by the names of the model's state dict."""
        import torch

        self._global = {
            name: torch.as_tensor(weights[name]).to(zero) for name, zero in self._zeros.items()
        }

    def get_params(self) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """The global control and the site's own, at the beginning of a training."""
        from flstream.client import get_state_dir

        self._steps = 0
        self._local = kept_control(get_state_dir() / _FILE, self._zeros)
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
        from flstream.client import get_state_dir

        trained, received = model.state_dict(), model_global.state_dict()
        new: dict[str, torch.Tensor] = {}
        difference: dict[str, Any] = {}
        for name, zero in self._zeros.items():
            drift = (received[name] - trained[name]) / (self._steps * curr_lr)
            new[name] = (self._local[name] - c_global_para[name] + drift).to(zero)
            difference[name] = (new[name] - c_local_para[name]).cpu().numpy()
        self._local, self._difference = new, difference
        keep_control(get_state_dir() / _FILE, new)

    def get_delta_controls(self) -> dict[str, Any]:
        """The change of the site's control, to be sent.

        Raises:
            ClientError: There was no :meth:`terms_update`.
        """
        if self._difference is None:
            raise ClientError(
                "get_delta_controls() was called before terms_update(), which makes what is sent"
            )
        return self._difference
