"""A run that has ended: its status, its results, and where they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flstream.errors import SimulationError, UsageError
from flstream.recipe.arguments import checked
from flstream.report.text import counted
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import Summary

if TYPE_CHECKING:
    import torch


class RunFailedError(SimulationError):
    """A run that failed, which is its attribute ``run``."""

    def __init__(self, run: RunResult) -> None:
        super().__init__(f"{run.summary.error}\n  in the run directory {run.directory}")
        self.run = run


class RunResult:
    """A run that has ended, also one of the command line. A notebook shows it with charts.

    Args:
        path: Path of the run directory.

    Attributes:
        directory: Absolute path of the run directory.
        summary: Content of ``summary.json``: what the run was, its results and its cost.
        digest: Digest of the final model: equal digests are equal bits.
        metrics: For each round its number, its scores, and under ``train`` what sites reported.
        model: Path of the final model, a safetensors file.
        best_model: Path of the best model by the key metric; None where no model was scored.
        report: Path of the page about the run.

    Raises:
        UsageError: It has no sound ``summary.json``.
    """

    @checked
    def __init__(self, path: str | Path) -> None:
        files = RunDirectory(Path(path).absolute())
        try:
            summary = msgspec.json.decode(files.summary.read_bytes(), type=Summary)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{path} is not the directory of a run that has ended: its summary.json cannot be "
                f"read ({error}); name one such as runs/<job>-<time>"
            ) from error
        self.directory: Path = files.path
        self.summary = summary
        self.digest = summary.model.digest
        self.metrics: Sequence[Mapping[str, Any]] = summary.metrics
        self.model, self.report = files.final_model, files.report
        self.best_model = files.best_model if files.best_model.exists() else None

    def get_status(self) -> str:
        """Return ``finished``, ``failed`` or ``stopped``."""
        return self.summary.status

    def get_result(self, timeout: float = 0.0) -> str:
        """Return the path of the run directory; the run has ended, so nothing is waited for."""
        return str(self.directory)

    def load(self, path: str | Path | None = None) -> dict[str, torch.Tensor]:
        """Return the tensors of a model by name, in memory; those of the final one for None.

        Raises:
            UsageError: The run has no such model, or it cannot be read.
        """
        from safetensors import SafetensorError
        from safetensors.torch import load_file

        try:
            return load_file(path or self.model)
        except (OSError, TypeError, SafetensorError) as error:
            raise UsageError(
                f"{path or self.model} cannot be read ({error}); the run {self.get_status()}, and "
                f"its models are in {self.directory}/checkpoints"
            ) from error

    def __repr__(self) -> str:
        rounds = counted(self.summary.rounds_completed, "round")
        return f"<Run {self.directory.name}: {self.get_status()} after {rounds}>"

    def _repr_html_(self) -> str:
        from flstream.report.page import run_cell

        return run_cell(self.directory)
