"""Session of training code, behind the functions of :mod:`flstream.client`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flstream.client.fl_model import FLModel
from flstream.client.own_files import KeptTensors
from flstream.client.ranks import RankPlace
from flstream.errors import ClientError
from flstream.job.bodies import PERSONAL, OptimizerState
from flstream.worker.code_errors import CodeFailure
from flstream.worker.joined_bodies import without_tensors
from flstream.worker.logged_values import step_of, values_of
from flstream.worker.messages import Failed, Logged, TaskKind
from flstream.worker.no_params import NO_MODEL
from flstream.worker.rank_store import CallName, RankStore
from flstream.worker.site_turns import SiteTurns
from flstream.worker.site_work import SiteWork
from flstream.worker.system_info import SystemInfo, constants_of
from flstream.worker.task_execution import TaskExecution
from flstream.worker.worker import Worker

if TYPE_CHECKING:
    from flstream.client.session import Into, Place
    from flstream.model.memory import Params

# Times that a loop may ask whether the run goes on while it has a model.
_MOST_UNANSWERED = 2


class Session:
    """Session of training code with the server.

    Args:
        worker: The worker that runs the code.
        execution: Execution of the one task that the code handles, for the current site; None in a
            site's own process, in which the code asks for task after task.
        ranks: Store of the calls of the site's ranks, of which this process is the first; None
            without ``train.command``.

    Attributes:
        worker: The worker that runs the code.
        metrics: What the code has found of the model that it is about to train; None for nothing.
        has_scored: Whether the last task was an evaluation that a decorated function has answered.
        has_declined: Whether the code ended in a task that it does not know of.
        own_origin: Tensors of the received model, while the code works on one of the site's own.
    """

    def __init__(
        self,
        worker: Worker,
        execution: TaskExecution | None = None,
        ranks: RankStore | None = None,
    ) -> None:
        self.worker = worker
        self._ranks = ranks
        self._execution = execution
        # What begins the tasks of a site's own process, in which the code asks for them.
        self._turns = SiteTurns(worker) if execution is None else None
        self._context = execution.site if execution is not None else None
        self._initialised = False
        self._is_shut_down = False
        self._model: FLModel | None = None
        self._into: Into | None = None
        # Times that the code has looked for the next task while it had the model of one.
        self._unanswered = 0
        self.metrics: Mapping[str, float] | None = None
        self.has_scored = False
        self.has_declined = False
        self.own_origin: Params | None = None
        # Whether the code has waited for a task. Until then it tells nothing of how it treats one.
        self._has_waited = False

    @property
    def site(self) -> str:
        """Name of the site."""
        if self._context is not None:
            return self._context.name
        assert self.worker.info.site is not None  # before the first task of its own process
        return self.worker.info.site

    @property
    def kind(self) -> str | None:
        """Kind of the current task, ``"train"`` for one; None between tasks."""
        return (
            self._execution.task.kind
            if self._execution is not None and self._execution.site
            else None
        )

    def asked_kind(self, *kinds: TaskKind) -> str | None:
        """Return the kind of the current task, and note which kinds the code tells apart.

        Args:
            kinds: The kinds that it tells from trainings by the answer.
        """
        if self._has_waited and self._execution is not None:
            self._execution.asks.update(kinds)
        return self.kind

    def expect_model(self) -> None:
        """Refuse code that needs a model where the task brings none.

        Raises:
            ClientError: The task is to submit a model, and the code has not asked for that.
        """
        if self._execution is not None and not self._execution.knows_task:
            raise ClientError(NO_MODEL)

    @property
    def is_declined(self) -> bool:
        """Whether the code shows by its end that it does not know of the task."""
        execution = self._execution
        return execution is not None and execution.site is not None and not execution.knows_task

    def decline(self) -> None:
        """Answer a task that the code does not know of."""
        assert self._execution is not None
        self.has_declined = True
        self._execution.decline()

    @property
    def place(self) -> RankPlace:
        """Which of the site's processes this one is."""
        return RankPlace() if self._ranks is None else self._ranks.place

    @property
    def context(self) -> SiteWork:
        """The site and its current task.

        Raises:
            ClientError: There is no task.
        """
        if self._execution is None or self._execution.site is None:
            raise ClientError("there is no task; call receive() first")
        return self._execution.site

    @property
    def received(self) -> FLModel | None:
        """The model of the current task as it was received; None before."""
        return None if self._execution is None else self._execution.received

    @property
    def global_params(self) -> Params | None:
        """Tensors of the global model as they were received, where the task needs them."""
        return None if self._execution is None else self._execution.global_params

    @property
    def personal_names(self) -> Collection[str]:
        """Names of the tensors of which the site trains a version of its own, and sends none."""
        return () if self._execution is None else self._execution.personal_names

    @property
    def optimizer_state(self) -> OptimizerState | None:
        """Value of ``train.optimizer_state``; None where the training code decides."""
        return self.worker.info.optimizer_state

    def before_keeping(self, action: Callable[[], None]) -> None:
        """Do something once the current task is answered, before the site's files are kept."""
        if self._execution is None or self._execution.site is None:
            raise ClientError("there is no task; call receive() first")
        self._execution.before_keeping(action)

    def keep_personal(self, patterns: Sequence[str], tensors: Mapping[str, Any]) -> frozenset[str]:
        """Keep a part of the received model at the site; return the names of its tensors.

        Args:
            patterns: Regular expressions that are found in their names.
            tensors: Received tensors by name, which are written to.
        """
        assert self._execution is not None  # it has received a model
        return self._execution.keep_personal(patterns, tensors, KeptTensors.of(self, PERSONAL))

    @contextmanager
    def with_own_model(self, origin: Params) -> Iterator[None]:
        """Work on a model of the site's own until the end of the block.

        Args:
            origin: Tensors of the received model.

        Raises:
            ClientError: That is done already.
        """
        if self.own_origin is not None:
            raise ClientError("own_model() was called within itself; a site has one such model")
        self.own_origin = origin
        try:
            yield
        finally:
            self.own_origin = None

    def send_beside(self, bodies: Mapping[str, Params]) -> None:
        """Send tensors of bodies with the answer of the current task, as if ``meta`` had them."""
        assert self._execution is not None  # it is being answered
        self._execution.send_beside(bodies)

    @property
    def task_seed(self) -> int:
        """Seed of the site in the current task."""
        return self.context.seed

    @property
    def state_dir(self) -> Path:
        """Folder for the site's own files, as its last training has left them.

        Raises:
            ClientError: There is no task, or the files cannot be copied.
        """
        path = self.context.state_dir
        if self._ranks is not None:
            self._ranks.publish_state(str(path))
        return path

    def init(self, rank: str | int | None = None) -> None:
        """Report to the server that the training code is ready.

        Args:
            rank: Number of this process, as the script takes it to be; None where it says nothing.

        Raises:
            ClientError: This process is another one.
        """
        self.place.check(rank)
        self._initialised = True
        self.worker.ready(() if self._ranks is None else self._ranks.other_pids())

    def is_running(self) -> bool:
        """Wait for the next task; return False if the run is over.

        Raises:
            ClientError: Two turns of the loop have received the model and not answered.
        """
        if self._model is not None:
            self._unanswered += 1
            if self._unanswered > _MOST_UNANSWERED:
                raise ClientError(
                    "the model of this task was received, and turns of the loop have gone by "
                    "without an answer; send() an FLModel in each"
                )
        return self._next_task("is_running")

    def receive(
        self, timeout: float | None = None, into: Into | None = None, place: Place | None = None
    ) -> FLModel | None:
        """Fetch the model of the next task, or return that of the current one again.

        Args:
            timeout: Seconds to wait for a task; None to wait without a limit.
            into: Module or state dict that receives the tensors in place; None to allocate memory.
            place: Function that returns the tensors to receive into, or None to allocate memory; in
                the place of ``into``, and called only if the model was not received before.

        Returns:
            The model; None if the run is over or no task came in time.
        """
        if not self._next_task("receive", timeout):
            return None
        assert self._execution is not None
        if into is not None or place is not None:
            self.expect_model()
        if self._model is None:
            self._model, self._into = self._execution.receive(into, place), into
        elif into is not None and into is not self._into:
            raise ClientError(
                "the model of this task was received before, into other tensors; give into to the "
                "first receive() of a task, or copy with load_state_dict(model.params)"
            )
        return self._model

    def send(self, model: FLModel, clear_cache: bool = True) -> None:
        """Answer the current task, and wait until the server has fetched the update.

        Args:
            model: The answer.
            clear_cache: Whether to release the tensors of ``model`` and of the received model.
        """
        if not isinstance(model, FLModel):
            raise ClientError(
                f"send() was given a {type(model).__name__}; give it an FLModel, such as "
                "FLModel(params=model.state_dict())"
            )
        if self._execution is None:
            raise ClientError("there is no task to answer; call receive() first")
        if self.own_origin is not None:
            raise ClientError(
                "send() was called within own_model(); call it after the block, when the module "
                "has the global model's values again"
            )
        if self._execution.site is None:
            raise ClientError("the task was answered already; call send() once for each")
        self._execution.answer(model)
        self._unanswered = 0
        if clear_cache:
            model.params = None
            model.meta = without_tensors(model.meta)
            self.clear()
        self._model = self._into = None

    def clear(self) -> None:
        """Release the tensors of the received model."""
        if self._model is not None:
            self._model.params = None
            self._model.meta = without_tensors(self._model.meta)

    def shutdown(self) -> None:
        """Take no more tasks."""
        self._is_shut_down = True
        if self._ranks is not None:
            self._ranks.end()

    def log(self, key: str, value: Any, step: int | None = None) -> None:
        """Record values in the run's events.

        A training that is repeated for the sake of its update alone records nothing: what it logged
        the first time counts.

        Args:
            key: Name of the value.
            value: A number or text, or a mapping of such values.
            step: Step of the site's own; None for none.
        """
        number = self._context.round if self._context is not None else 0
        values, at = list(values_of(key, value)), step_of(key, step)
        if self._execution is not None and self._execution.is_repeated:
            return
        for each in values:
            self.worker.send(Logged(number, self.site, each.key, each.number, at, each.text))

    def fail(self, failure: CodeFailure) -> None:
        """Report that the training code failed: the current task, or between tasks the process."""
        if self._execution is not None and self._execution.site is not None:
            self._execution.fail(failure)
        else:
            self.worker.send(Failed("", 0, *failure))

    def system_info(self) -> Mapping[str, Any]:
        """Return the facts about the run and the site, by name."""
        return SystemInfo(self)

    def constants(self) -> dict[str, Any]:
        """Return the facts that are the same in every task."""
        info, context = self.worker.info, self._context
        return constants_of(info, self.site, info.index if context is None else context.index)

    def _next_task(self, call: CallName, timeout: float | None = None) -> bool:
        """Wait for a task where there is none; return whether there is one."""
        has_task = self._has_task(timeout)
        if self._ranks is not None:
            self._ranks.publish(call, has_task)
        return has_task

    def _has_task(self, timeout: float | None) -> bool:
        if not self._initialised:
            raise ClientError("call flstream.client.init() before anything else")
        self._has_waited = True
        if self._execution is not None and self._execution.site is not None:
            return True
        if self._turns is None or self._is_shut_down:
            return False
        self._execution = None  # frees what it refers to before the next model arrives
        self.metrics, self.has_scored = None, False
        self._execution = self._turns.next(timeout)
        if self._execution is None:
            return False
        self._context = self._execution.site
        if self._ranks is not None:
            self._ranks.begin(self._execution.task)
        return True
