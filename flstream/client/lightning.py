"""Federated training by a Lightning trainer, after ``nvflare.client.lightning``.

A script patches its trainer once, and then calls it as ever, once for each task::

    import flstream.client.lightning as flare

    flare.patch(trainer)
    while flare.is_running():
        trainer.validate(model, datamodule=data)  # scores the received model
        trainer.fit(model, datamodule=data)  # trains it, and sends it

The whole of :mod:`flstream.client` can be imported from here, too. Trainers of ``lightning`` and of
``pytorch_lightning`` are the same to it.
"""

from __future__ import annotations

import sys
from functools import wraps
from typing import TYPE_CHECKING, Any

from flstream import client
from flstream.client import *  # noqa: F403
from flstream.client.exchange import ModelExchange, seed_task, state_path
from flstream.client.session import current
from flstream.errors import ClientError

if TYPE_CHECKING:
    import torch

__all__ = [*client.__all__, "patch"]

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_PATCHED = "_flstream_callback"
_META = "__fl_meta__"
_STATE = "lightning.pt"


def patch(
    trainer: Any,
    restore_state: bool = True,
    load_state_dict_strict: bool = True,
    update_fit_loop: bool = True,
) -> None:
    """Have a trainer receive the global model, and send back what it has trained.

    ``fit`` and ``validate`` begin with the received model; ``validate`` before ``fit`` scores it.
    After ``fit`` the module's tensors are sent. The number of its optimizer steps is the update's
    weight, unless the module's ``__fl_meta__`` says otherwise. ``test`` and ``predict``, and
    ``validate`` after ``fit``, are the script's own. Each ``fit`` begins with the task's seed, so
    that a score before it changes nothing.

    Optimizers, schedulers, callbacks and the counters of epochs and steps are kept in
    ``get_state_dir()`` without the module's tensors, and taken from there before each ``fit``.

    Args:
        trainer: Trainer with one device.
        restore_state: Whether ``fit`` goes on with the state of optimizers, schedulers and
            callbacks; the counters go on in any case.
        load_state_dict_strict: Whether the module must have all tensors of the received model, and
            no others.
        update_fit_loop: Whether ``max_epochs`` and ``max_steps`` count for each ``fit``, and not
            for all together.

    Raises:
        ClientError: It is no trainer, or has several devices.
    """
    base = _callback_base(trainer)
    if hasattr(trainer, _PATCHED):
        return
    if trainer.world_size > 1:
        raise ClientError(
            f"the trainer has {trainer.world_size} devices, and a site's process has one; make it "
            "with devices=1"
        )
    current().init()
    exchange = ModelExchange(strict=load_state_dict_strict)
    callback = type("FederatedCallback", (_Hooks, base), {})()
    callback.prepare(exchange, restore_state, update_fit_loop)
    trainer.callbacks.append(callback)
    setattr(trainer, _PATCHED, callback)
    fit = trainer.fit

    @wraps(fit)
    def fit_if_due(*args: Any, **kwargs: Any) -> Any:
        return fit(*args, **kwargs) if exchange.begins_training("trainer.fit()") else None

    trainer.fit = fit_if_due


def _callback_base(trainer: Any) -> type:
    """Return the callbacks' base class of the package that a trainer is of."""
    for package in _PACKAGES:
        lightning = sys.modules.get(package)  # without the import there is no trainer of it
        if lightning is not None and isinstance(trainer, lightning.Trainer):
            base: type = lightning.Callback
            return base
    raise ClientError(
        f"patch() was given a {type(trainer).__name__}; give it a Trainer of lightning.pytorch or "
        "of pytorch_lightning"
    )


