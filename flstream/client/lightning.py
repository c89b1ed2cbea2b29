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

import copy
import importlib
import sys
from collections.abc import Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstream import client
from flstream.client import *  # noqa: F403
from flstream.client.exchange import ModelExchange, meta_of, seed_setup, seed_task
from flstream.client.optimizer_state import restores_state
from flstream.client.own_files import load_state, save_state
from flstream.client.proximal import AddGradient, proximal_gradient
from flstream.client.ranks import check_processes, is_first_rank
from flstream.client.session import current
from flstream.errors import ClientError

if TYPE_CHECKING:
    import torch

__all__ = [*client.__all__, "logger", "patch"]

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")
_PATCHED = "_flstream_callback"
_STATE = "lightning.pt"
# Callbacks that keep weights of their own from one fit to the next.
_AVERAGING = {"StochasticWeightAveraging", "WeightAveraging"}


def patch(
    trainer: Any,
    restore_state: bool = True,
    load_state_dict_strict: bool = True,
    update_fit_loop: bool = True,
) -> None:
    """Patch a trainer to receive the global model and send its trained model.

    ``fit`` and ``validate`` begin with the received model; ``validate`` before ``fit`` scores it.
    After ``fit`` the module's tensors are sent. The number of its optimizer steps is the update's
    weight, unless the module's ``__fl_meta__`` says otherwise. ``test`` and ``predict``, and
    ``validate`` after ``fit``, are the script's own. Each training begins with the task's seed, so
    that a score before it changes nothing; what is drawn in ``setup`` before it, such as a random
    split, is the same in every round. Where the workflow sends FedProx's ``fedprox_mu``, the
    proximal term's gradient is added in each step, unless the loss has the term.

    Optimizers, schedulers, callbacks and the counters of epochs and steps are kept in
    ``get_state_dir()`` without the module's tensors, and taken from there before each ``fit``.

    Args:
        trainer: Trainer with as many devices as the site has processes.
        restore_state: Whether ``fit`` goes on with the state of optimizers, schedulers and
            callbacks, unless ``train.optimizer_state`` says so; the counters go on in any case.
        load_state_dict_strict: Whether the module must have all tensors of the received model, and
            no others.
        update_fit_loop: Whether ``max_epochs`` and ``max_steps`` count for each ``fit``, and not
            for all together.

    Raises:
        ClientError: It is no trainer, or has another number of devices.
    """
    base = _callback_base(trainer)
    if hasattr(trainer, _PATCHED):
        return
    check_processes(trainer.world_size, f"make it with devices={current().turns.place.ranks}")
    for callback in trainer.callbacks:
        names = {kind.__name__ for kind in type(callback).__mro__}
        if averaging := names & _AVERAGING:
            raise ClientError(
                f"a trainer with {min(averaging)} cannot be patched: it averages the weights of "
                "one whole training, and would put those of an earlier round in the received "
                "model's place; leave it out"
            )
    current().init()
    exchange = ModelExchange(strict=load_state_dict_strict)
    callback_type = type("FederatedCallback", (_Hooks, base), {})
    federated = callback_type(exchange, restore_state, update_fit_loop)
    trainer.callbacks.insert(0, federated)  # the others begin with the received model
    setattr(trainer, _PATCHED, federated)
    fit, validate = trainer.fit, trainer.validate

    @wraps(fit)
    def fit_if_due(*args: Any, **kwargs: Any) -> Any:
        if not exchange.begins_training("trainer.fit()"):
            return None
        seed_setup()
        result = fit(*args, **kwargs)
        federated.finish(trainer)
        return result

    @wraps(validate)
    def validate_received(*args: Any, **kwargs: Any) -> Any:
        if exchange.task() is not None:
            seed_setup()
        return validate(*args, **kwargs)

    trainer.fit, trainer.validate = fit_if_due, validate_received


def logger(prefix: str = "") -> Any:
    """Return a logger for a trainer, which records its metrics like :func:`flstream.client.log`.

    Args:
        prefix: First part of their names, before a hyphen; empty for none.

    Raises:
        ClientError: Lightning is not imported.
    """
    for package in _PACKAGES:
        if package in sys.modules:
            base = importlib.import_module(f"{package}.loggers").Logger
            return type("ClientLogger", (_Logging, base), {})(prefix)
    raise ClientError("logger() is for a trainer of Lightning; import lightning.pytorch before it")


class _Logging:
    """The methods of the logger's class."""

    name, version = "flstream", "0"

    def __init__(self, prefix: str) -> None:
        super().__init__()
        self._prefix = f"{prefix}-" if prefix else ""

    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Record numbers by name, in the first rank."""
        if is_first_rank():
            for name, value in metrics.items():
                current().log(f"{self._prefix}{name}", value, step)

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Return at once: arguments of training code are in the job's record."""


