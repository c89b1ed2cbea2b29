"""What codecs lose: the model of a run with them, compared with that of the run without."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from flstream.bench.plan import ROUNDS
from flstream.inspection.difference import find_difference
from flstream.model.checkpoint import FileSource
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import Summary


class RelativeError(NamedTuple):
    """What codecs have lost of all updates of a run.

    Attributes:
        exact: whether the final models have the same digest.
        relative: L2 norm of the final model less the plain run's, divided by that of the plain
            run's less the initial one.
    """

    exact: bool
    relative: float


class PlainModels:
    """The initial and the final model of a run without codecs, kept while others are compared.

    Args:
        folder: folder for the two files, on the disk of the run directories.
        run: directory of the run.
        summary: summary of the run.
    """

    def __init__(self, folder: Path, run: RunDirectory, summary: Summary) -> None:
        self._digest = summary.model.digest
        self._final = folder / "plain.safetensors"
        initial = folder / "initial.safetensors"
        os.replace(run.checkpoint(0), initial)
        os.replace(run.checkpoint(ROUNDS), self._final)
        self._changed = _distance(initial, self._final)
        initial.unlink()

    def error_of(self, run: RunDirectory, summary: Summary) -> RelativeError:
        """Compare the final model of a run with the plain one, a range at a time.

        Args:
            run: directory of the run.
            summary: summary of the run.

        Raises:
            CheckpointError: a model cannot be read.
        """
        if summary.model.digest == self._digest:
            return RelativeError(True, 0.0)
        lost = _distance(self._final, run.checkpoint(ROUNDS))
        return RelativeError(False, lost / self._changed)


def _distance(one: Path, other: Path) -> float:
    """Return the L2 norm of the difference of two models of the same tensors."""
    source, target = FileSource(one), FileSource(other)
    return find_difference(source, target, str(other), source.layout.by_name).l2
