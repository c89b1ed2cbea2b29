"""A run that has ended: its status, its results, and where they lie."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from flstream.errors import SimulationError, UsageError
from flstream.report.text import counted
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import Summary

if TYPE_CHECKING:
    import torch


class RunFailedError(SimulationError):
    """A run that failed.

    Attributes:
        run: The run.
    """

    def __init__(self, run: RunResult) -> None:
        super().__init__(f"{run.summary.error}\n  in the run directory {run.directory}")
        self.run = run


class RunResult:
    """A run that has ended. In a notebook it shows its result, with charts.

    Args:
        directory: Path of the run directory.
        summary: Content of its ``summary.json``.

    Attributes:
        directory: Absolute path of the run directory.
        summary: What the run was, what came of it and what it cost.
    """

    def __init__(self, directory: Path, summary: Summary) -> None:
        self.directory = directory
        self.summary = summary
        self._files = RunDirectory(directory)

    @classmethod
    def open(cls, path: str | Path) -> RunResult:
        """Open the directory of a run that has ended, also one of the command line.

        Raises:
            UsageError: It has no sound ``summary.json``.
        """
        files = RunDirectory(Path(path).absolute())
        try:
            summary = msgspec.json.decode(files.summary.read_bytes(), type=Summary)
        except (OSError, ValueError) as error:
            raise UsageError(
                f"{path} is not the directory of a run that has ended: its summary.json cannot be "
                f"read ({error}); name one such as runs/<job>-<time>"
            ) from error
        return cls(files.path, summary)

    def get_job_id(self) -> str:
        """Return the name of the run directory."""
        return self.directory.name

    def get_status(self) -> str:
        """Return ``finished``, ``failed`` or ``stopped``."""
        return self.summary.status

    def get_result(self, timeout: float = 0.0) -> str:
        """Return the path of the run directory.

        Args:
            timeout: Accepted for NVFlare's sake: the run has ended.
        """
        return str(self.directory)

    @property
    def digest(self) -> str:
        """Digest of the final model: equal digests are equal bits."""
        return self.summary.model.digest

    @property
    def metrics(self) -> Sequence[Mapping[str, Any]]:
        """For each round its number, its scores, and under ``train`` what sites reported."""
        return self.summary.metrics

    @property
    def model(self) -> Path:
        """Path of the final model, a safetensors file."""
        return self._files.final_model

    @property
    def best_model(self) -> Path | None:
        """Path of the best model by the key metric; None where no model was scored."""
        return self._files.best_model if self._files.best_model.exists() else None

    @property
    def report(self) -> Path:
        """Path of the page about the run."""
        return self._files.report

    def load(self, path: Path | None = None) -> dict[str, torch.Tensor]:
        """Return the tensors of a model by name, in memory.

        Args:
            path: Path of the model; None for the final one.
        """
        from safetensors.torch import load_file

        return load_file(path or self.model)

    def __repr__(self) -> str:
        rounds = counted(self.summary.rounds_completed, "round")
        return f"<Run {self.get_job_id()}: {self.get_status()} after {rounds}>"

    def _repr_html_(self) -> str:
        from flstream.report.page import run_cell

        return run_cell(self.directory)