def _callback_base(trainer: Any) -> type:
    """Return the callbacks' base class of the trainer's package."""
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
    """The hooks of the patch's callback."""

    def __init__(self, exchange: ModelExchange, restores: bool, extends: bool) -> None:
        self._exchange, self._wanted, self._extends = exchange, restores, extends
        # The script's limits of epochs and steps.
        self._limits: tuple[int | None, int] | None = None
        self._first_step = 0
        self._proximal: AddGradient | None = None
        # States of callbacks and loops before the first training.
        self._fresh: dict[str, Any] = {}

    @property
    def _restores(self) -> bool:
        return restores_state(self._wanted)

    def on_validation_start(self, trainer: Any, module: Any) -> None:
        """Load the received model, where the script scores it."""
        if _scores(trainer) and self._exchange.task() is not None:
            self._load(module)

    def on_validation_end(self, trainer: Any, module: Any) -> None:
        """Keep the score of the received model, which answers an evaluation."""
        if not _scores(trainer) or self._exchange.task() is None:
            return
        self._exchange.scored(dict(trainer.callback_metrics))

    def on_fit_start(self, trainer: Any, module: Any) -> None:
        """Load the received model, and the trainer's state of the last training."""
        self._load(module)
        if self._limits is None:
            self._limits = trainer.max_epochs, trainer.max_steps
            self._fresh = copy.deepcopy(_state_of(trainer))
        # The trainer may still count on from a task that does not count, or from that of another
        # model of the site's.
        state = copy.deepcopy(self._fresh)
        path = current().context.state_dir / _STATE
        if path.exists():
            last = load_state(path)
            state |= last if self._restores else {"loops": last["loops"]}
        _restore(trainer, state)
        self._first_step = trainer.global_step
        if self._extends:
            epochs, steps = self._limits
            if epochs is not None and epochs > 0:
                trainer.fit_loop.max_epochs = trainer.current_epoch + epochs
            if steps > 0:
                trainer.fit_loop.epoch_loop.max_steps = trainer.global_step + steps
        self._proximal = proximal_gradient(module, module.state_dict())
        seed_task()

    def on_before_optimizer_step(self, trainer: Any, module: Any, optimizer: Any) -> None:
        """Add FedProx's gradient to the sum of all batches' gradients before clipping."""
        if self._proximal is not None:
            self._proximal(tensor for group in optimizer.param_groups for tensor in group["params"])

    def finish(self, trainer: Any) -> None:
        """Keep the trainer's state, and send the module's tensors, after all callbacks."""
        module = trainer.lightning_module
        steps = trainer.global_step - self._first_step
        if not steps:
            raise ClientError(
                "trainer.fit() made no step; see to it that there are batches, and that max_epochs "
                "and max_steps allow more than the rounds before, or patch with update_fit_loop"
            )
        self._proximal = None
        meta = meta_of(module, steps)
        if is_first_rank():  # in the others it is the same
            _keep(trainer, current().context.state_dir / _STATE, whole=self._restores)
        self._exchange.send(module.state_dict(), meta)

    def _load(self, module: Any) -> None:
        import torch

        # Tensors made in inference mode could not be trained.
        with torch.inference_mode(mode=False), torch.no_grad():
            self._exchange.load(module, module.state_dict(), lambda state: _assign(module, state))


def _assign(module: torch.nn.Module, state: Any) -> None:
    module.load_state_dict(state, strict=False)  # what may be missing was looked at before


def _scores(trainer: Any) -> bool:
    """Return whether the script validates, and not a training in progress."""
    return bool(trainer.state.fn == "validate")


def _keep(trainer: Any, path: Path, *, whole: bool) -> None:
    """Write a trainer's state without its module's tensors, or its counters alone."""
    state = _state_of(trainer)
    if whole:
        state["optimizers"] = [optimizer.state_dict() for optimizer in trainer.optimizers]
        state["schedulers"] = [
            config.scheduler.state_dict() for config in trainer.lr_scheduler_configs
        ]
        state["precision"] = trainer.precision_plugin.state_dict()
    save_state(
        path,
        state if whole else {"loops": state["loops"]},
        "the state of the trainer",
        "probably a callback's state_dict() has: keep plain values there, or patch with "
        "restore_state=False",
    )


def _state_of(trainer: Any) -> dict[str, Any]:
    """Return the states of a trainer's loops, and of its callbacks by their keys."""
    states = {callback.state_key: callback.state_dict() for callback in trainer.callbacks}
    callbacks = {key: state for key, state in states.items() if state}
    return {"loops": trainer.fit_loop.state_dict(), "callbacks": callbacks}


def _restore(trainer: Any, state: Mapping[str, Any]) -> None:
    """Restore a kept state; without optimizers, that of loops and callbacks alone."""
    trainer.fit_loop.load_state_dict(state["loops"])
    for callback in trainer.callbacks:
        if callback.state_key in state["callbacks"]:
            callback.load_state_dict(state["callbacks"][callback.state_key])
    if "optimizers" not in state:
        return
    schedulers = [config.scheduler for config in trainer.lr_scheduler_configs]
    for name, parts in (("optimizers", trainer.optimizers), ("schedulers", schedulers)):
        states = state[name]
        if len(states) != len(parts):
            raise ClientError(
                f"the trainer has {len(parts)} {name}, and the state of the last round has "
                f"{len(states)}; configure the same in each round, or patch with "
                "restore_state=False"
            )
        for part, part_state in zip(parts, states, strict=True):
            part.load_state_dict(part_state)
    trainer.precision_plugin.load_state_dict(state["precision"])
