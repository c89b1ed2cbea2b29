"""Federated training by a trainer of Hugging Face or TRL, after NVFlare.

A script patches its trainer once, and then calls it as ever, once for each task::

    import flstream.client.hf as flare

    flare.patch(trainer)
    while flare.is_running():
        trainer.evaluate()  # scores the received model
        trainer.train()  # trains it, and sends it

The whole of :mod:`flstream.client` can be imported from here, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flstream import client
from flstream.client import *  # noqa: F403
from flstream.client.exchange import ModelExchange, meta_of, seed_task
from flstream.client.fl_model import FLModel, number_of
from flstream.client.proximal import AddGradient, proximal_gradient
from flstream.client.ranks import check_processes
from flstream.client.session import current
from flstream.client.trainer_rounds import TrainerRounds
from flstream.errors import ClientError
from flstream.model.modules import adapter_of, is_adapted, load_adapter

if TYPE_CHECKING:
    import torch

__all__ = [*client.__all__, "patch"]

_PATCHED = "_flstream_training"
_OUTPUTS = "trainer_output"
_SEEDS = 1 << 32
# Numbers from trainer.evaluate() that are no scores of the model.
_NO_SCORES = (
    "_runtime",
    "_samples_per_second",
    "_steps_per_second",
    "_model_preparation_time",
    "_num_tokens",
)


def patch(
    trainer: Any,
    restore_state: bool = True,
    load_state_dict_strict: bool = True,
    params_scope: Literal["auto", "model", "adapter"] = "auto",
    server_key_prefix: str | None = None,
    local_epochs: float | None = None,
    local_steps: int | None = None,
    stream_metrics: bool = False,
) -> Any:
    """Patch a trainer to receive the global model and send its trained model.

    ``evaluate`` and ``train`` begin with the received model; ``evaluate`` before ``train`` scores
    it. After ``train`` the model's tensors are sent, weighted by the examples that were trained on
    (by the tokens with ``include_num_input_tokens_seen``), unless the model's ``__fl_meta__`` says
    otherwise. Once the task is answered, ``evaluate`` is the script's own.
    ``train`` begins with the task's seed, and not with ``args.seed``; the order of examples
    follows from ``args.data_seed`` where that is set, else from the task's seed. Where the workflow
    sends FedProx's ``fedprox_mu``, the proximal term's gradient is added in each step, unless the
    loss has the term.

    A task trains so many epochs or steps as the trainer's arguments say, or ``local_epochs`` or
    ``local_steps``; the schedule of the learning rate spans all rounds, unless each begins anew.
    Optimizer, scheduler and counters are kept in ``get_state_dir()`` without the model's tensors,
    and taken from there before each ``train``.

    Args:
        trainer: A ``transformers.Trainer`` or a subclass, in each of the site's processes.
        restore_state: Whether ``train`` goes on with the state of optimizer, scheduler and
            counters, unless ``train.optimizer_state`` says so; if not, each task begins with new
            ones.
        load_state_dict_strict: Whether the model must have all tensors of the received one, and no
            others.
        params_scope: ``"model"`` for all tensors; ``"adapter"`` for those of a PEFT adapter, under
            the names of adapter files; ``"auto"`` for the adapter where there is one.
        server_key_prefix: Prefix of the server's names that the trainer's names lack.
        local_epochs: Epochs of a task.
        local_steps: Optimizer steps of a task.
        stream_metrics: Whether the numbers that the trainer logs are recorded, as ``log`` does it.

    Returns:
        The trainer.

    Raises:
        ClientError: It is no trainer, or has arguments that make no sense in rounds.
    """
    if hasattr(trainer, _PATCHED):
        return trainer
    _expect_trainer(trainer)
    if local_epochs is not None and local_steps is not None:
        raise ClientError("patch() was given local_epochs and local_steps; give it one of them")
    current().init()
    training = _Training(
        trainer,
        ModelExchange(strict=load_state_dict_strict),
        TrainerRounds(trainer, restore_state, local_epochs, local_steps),
        params_scope,
        server_key_prefix or "",
        stream_metrics,
    )
    _keep_outputs_apart(trainer.args)
    training.install()
    setattr(trainer, _PATCHED, training)
    return trainer


def _expect_trainer(trainer: Any) -> None:
    import transformers

    if not isinstance(trainer, transformers.Trainer):
        raise ClientError(
            f"patch() was given a {type(trainer).__name__}; give it a transformers.Trainer"
        )
    args = trainer.args
    check_processes(args.world_size, "use a launcher that it knows")
    for name in ("deepspeed", "fsdp", "load_best_model_at_end"):
        if getattr(args, name, None):
            raise ClientError(f"a trainer with {name} cannot be patched; leave it out")
    if args.bf16 and args.device.type == "cpu":
        print(
            "flstream: the trainer computes in bfloat16 on a CPU, which TRL does unless it is told "
            "otherwise; set bf16=False for float32",
            flush=True,
        )


def _keep_outputs_apart(args: Any) -> None:
    """Write the trainer's checkpoints into the site's folder, and keep the last one.

    By default one is written at the end of the schedule; no round goes on from them.
    """
    work = Path.cwd()
    if not (work / args.output_dir).resolve().is_relative_to(work.resolve()):
        print(
            f"flstream: output_dir = {args.output_dir} is left alone, since all sites would write "
            f"to it; the trainer writes to {work / _OUTPUTS}",
            flush=True,
        )
        args.output_dir = str(work / _OUTPUTS)
    if args.save_total_limit is None:
        args.save_total_limit = 1


class _Training:
    """Replacements of a patched trainer's methods, with the tensors that it exchanges."""

    def __init__(
        self,
        trainer: Any,
        exchange: ModelExchange,
        rounds: TrainerRounds,
        which: Literal["auto", "model", "adapter"],
        prefix: str,
        records: bool,
    ) -> None:
        self._trainer = trainer
        self._exchange = exchange
        self._rounds = rounds
        self._prefix = prefix
        self._records = records
        if which not in ("auto", "model", "adapter"):
            raise ClientError(f"params_scope is {which!r}; it can be auto, model or adapter")
        self._is_adapter = which != "model" and is_adapted(self._model)
        if which == "adapter" and not self._is_adapter:
            raise ClientError(
                f"params_scope is adapter, and the trainer's model is a "
                f"{type(self._model).__name__} without one; give it a peft_config"
            )
        # Whether it is the trainer that calls its methods, and not the script.
        self._is_busy = False
        # The model that the server's was loaded into.
        self._loaded: Any = None
        self._proximal: AddGradient | None = None
        # Where the trainer's counters were when the task's training began.
        self._first_step = self._first_token = 0

    @property
    def _model(self) -> Any:
        """The trainer's model, without a launcher's wrapper."""
        return self._trainer.accelerator.unwrap_model(self._trainer.model)

    def _state(self) -> dict[str, torch.Tensor]:
        """Return the exchanged tensors by the server's names, over the model's own memory."""
        state = adapter_of(self._model) if self._is_adapter else self._model.state_dict()
        return {self._prefix + name: tensor for name, tensor in state.items()}

    def _assign(self, state: Mapping[str, torch.Tensor]) -> None:
        named = {name.removeprefix(self._prefix): tensor for name, tensor in state.items()}
        if self._is_adapter:
            load_adapter(self._model, named)
        else:
            self._model.load_state_dict(named, strict=False)

    def install(self) -> None:
        """Take the place of the trainer's methods, and add the callback."""
        trainer, exchange = self._trainer, self._exchange
        train, evaluate, step = trainer.train, trainer.evaluate, trainer.training_step

        @wraps(train)
        def train_if_due(resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
            if not exchange.begins_training("trainer.train()"):
                return None
            # A path is the script's own wish; True is for trainers that keep no state of rounds.
            is_path = isinstance(resume_from_checkpoint, str | Path)
            checkpoint = Path(resume_from_checkpoint) if is_path else None
            folder = self._rounds.begin(self._load().total_rounds or 1, checkpoint)
            # The order of examples follows from the generator's seed when the loader is made. A
            # trainer with a model_init sets it anew, from an argument that is 42 by default.
            trainer.args.seed = seed_task() % _SEEDS
            if trainer.args.world_size > 1:
                # An evaluation before the training has marked the bare model as prepared
                # (transformers 5); accelerate would leave it without what has the ranks' gradients
                # agree.
                vars(self._model).pop("_is_accelerate_prepared", None)
            result = self._busily(lambda: train(folder, *args, **kwargs))
            self._proximal = None
            self._rounds.keep()
            exchange.send(self._state(), self._meta())
            return result

        @wraps(evaluate)
        def evaluate_received(*args: Any, **kwargs: Any) -> Any:
            # In a training, and once the task is answered, it scores the site's own model. With
            # several data sets it calls itself for each.
            if self._is_busy or exchange.task() is None:
                return evaluate(*args, **kwargs)
            self._load()
            scores = self._busily(lambda: evaluate(*args, **kwargs))
            exchange.scored(
                {
                    name: value
                    for name, value in (scores or {}).items()
                    if name != "epoch" and not name.endswith(_NO_SCORES)
                }
            )
            return scores

        @wraps(step)
        def step_with_term(*args: Any, **kwargs: Any) -> Any:
            loss = step(*args, **kwargs)
            accelerator = trainer.accelerator
            # No callback comes between the last batch of an optimizer step and the clipping.
            if self._proximal is not None and accelerator.sync_gradients:
                scaler = accelerator.scaler
                self._proximal(scale=1.0 if scaler is None else scaler.get_scale())
            return loss

        trainer.train, trainer.evaluate = train_if_due, evaluate_received
        trainer.training_step = step_with_term
        # One that goes on from a checkpoint keeps its model, which is the received one.
        trainer._load_from_checkpoint = lambda *_, **__: None
        trainer.add_callback(self._callback())

    def _callback(self) -> Any:
        """Make the callback that ends a task's training, and records the trainer's logs."""
        from transformers import TrainerCallback

        training, rounds = self, self._rounds

        class TrainingCallback(TrainerCallback):  # type: ignore[misc]
            """Ends a task's training after its steps."""

            def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                """Begin a task's training, now that the trainer has made its model and loader."""
                training._first_step = int(state.global_step)
                training._first_token = int(state.num_input_tokens_seen)
                if training._model is not training._loaded:  # a model_init has made another one
                    training._load()
                training._proximal = proximal_gradient(training._model, training._state())
                seed_task()

            def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
                """End the training after its last step."""
                if state.global_step >= training._first_step + rounds.steps:
                    control.should_training_stop = True

            def on_log(self, args: Any, state: Any, control: Any, **more: Any) -> None:
                """Record numbers, with the step."""
                if not training._records or current().kind is None:
                    return
                step = state.global_step if training._trainer.is_in_train else rounds.done()
                for key, value in (more.get("logs") or {}).items():
                    if number_of(value) is not None:
                        current().log(key, value, step)

        return TrainingCallback()

    def _busily(self, do: Callable[[], Any]) -> Any:
        """Run a method of the trainer, which calls others of its methods meanwhile."""
        self._is_busy = True
        try:
            return do()
        finally:
            self._is_busy = False

    def _load(self) -> FLModel:
        self._loaded = self._model
        return self._exchange.load(self._loaded, self._state(), self._assign)

    def _meta(self) -> dict[str, Any]:
        """Return the answer's meta, with the amount of training as the update's weight."""
        state, args = self._trainer.state, self._trainer.args
        weight = int(state.num_input_tokens_seen) - self._first_token
        if not (args.include_num_input_tokens_seen and weight > 0):
            weight = self._rounds.examples(self._first_step, state.global_step)
        if not weight:
            raise ClientError("trainer.train() made no step; see to it that there is data to train")
        return meta_of(self._model, weight)
