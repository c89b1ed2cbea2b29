"""The tensors of a Hugging Face trainer that are exchanged, and their names on the server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal

from flstream.errors import ClientError
from flstream.model.modules import adapter_of, is_adapted, load_adapter

if TYPE_CHECKING:
    import torch


class TensorScope:
    """The tensors of a Hugging Face trainer that are exchanged.

    Args:
        trainer: The trainer.
        which: The patch's ``params_scope``.
        prefix: What the server's names begin with, and the trainer's do not.

    Raises:
        ClientError: There is no adapter.
    """

    def __init__(
        self, trainer: Any, which: Literal["auto", "model", "adapter"], prefix: str
    ) -> None:
        if which not in ("auto", "model", "adapter"):
            raise ClientError(f"params_scope is {which!r}; it can be auto, model or adapter")
        self._trainer = trainer
        self._prefix = prefix
        self._is_adapter = which == "adapter" or (which == "auto" and is_adapted(self.model))
        if self._is_adapter and not is_adapted(self.model):
            raise ClientError(
                f"params_scope is adapter, and the trainer's model is a "
                f"{type(self.model).__name__} without one; give it a peft_config"
            )

    @property
    def model(self) -> Any:
        """The trainer's model, without what a launcher wraps it in."""
        return self._trainer.accelerator.unwrap_model(self._trainer.model)

    def state(self) -> dict[str, torch.Tensor]:
        """The tensors by the server's names, over the model's own memory."""
        state = adapter_of(self.model) if self._is_adapter else self.model.state_dict()
        return {self._prefix + name: tensor for name, tensor in state.items()}

    def assign(self, state: Mapping[str, torch.Tensor]) -> None:
        """Copy tensors into the model, by the server's names."""
        named = {name.removeprefix(self._prefix): tensor for name, tensor in state.items()}
        if self._is_adapter:
            load_adapter(self.model, named)
        else:
            self.model.load_state_dict(named, strict=False)
