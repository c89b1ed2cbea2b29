"""Execution of one task in a worker: site by site, with the answers sent together."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from flstream.client.fl_model import FLModel, ParamsType
from flstream.client.own_files import KeptTensors
from flstream.client.seeding import seed_everything
from flstream.codecs.chain import CodecChain
from flstream.errors import ClientError
from flstream.job.bodies import PROXIMAL_MU
from flstream.model.memory import MemoryBody, Params
from flstream.model.source import Source
from flstream.telemetry.halts import halt_at
from flstream.worker.answers import (
    check_kinds,
    check_size,
    clones,
    framework_of,
    inline,
    metrics_of,
    params_to_send,
)
from flstream.worker.code_errors import CodeFailure
from flstream.worker.delivery import deliver
from flstream.worker.joined_bodies import RECEIVED_AS
from flstream.worker.messages import (
    EVALUATE,
    SUBMIT_MODEL,
    Answered,
    Failed,
    Progress,
    SiteAnswer,
    SiteTask,
    Task,
    TaskKind,
)
from flstream.worker.meta import OPTIMIZER_PARAMS, pack_meta, sent_names
from flstream.worker.no_params import NoParams
from flstream.worker.personal_tensors import PersonalTensors
from flstream.worker.site_filters import SiteFilters
from flstream.worker.site_work import SiteWork
from flstream.worker.task_model import TaskModel, received_model
from flstream.worker.update_codec import encoded_update, kept_for
from flstream.worker.watched import WatchedValues
from flstream.worker.weight import weight_of
from flstream.worker.worker import Worker

if TYPE_CHECKING:
    from flstream.client.session import Into, Place


class TaskExecution:
    """Execution of one task.

    The order of calls is ``begin``, then ``receive`` and ``answer``, or ``fail``, for each site in
    turn, and ``finish`` at the end.

    In a task for a single site, the model is received into the tensors that are trained, and the
    update is fetched from where it lies. In a task for several sites, each site gets a copy of the
    model, and the updates are copied. So it does in a task for a single site where filters need the
    model as it was received.

    Args:
        worker: The worker that executes the task.
        task: The task.

    Attributes:
        site: The current site; None once it has answered or failed.
        received: The model as the current site has received it; None before.
        global_params: Tensors of the global model, which stay as they were received; None where
            nothing asks for them.
        asks: Kinds of task that the current site's code has told from trainings.
    """

    def __init__(self, worker: Worker, task: Task) -> None:
        self.site: SiteWork | None = None
        self.received: FLModel | None = None
        self.global_params: Params | None = None
        self._worker = worker
        self._has_several_sites = len(task.sites) > 1
        self._was_received = False
        # Values that the workflow has sent to the current site, as code has received them.
        self._sent: tuple[Mapping[str, Any] | None, Mapping[str, Any] | None] = None, None
        # What is done once the current site has answered, before its files are kept.
        self._before_keeping: list[Callable[[], None]] = []
        # Bodies that helpers of the code send, by name.
        self._beside: dict[str, dict[str, Any]] = {}
        self._personal: PersonalTensors | None = None
        info = worker.info
        folder = Path(info.sites_folder)
        self._codecs = worker.update_codecs if task.kind == "train" else CodecChain()
        self._filters = SiteFilters(
            info.filters_up,
            info.filters_down,
            folder,
            kept_for(info),
            is_lossy=any(
                each.lossy is not None for each in (worker.update_codecs, worker.model_codecs)
            ),
        )
        self._model = TaskModel(worker, task, self._filters)
        self.asks: set[TaskKind] = set()
        self._answers: list[SiteAnswer] = []
        self._is_delivered = False

    @property
    def task(self) -> Task:
        """The task; another one has its model if the peer that offered it was lost."""
        return self._model.task

    @property
    def personal_names(self) -> Collection[str]:
        """Names of the tensors of which the site trains a version of its own, and sends none."""
        return () if self._personal is None else self._personal.names

    @property
    def is_repeated(self) -> bool:
        """Whether the task was done before, and is repeated for the sake of its updates alone."""
        return self.task.kind == "train" and not self.task.keeps_state

    def begin(self, site: SiteTask) -> SiteWork | None:
        """Begin a site's part of the task.

        Args:
            site: The site's part.

        Returns:
            The site's context; None if its folder cannot be used, which has failed the site.
        """
        self._was_received = False
        self.received = self.global_params = self._personal = None
        self._sent, self.asks = (None, None), set()
        self._before_keeping, self._beside = [], {}
        if self._has_several_sites:
            self._worker.send(Progress(self.task.effect, "turn", site.site))
        try:
            self._worker.enter(site.site)
            self.site = SiteWork.of(self._worker.info, self.task, site)
        except OSError as error:
            reason = f"its folder in the run directory cannot be used: {error}"
            self._worker.send(Failed(site.site, self.task.effect, reason))
        return self.site

    def receive(self, into: Into | None = None, place: Place | None = None) -> FLModel:
        """Return the model for the current site, and seed the global random generators.

        Args:
            into: Module or state dict that receives the tensors in place; None to allocate memory.
            place: Function that returns the tensors to receive into, given the model's layout, or
                None to allocate memory; in the place of ``into``.

        Raises:
            ClientError: It was received before, or does not fit ``into``.
            StreamingError: It did not arrive.
        """
        site = self._current()
        if self._was_received:
            raise ClientError(
                f"the model of round {site.round} was received before; answer it with send() first"
            )
        if self.task.kind == SUBMIT_MODEL:
            self._was_received = True
            seed_everything(site.seed)
            return received_model(self.task, site.name, NoParams(self.asks))
        tensors, bodies = self._model.receive(site, into, place)
        self._was_received = True
        received = received_model(self.task, site.name, tensors, bodies)
        self._sent = received.meta, received.optimizer_params
        self._keep_global(received, tensors, is_lent=into is not None or place is not None)
        seed_everything(site.seed)
        self.received = received
        return received

    def keep_personal(
        self, patterns: Sequence[str], tensors: Mapping[str, Any], kept: KeptTensors
    ) -> frozenset[str]:
        """Put the current site's own values into tensors that it keeps, and send none of them.

        Args:
            patterns: Regular expressions that are found in their names.
            tensors: Received tensors by name, which are written to.
            kept: The site's version of them.

        Returns:
            Their names.

        Raises:
            UsageError: The patterns do not fit the model.
            ClientError: A tensor has another shape than the site's own.
        """
        assert self._model.layout is not None  # it was received
        self._personal = PersonalTensors(patterns, self._model.layout, kept)
        self._personal.put_into(tensors)
        return self._personal.names

    def before_keeping(self, action: Callable[[], None]) -> None:
        """Register an action for when the current site has answered, before its files are kept."""
        self._before_keeping.append(action)

    def send_beside(self, bodies: Mapping[str, Params]) -> None:
        """Send tensors of bodies with the current site's update, beside those of its ``meta``."""
        for body, tensors in bodies.items():
            self._beside.setdefault(body, {}).update(tensors)

    def answer(self, model: FLModel) -> None:
        """Take the current site's answer; in a task for a single site, send it at once.

        Args:
            model: The answer.

        Raises:
            ClientError: The answer lacks what the task asks for.
            LayoutError: A tensor cannot be streamed; the message names it.
        """
        site = self._current()
        if self.task.kind in ("train", "evaluate"):
            halt_at("training" if self.task.kind == "train" else "evaluation")
        model.check()
        # Memory that the script frees from here on is kept for the next model.
        self._worker.memory.keep()
        answer = self._reported(model, site)
        for action in self._before_keeping:
            action()
        self.received = self.global_params = None
        update: Source | None = None
        if self.task.kind == EVALUATE or not self.knows_task:
            site.state.keep()
            answer = structs.replace(answer, has_params=answer.has_params and self.knows_task)
        else:
            answer, update = self._with_update(answer, model, site)
        self._answers.append(answer)
        self.site = None
        if not self._has_several_sites:
            self._deliver(update)

    @property
    def knows_task(self) -> bool:
        """Whether the site's code knows of the task; of all but to submit a model it does."""
        return self.task.kind != SUBMIT_MODEL or SUBMIT_MODEL in self.asks

    def decline(self) -> None:
        """Answer for the current site, whose code does not know of the task."""
        self._before_keeping = []
        print("flstream: the code does not submit models; the last one that it sent counts")
        self.answer(FLModel())

    def fail(self, failure: CodeFailure) -> None:
        """Fail the current site; the others go on."""
        site = self._current()
        self.site = None
        self._worker.send(Failed(site.name, self.task.effect, *failure))
        with suppress(OSError):  # leftovers are removed before the site trains again
            site.state.discard()

    def finish(self) -> None:
        """Send the answers of all sites, and wait until the server has used their updates."""
        self._worker.enter(None)
        self._model.kept = None
        if not self._is_delivered:
            self._deliver(None)

    def _reported(self, model: FLModel, site: SiteWork) -> SiteAnswer:
        """The answer without its tensors: weight, metrics and meta."""
        joined = self._model.joined
        # Before the answer's values are read, which may be those that were received.
        unread = self._unread()
        meta = model.meta if joined is None else joined.rest(model.meta)
        return SiteAnswer(
            site.name,
            weight_of(model.meta),
            metrics_of(model),
            has_params=model.params is not None,
            meta=pack_meta(meta, model.optimizer_params),
            unread=unread,
            asks=sorted(self.asks),
        )

    def _unread(self) -> list[str]:
        """Return the names of what the workflow has sent along and the site's code has not read."""
        task = self.task
        if task.kind != "train" or not (task.meta or task.joined):
            return []
        meta, optimizer = self._sent
        read = set(meta.read) if isinstance(meta, WatchedValues) else set()
        if isinstance(optimizer, WatchedValues) and optimizer.read:
            read.add(OPTIMIZER_PARAMS)
        return [
            name
            for name in sent_names(task.meta, task.joined)
            if read.isdisjoint({name, RECEIVED_AS.get(name, name)})
        ]

    def _with_update(
        self, answer: SiteAnswer, model: FLModel, site: SiteWork
    ) -> tuple[SiteAnswer, Source | None]:
        """Take the tensors of an answer, and keep the site's state.

        The steps that can fail come first: a failed site keeps no state. An update is offered only
        once the state that belongs to it is durable.

        Returns:
            The answer with what says how to read its tensors, and these where they are not in it.
        """
        params, partial = self._sent_tensors(model, site)
        joint = self._model.joint
        whole = MemoryBody.of(params, tied=None if joint is None else joint.aliases)
        check_kinds(whole.layout, joint)
        update = self._filters.sent(whole, self._model.kept, model, site)
        partial = partial or len(update.layout.tensors) < len(whole.layout.tensors)
        if (codec := self._codecs.lossy) is not None:
            received, sent_as = self._model.kept, ParamsType(model.params_type)
            update = encoded_update(codec, update, received, sent_as, site)
        in_answer = None
        if self.task.inline:
            check_size(whole.layout, joint, self.task.inline)
            in_answer = inline(update, joint)
        state = site.state.keep()
        answer = structs.replace(
            answer,
            params_type=ParamsType(model.params_type).value,
            framework=framework_of(model.params or {}),
            partial=partial,
            has_params=True,
            state=state,
            update=in_answer,
        )
        return answer, None if in_answer is not None else update

    def _sent_tensors(self, model: FLModel, site: SiteWork) -> tuple[Params, bool]:
        """The tensors of an answer, with those of bodies; and whether some are left out."""
        arrived, joined = self._model, self._model.joined
        selected = arrived.selected
        if self._personal is not None:
            self._personal.keep(model)
            selected = self._personal.others(selected)
        params, partial = params_to_send(
            model, site.round, arrived.layout, selected, self.task.kind, arrived.held_back
        )
        if joined is not None:
            params = joined.put_together(params, {**model.meta, **self._beside}, selected)
        elif self.task.joined:
            raise ClientError(
                "the answer was sent before the model was received, and the workflow folds "
                f"meta[{self.task.joined[0]!r}] of it, too; call receive() first"
            )
        return params, partial

    def _keep_global(self, received: FLModel, tensors: Params, *, is_lent: bool) -> None:
        """Keep the global model's values where a proximal term is to compare with them.

        Args:
            received: The received model.
            tensors: Its tensors.
            is_lent: Whether they are the memory that is trained.
        """
        # By dict's own method, as it is not training code that reads it here.
        if self.task.kind == "train" and dict.get(received.meta, PROXIMAL_MU):
            self.global_params = clones(tensors) if is_lent else tensors

    def _deliver(self, update: Source | None) -> None:
        self._is_delivered = True
        copied = self._model.copied_bytes()
        answered = Answered(self.task.effect, self._answers, copied)
        deliver(self._worker, self._model, self._codecs, answered, update)

    def _current(self) -> SiteWork:
        if self.site is None:
            raise ClientError("there is no task to answer; call receive() first")
        return self.site
