"""Training code as a class, instead of a script that asks for tasks in a loop."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from flstream.client.fl_model import FLModel
from flstream.errors import ClientError

WORK_FOLDER = "work"
"""Name of the folder that code works in, below its site's folder."""

MODEL_FILE = "model.safetensors"
"""Name of the file that a learner gets the model in, below the site's work folder."""


@dataclass(frozen=True, slots=True)
class TimeLeft:
    """Time that a site may train for.

    Attributes:
        seconds: Seconds from the model's arrival on: of the site's own device with the virtual
            clock, else on the wall; infinite without a deadline.
        examples: Examples, or declared units, that its device can do in them; infinite where that
            is not known: without a deadline, and on the wall.
    """

    seconds: float = math.inf
    examples: float = math.inf


@dataclass(frozen=True, slots=True)
class SiteContext:
    """A site and its current task.

    Attributes:
        name: Name of the site, such as ``site-1``.
        index: Position of the site among all sites, from 0.
        round: Number of the round, from 1; for an evaluation, of the round that made the model.
        seed: Seed of the site's random numbers in this task; the global generators use it.
        job: Name of the job.
        clients: Number of sites in the job.
        total_rounds: Number of rounds in the job.
        folder: Path of the site's folder in the run directory.
        args: Arguments of this site alone, by name (``clients.args``).
        model_args: Arguments of the model's factory, by name (``model.args``).
        deadline: Time that it may train for (``stragglers.policy = deadline``).
    """

    name: str
    index: int
    round: int
    seed: int
    job: str
    clients: int
    total_rounds: int
    folder: str
    args: Mapping[str, Any]
    model_args: Mapping[str, Any]
    _state_dir: Callable[[], Path]
    deadline: TimeLeft = TimeLeft()

    def path_of(self, file: str | os.PathLike[str]) -> Path:
        """Return the absolute path of a file; a relative one is below the site's work folder."""
        return Path(self.folder, WORK_FOLDER, file)

    def written_path(self, file: str | os.PathLike[str]) -> Path:
        """Return the absolute path of a file that is to be written, as :meth:`path_of` does.

        Raises:
            ClientError: It is a file of the run that is not the site's own, such as a checkpoint.
        """
        path, own = self.path_of(file), Path(self.folder).resolve()
        folder = path.parent.resolve()
        if own.parents[1] in (folder, *folder.parents) and own not in (folder, *folder.parents):
            raise ClientError(
                f"{path} is a file of the run's own, which sites must not write; name another: a "
                "relative path is below the site's own working folder"
            )
        return path

    @property
    def state_dir(self) -> Path:
        """Folder for the site's own files, with the content that its last training left.

        Its content when a training is answered is kept for the site's next task; changes made by
        an evaluation are discarded.

        Raises:
            ClientError: The task has been answered, or the files cannot be copied.
        """
        return self._state_dir()


class Learner:
    """Base class of learners; ``train.learner`` may name any class with these methods.

    One with a method ``evaluate(self, model)`` is asked to score models, and returns an
    :class:`FLModel` with ``metrics`` and no ``params``. Without it, the metrics of its updates
    score the model that it had received. One with a method ``submit_model(self, model)`` answers
    cross-site evaluation with a model of the site's own, as an :class:`FLModel` with ``params``;
    ``model`` has none. Without it, the last model that the site sent is its own.

    The constructor takes ``train.args`` as keyword arguments. It is the place to load data that all
    sites share: each process has one learner, and may use it for many sites. The results for a site
    must not depend on attributes that another site has changed.

    Attributes:
        site: Current site and task, set before each call.
        exchange: ``"params"``, or ``"file"`` for a class whose methods are given the path of a
            safetensors file with the model in place of an :class:`FLModel`, and may answer with
            ``FLModel(file=path)``: see :func:`flstream.client.edit`.
    """

    site: SiteContext
    exchange: Literal["params", "file"] = "params"

    def setup(self) -> None:
        """Prepare for ``self.site``; called when it is another site than in the last task."""

    def train(self, model: FLModel) -> FLModel:
        """Train the global model.

        Args:
            model: Global model, with writable tensors (or arrays, if ``train.exchange_format`` is
                numpy) that may be trained in place.

        Returns:
            The update, as for :func:`flstream.client.send`: ``params``, ``metrics``, and its weight
            in ``meta["num_examples"]``.
        """
        raise NotImplementedError("a learner has to define train(self, model)")
