"""Steps of a Hugging Face trainer in each task, and its state between tasks."""

from __future__ import annotations

import copy
import math
import os
from pathlib import Path
from typing import Any

from flstream.client.optimizer_state import restores_state
from flstream.client.ranks import is_first_rank
from flstream.client.session import current
from flstream.errors import ClientError

_STATE = "trainer"
# Files of a trainer's checkpoint; it looks for them under these names.
_OPTIMIZER, _SCHEDULER, _SCALER = "optimizer.pt", "scheduler.pt", "scaler.pt"
_COUNTERS = "trainer_state.json"
_PLANNED = "planned_steps"


class TrainerRounds:
    """Steps of a trainer in each task, and the state kept from one task to the next.

    With ``restores``, a task resumes where the last one ended, unless the job says otherwise. A
    task has ``steps`` steps, or else ``epochs`` epochs, or else the trainer's.
    """

    def __init__(
        self, trainer: Any, restores: bool, epochs: float | None, steps: int | None
    ) -> None:
        self._trainer = trainer
        self._wanted = restores
        args = trainer.args
        if steps is None and epochs is None and args.max_steps > 0:
            steps = args.max_steps
        self._epochs = args.num_train_epochs if epochs is None else epochs
        self._steps = steps
        # Steps of all rounds together, as they were planned when the first one began.
        self._planned = 0
        self._original_scheduler = trainer.create_scheduler
        trainer.create_scheduler = self._create_scheduler
        # States of the script's own optimizer and scheduler, if it has made any.
        parts = (trainer.optimizer, trainer.lr_scheduler) if trainer.optimizer is not None else ()
        self._first_states = [part and copy.deepcopy(part.state_dict()) for part in parts]
        if self._restores:
            # EarlyStoppingCallback, for one, counts on from round to round.
            args.restore_callback_states_from_checkpoint = True

    @property
    def _restores(self) -> bool:
        return restores_state(self._wanted)

    @property
    def steps(self) -> int:
        """Optimizer steps of a task; a ClientError says that they cannot be counted."""
        if self._steps is None:
            try:
                batches = len(self._trainer.get_train_dataloader())
            except TypeError as error:
                raise ClientError(
                    "the training data has no length, so epochs cannot be counted in steps; patch "
                    "with local_steps"
                ) from error
            self._steps = math.ceil(self._epochs * self._epoch_steps(batches))
        if self._steps <= 0:
            raise ClientError(f"{self._steps} steps a task are no training; set at least one")
        return self._steps

    def begin(self, rounds: int, checkpoint: Path | None) -> str | None:
        """Set the trainer's limits for a task; return the folder to resume from, if any.

        The learning rate's schedule spans the job's ``rounds``. ``checkpoint`` is the path that the
        script wants to resume from.
        """
        last = current().context.state_dir / _STATE
        self._planned = self.steps * (rounds if self._restores else 1)
        folder = checkpoint
        if self._restores and last.exists():
            self._planned = int((last / _PLANNED).read_text())
            folder = checkpoint or last
        elif folder is None or not self._restores:
            # The trainer may still have what came of a task that does not count, or of another
            # model of the site's.
            self._begin_anew()
        done = 0 if folder is None else self._done(folder)
        if done >= self._planned:
            print(
                f"flstream: the learning rate's schedule was planned for {self._planned} steps and "
                "has come to its end, where it stays",
                flush=True,
            )
        self._trainer.args.max_steps = max(self._planned, done + self.steps)
        return None if folder is None else os.fspath(folder)

    def keep(self) -> None:
        """Keep the state of optimizer, scheduler and counters for the next task.

        It is the same in all ranks, and rank 0 keeps it.
        """
        import torch
        from transformers.trainer_callback import ExportableState

        trainer = self._trainer
        if not self._restores or not is_first_rank():
            return
        folder = current().context.state_dir / _STATE
        folder.mkdir(exist_ok=True)
        parts = {_OPTIMIZER: trainer.optimizer, _SCHEDULER: trainer.lr_scheduler}
        for name, part in {**parts, _SCALER: trainer.accelerator.scaler}.items():
            if part is not None:
                torch.save(part.state_dict(), folder / name)
        callbacks: dict[str, list[Any]] = {}
        for part in (*trainer.callback_handler.callbacks, trainer.control):
            if isinstance(part, ExportableState):
                callbacks.setdefault(type(part).__name__, []).append(part.state())
        trainer.state.stateful_callbacks = callbacks
        trainer.state.save_to_json(os.fspath(folder / _COUNTERS))
        (folder / _PLANNED).write_text(str(self._planned))

    def done(self) -> int:
        """Return the steps of the tasks so far; 0 where each task begins anew."""
        last = current().context.state_dir / _STATE
        return self._done(last) if self._restores and last.exists() else 0

    def examples(self, first: int, last: int) -> int:
        """Return the examples that the steps from one count to another trained on."""
        args = self._trainer.args
        a_batch = args.train_batch_size * args.world_size
        a_step = a_batch * args.gradient_accumulation_steps
        try:
            loader = self._trainer.get_train_dataloader()
            count, batches = len(loader.dataset), len(loader)
        except TypeError:  # data without a length
            return int((last - first) * a_step)
        if args.dataloader_drop_last:
            count = batches * a_batch
        an_epoch = self._epoch_steps(batches)

        def until(step: int) -> int:
            epochs, rest = divmod(step, an_epoch)
            return int(epochs * count + min(rest * a_step, count))

        return until(last) - until(first)

    def _begin_anew(self) -> None:
        """Give the trainer a new optimizer and schedule, or its first ones."""
        trainer = self._trainer
        if not self._first_states:
            trainer.optimizer = trainer.lr_scheduler = None
        parts = (trainer.optimizer, trainer.lr_scheduler)
        for part, state in zip(parts, self._first_states, strict=False):
            if state is not None:
                part.load_state_dict(copy.deepcopy(state))

    def _create_scheduler(self, num_training_steps: int, *args: Any, **kwargs: Any) -> Any:
        # Steps beyond those that were planned do not stretch the schedule.
        return self._original_scheduler(self._planned or num_training_steps, *args, **kwargs)

    @staticmethod
    def _done(folder: Path) -> int:
        from transformers import TrainerState

        return int(TrainerState.load_from_json(os.fspath(folder / _COUNTERS)).global_step)

    def _epoch_steps(self, batches: int) -> int:
        """Return an epoch's optimizer steps, the last perhaps with fewer batches."""
        steps: int = math.ceil(batches / self._trainer.args.gradient_accumulation_steps)
        return max(steps, 1)
