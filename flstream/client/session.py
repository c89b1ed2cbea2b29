"""What the functions of :mod:`flstream.client` work on: a site's side of a run."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from flstream.client.context import SiteContext
from flstream.client.fl_model import FLModel
from flstream.client.messages import Failed, Logged
from flstream.client.work import Work
from flstream.client.worker import Worker
from flstream.errors import ClientError, ProtocolError

if TYPE_CHECKING:
    import torch


class Session:
    """A training script's side of a run.

    Args:
        worker: the process it runs in.
        work: the task on which the script is to work for the site whose turn it is, and no
            further. None where the process is the site's own: the script asks for task after task.

    Attributes:
        worker: as given.
    """

    def __init__(self, worker: Worker, work: Work | None = None) -> None:
        self.worker = worker
        self._work = work
        self._is_own = work is None
        self._context = work.site if work is not None else None
        self._initialised = False
        self._model: FLModel | None = None

    @property
    def site(self) -> str:
        """The name of the site."""
        if self._context is not None:
            return self._context.name
        assert self.worker.info.site is not None  # before the first task of its own process
        return self.worker.info.site

    @property
    def kind(self) -> str | None:
        """What the current task asks for, or None between tasks."""
        return self._work.task.kind if self._work is not None and self._work.site else None

    @property
    def context(self) -> SiteContext:
        """The site at work on the current task.

        Raises:
            ClientError: there is no task.
        """
        if self._work is None or self._work.site is None:
            raise ClientError("there is no task; call receive() first")
        return self._work.site

    def init(self) -> None:
        """Report to the server."""
        self._initialised = True
        self.worker.ready()

    def is_running(self) -> bool:
        """Wait for the next task; False when there are no more."""
        return self._next_task(timeout=None)

    def receive(
        self,
        timeout: float | None = None,
        into: torch.nn.Module | Mapping[str, torch.Tensor] | None = None,
    ) -> FLModel | None:
        """Fetch the model of the next task; None when there is none, or none within ``timeout``."""
        if not self._next_task(timeout):
            return None
        assert self._work is not None
        self._model = self._work.receive(into)
        return self._model

    def send(self, model: FLModel, clear_cache: bool = True) -> None:
        """Answer the task, and wait until the server has what it needs of it."""
        if self._work is None:
            raise ClientError("there is no task to answer; call receive() first")
        self._work.answer(model)
        if clear_cache:
            model.params = None
            if self._model is not None:
                self._model.params = None
        self._model = None

    def log(self, key: str, value: float) -> None:
        """Send a value to the run's events."""
        number = self._context.round if self._context is not None else 0
        self.worker.send(Logged(number, self.site, key, float(value)))

    def fail(self, reason: str) -> None:
        """The script cannot go on: so has its task failed, or else the process."""
        if self._work is not None and self._work.site is not None:
            self._work.fail(reason)
        else:
            self.worker.send(Failed("", 0, reason))

    def system_info(self) -> Mapping[str, Any]:
        """What the site knows of the run."""
        return SystemInfo(self)

    def constants(self) -> dict[str, Any]:
        """What it knows that is the same in every task."""
        info = self.worker.info
        return {
            "site_name": self.site,
            "job_name": info.job,
            "clients": info.clients,
            "total_rounds": info.rounds,
            "seed": info.seed,
            "site_dir": f"{info.sites_folder}/{self.site}",
        }

    def _next_task(self, timeout: float | None) -> bool:
        if not self._initialised:
            raise ClientError("call flstream.client.init() before anything else")
        if self._work is not None and self._work.site is not None:
            return True
        if not self._is_own:
            return False
        self._work = None  # with all it refers to, before the next model comes
        while (task := self.worker.next_task(timeout)) is not None:
            if [site.site for site in task.sites] != [self.worker.info.site]:
                raise ProtocolError(f"the server sent {self.site} a task of other sites")
            work = Work(self.worker, task)
            if (context := work.begin(task.sites[0])) is not None:
                self._work, self._context = work, context
                return True
            work.finish()
        return False


_session: Session | None = None


def enter(session: Session) -> None:
    """Make a session the one that this process's training code works on."""
    global _session
    _session = session


def current() -> Session:
    """The session that this process's training code works on.

    Raises:
        ClientError: it does not run as a site.
    """
    if _session is None:
        raise ClientError(
            "this script is not running as a site; name it as train.script in a job file "
            "and run: flstream simulate job.conf"
        )
    return _session


class SystemInfo(Mapping[str, Any]):
    """What a site knows, by name. Its state is copied only if it is looked at."""

    def __init__(self, session: Session) -> None:
        self._session = session
        self._constants = session.constants()

    def __getitem__(self, key: str) -> Any:
        if key == "task_seed":
            return self._session.context.seed
        if key == "state_dir":
            return str(self._session.context.state_dir)
        return self._constants[key]

    def __iter__(self) -> Iterator[str]:
        yield from self._constants
        if self._session.kind is not None:
            yield from ("task_seed", "state_dir")

    def __len__(self) -> int:
        return len(list(iter(self)))
