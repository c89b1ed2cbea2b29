"""How a Hugging Face trainer goes on from round to round: its steps, and what it keeps."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

from flstream.client.exchange import state_path
from flstream.errors import ClientError

_STATE = "trainer"
# Files of a trainer's checkpoint; it looks for them under these names.
_OPTIMIZER, _SCHEDULER, _SCALER = "optimizer.pt", "scheduler.pt", "scaler.pt"
_COUNTERS = "trainer_state.json"
# Number of steps that all rounds together were planned to have when the first one began.
_PLANNED = "planned_steps"


class TrainerRounds:
    """How much of a training each task does, and what is kept from one to the next.

    Args:
        trainer: The trainer.
        restores: Whether a task goes on where the last one ended.
        epochs: Epochs of a task; None for the trainer's.
        steps: Steps of a task; None for the epochs.
    """

    def __init__(
        self, trainer: Any, restores: bool, epochs: float | None, steps: int | None
    ) -> None:
        self._trainer = trainer
        self._restores = restores
        args = trainer.args
        if steps is None and epochs is None and args.max_steps > 0:
            steps = args.max_steps
        self._epochs = args.num_train_epochs if epochs is None else epochs
        self._steps = steps

    @property
    def steps(self) -> int:
        """Optimizer steps of a task.

        Raises:
            ClientError: There are none, or they cannot be counted.
        """
        if self._steps is None:
            self._steps = self._steps_of(self._epochs)
        if self._steps <= 0:
            raise ClientError(f"{self._steps} steps a task are no training; set at least one")
        return self._steps

    def begin(self, rounds: int, given: Path | None = None) -> str | None:
        """Set the trainer's limits for a task.

        Args:
            rounds: Number of rounds in the job, over which the learning rate's schedule spans.
            given: Path of a checkpoint that the script wants to go on from; None for none.

        Returns:
            Path of the folder to go on from; None for a new beginning.
        """
        kept = state_path(_STATE)
        planned = self.steps * (rounds if self._restores else 1)
        folder = given
        if self._restores and kept.exists():
            planned = int((kept / _PLANNED).read_text())
            folder = given or kept
        done = 0 if folder is None else self._done(folder)
        # More rounds than were planned go on at the end of the schedule.
        self._trainer.args.max_steps = max(planned, done + self.steps)
        return None if folder is None else os.fspath(folder)

    def keep(self) -> None:
        """Keep the state of optimizer, scheduler and counters for the next task."""
        import torch

        trainer = self._trainer
        if not self._restores:
            return
        folder = state_path(_STATE)
        folder.mkdir(exist_ok=True)
        torch.save(trainer.optimizer.state_dict(), folder / _OPTIMIZER)
        torch.save(trainer.lr_scheduler.state_dict(), folder / _SCHEDULER)
        if trainer.accelerator.scaler is not None:
            torch.save(trainer.accelerator.scaler.state_dict(), folder / _SCALER)
        trainer.state.save_to_json(os.fspath(folder / _COUNTERS))
        (folder / _PLANNED).write_text(str(trainer.args.max_steps))

    @staticmethod
    def _done(folder: Path) -> int:
        from transformers import TrainerState

        return int(TrainerState.load_from_json(os.fspath(folder / _COUNTERS)).global_step)

    def _steps_of(self, epochs: float) -> int:
        try:
            batches = len(self._trainer.get_train_dataloader())
        except TypeError as error:
            raise ClientError(
                "the training data has no length, so epochs cannot be counted in steps; patch with "
                "local_steps"
            ) from error
        accumulated = self._trainer.args.gradient_accumulation_steps
        steps: int = math.ceil(epochs * max(math.ceil(batches / accumulated), 1))
        return steps