class _Hooks:
    """What a trainer calls on its way."""

    _exchange: ModelExchange
    _restores: bool
    _extends: bool
    _limits: tuple[int | None, int] | None
    _first_step: int

    def prepare(self, exchange: ModelExchange, restores: bool, extends: bool) -> None:
        """Take what the patch was given."""
        self._exchange, self._restores, self._extends = exchange, restores, extends
        self._limits = None

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """Load the received model, where the script scores it."""
        if _scores(trainer) and self._exchange.task() is not None:
            self._load(module)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Keep the score of the received model; an evaluation is answered with it."""
        if not _scores(trainer) or self._exchange.task() is None:
            return
        self._exchange.metrics = dict(trainer.callback_metrics)
        if self._exchange.task() == "evaluate":
            self._exchange.send({}, {})

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Load the received model, and what the last training has left of the trainer's state."""
        self._load(module)
        path = state_path(_STATE)
        if path.exists():
            _restore(trainer, path, whole=self._restores)
        if self._limits is None:
            self._limits = trainer.max_epochs, trainer.max_steps
        self._first_step = trainer.global_step
        if self._extends:
            epochs, steps = self._limits
            if epochs is not None and epochs > 0:
                trainer.fit_loop.max_epochs = trainer.current_epoch + epochs
            if steps > 0:
                trainer.fit_loop.epoch_loop.max_steps = trainer.global_step + steps
        seed_task()

    def on_fit_end(self, trainer: Any, module: Any) -> None:
        """Keep the trainer's state, and send the module's tensors."""
        steps = trainer.global_step - self._first_step
        if not steps:
            raise ClientError(
                "trainer.fit() made no step; see to it that there are batches, and that max_epochs "
                "and max_steps allow more than the rounds before, or patch with update_fit_loop"
            )
        meta = getattr(module, _META, None) or {}
        if not isinstance(meta, dict):
            raise ClientError(f"{_META} of the module is a {type(meta).__name__}; make it a dict")
        _keep(trainer, state_path(_STATE), whole=self._restores)
        self._exchange.send(module.state_dict(), {"NUM_STEPS_CURRENT_ROUND": steps, **meta})

    def _load(self, module: Any) -> None:
        import torch

        # Tensors made in inference mode could not be trained.
        with torch.inference_mode(mode=False), torch.no_grad():
            self._exchange.load(module, module.state_dict(), lambda state: _assign(module, state))


def _assign(module: torch.nn.Module, state: Any) -> None:
    module.load_state_dict(state, strict=False)  # what may be missing was looked at before


def _scores(trainer: Any) -> bool:
    """Return whether it is the script that validates, and not a training on its way."""
    return bool(trainer.state.fn == "validate")


def _keep(trainer: Any, path: Any, *, whole: bool) -> None:
    """Write the state of a trainer, without its module's tensors.

    Args:
        trainer: The trainer.
        path: Path of the file.
        whole: Whether more than the counters is kept.
    """
    import torch

    state: dict[str, Any] = {"loops": trainer.fit_loop.state_dict()}
    if whole:
        state["optimizers"] = [each.state_dict() for each in trainer.optimizers]
        state["schedulers"] = [each.scheduler.state_dict() for each in trainer.lr_scheduler_configs]
        state["callbacks"] = {
            each.state_key: found for each in trainer.callbacks if (found := each.state_dict())
        }
        state["precision"] = trainer.precision_plugin.state_dict()
    torch.save(state, path)


def _restore(trainer: Any, path: Any, *, whole: bool) -> None:
    """Take over the state that an earlier training has left; see :func:`_keep`.

    Raises:
        ClientError: It has objects that are not read from files.
    """
    import pickle

    import torch

    try:
        state = torch.load(path, weights_only=True)
    except pickle.UnpicklingError as error:
        raise ClientError(
            "the state of the trainer has more than tensors and plain values, probably in a "
            f"callback's state_dict(), and is not read: {str(error).splitlines()[0]}"
        ) from error
    trainer.fit_loop.load_state_dict(state["loops"])
    if not whole:
        return
    for optimizer, found in zip(trainer.optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(found)
    for config, found in zip(trainer.lr_scheduler_configs, state["schedulers"], strict=True):
        config.scheduler.load_state_dict(found)
    for callback in trainer.callbacks:
        if callback.state_key in state["callbacks"]:
            callback.load_state_dict(state["callbacks"][callback.state_key])
    trainer.precision_plugin.load_state_dict(state["precision"])
