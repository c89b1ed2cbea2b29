"""The session of this process's training code, behind the functions of :mod:`flstream.client`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from flstream.client.fl_model import FLModel
from flstream.errors import ClientError
from flstream.job.bodies import OptimizerState

if TYPE_CHECKING:
    import torch

    from flstream.client.ranks import RankPlace
    from flstream.model.layout import Layout
    from flstream.model.memory import Params

    Into = torch.nn.Module | Mapping[str, torch.Tensor]
    Place = Callable[[Layout], Mapping[str, torch.Tensor] | None]


class TrainingSession(Protocol):
    """Session of training code with the server; there is one implementation for each kind of rank.

    Attributes:
        site: Name of the site.
        metrics: What the code has found of the model that it is about to train; None for nothing.
        has_scored: Whether the last task was an evaluation that a decorated function has answered.
        own_origin: Tensors of the received model, while the code works on one of the site's own.
    """

    metrics: Mapping[str, float] | None
    has_scored: bool
    own_origin: Params | None

    @property
    def site(self) -> str:
        """Name of the site."""

    @property
    def place(self) -> RankPlace:
        """Number of this process among the site's."""

    @property
    def kind(self) -> str | None:
        """Kind of the current task, ``"train"`` for one; None between tasks."""

    @property
    def received(self) -> FLModel | None:
        """The model of the current task as it was received; None before."""

    @property
    def global_params(self) -> Params | None:
        """Tensors of the global model as they were received, where the task needs them."""

    @property
    def personal_names(self) -> Collection[str]:
        """Names of the tensors of which the site trains a version of its own, and sends none."""

    @property
    def optimizer_state(self) -> OptimizerState | None:
        """Value of ``train.optimizer_state``; None where the training code decides."""

    @property
    def task_seed(self) -> int:
        """Seed of the site in the current task, the same in all ranks."""

    @property
    def state_dir(self) -> Path:
        """Folder for the site's own files, as its last training has left them.

        Raises:
            ClientError: There is no task, or the files cannot be copied.
        """

    def init(self, rank: str | int | None = None) -> None:
        """Report to the server that the training code is ready."""

    def is_running(self) -> bool:
        """Wait for the next task; return False if the run is over."""

    def receive(
        self, timeout: float | None = None, into: Into | None = None, place: Place | None = None
    ) -> FLModel | None:
        """Fetch the model of the next task, or return that of the current one again."""

    def send(self, model: FLModel, clear_cache: bool = True) -> None:
        """Answer the current task, and wait until the server has fetched the update."""

    def clear(self) -> None:
        """Release the tensors of the received model."""

    def shutdown(self) -> None:
        """Take no more tasks."""

    def log(self, key: str, value: Any, step: int | None = None) -> None:
        """Record values in the run's events."""

    def asked_kind(self, *kinds: Any) -> str | None:
        """Return the kind of the current task, and note which kinds the code tells apart."""

    def expect_model(self) -> None:
        """Refuse code that needs a model where the task brings none."""

    def keep_personal(self, patterns: Sequence[str], tensors: Mapping[str, Any]) -> frozenset[str]:
        """Keep a part of the received model at the site; return the names of its tensors."""

    def with_own_model(self, origin: Params) -> AbstractContextManager[None]:
        """Work on a model of the site's own until the end of the block."""

    def before_keeping(self, action: Callable[[], None]) -> None:
        """Call a function after the answer, before the site's files are kept."""

    def send_beside(self, bodies: Mapping[str, Params]) -> None:
        """Send bodies with the answer of the current task, as if ``meta`` had them."""

    def system_info(self) -> Mapping[str, Any]:
        """Return the facts about the run and the site, by name."""

    def constants(self) -> dict[str, Any]:
        """Return the facts that are the same in every task."""


_session: TrainingSession | None = None


def enter(session: TrainingSession | None) -> None:
    """Set the session of this process's training code; None for none."""
    global _session
    _session = session


def present() -> TrainingSession | None:
    """Return the session of this process's training code; None outside of a run."""
    return _session


def current() -> TrainingSession:
    """Return the session of this process's training code.

    Raises:
        ClientError: The process was not started by ``flstream simulate``.
    """
    if _session is None:
        raise ClientError(
            "this script is not running as a site; name it as train.script in a job file "
            "and run: flstream simulate job.conf"
        )
    return _session
