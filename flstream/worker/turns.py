"""The turns of a worker's sites: each receives its task's model, and answers or fails."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from flstream.client.fl_model import FLModel, ParamsType, check_kinds
from flstream.client.learner import SiteContext
from flstream.client.ranks import RankPlace
from flstream.client.received_values import no_params
from flstream.client.seeding import seed_everything
from flstream.client.session import CallName, knows_task
from flstream.codecs.frames import encoder_for
from flstream.errors import ClientError, ProtocolError
from flstream.job.bodies import PROXIMAL_MU
from flstream.model.checkpoint import FileSink
from flstream.model.copy import copy
from flstream.model.digests import BodyDigest
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody, Params
from flstream.model.source import Source
from flstream.telemetry.events import Transfer
from flstream.telemetry.halts import halt_at
from flstream.worker.answers import (
    check_size,
    clones,
    framework_of,
    inline,
    metrics_of,
    params_to_send,
    weight_of,
)
from flstream.worker.code_errors import CodeFailure
from flstream.worker.logged_values import step_of, values_of
from flstream.worker.messages import (
    EVALUATE,
    SUBMIT_MODEL,
    Answered,
    Failed,
    Logged,
    OfferedUpdate,
    Progress,
    SiteAnswer,
    SiteTask,
    WrittenUpdate,
)
from flstream.worker.meta import pack_meta, sent_names
from flstream.worker.ranks import RankStore
from flstream.worker.state import SiteState
from flstream.worker.task_model import TaskModel, received_model
from flstream.worker.worker import Worker

if TYPE_CHECKING:
    from flstream.client.session import Into, Place


class SiteTurn:
    """A site's part of a task.

    In a task for a single site, the model is received into the tensors that are trained, and the
    update is fetched from where it lies. In a task for several sites, each site gets a copy of the
    model, and the updates are copied. So it does in a task for a single site where filters need the
    model as it was received.

    Args:
        worker: The worker that executes the task.
        model: The task and its model.
        site: The site, in the task.
        state: The site's own files.
        take: Takes the answer, and the update where that is not in it.

    Attributes:
        site: The site; None once it has answered or failed.
        received: The model as the site has received it; None before.
        global_params: Tensors of the global model, which stay as they were received; None where
            nothing asks for them.
        personal_names: Names of the tensors of which the site keeps its own version, and sends
            none.
        asks: Kinds of task that the site's code has told from trainings.
        before_keeping: Functions of the answer, called before the site's files are kept, by names
            of what they keep.
    """

    def __init__(
        self,
        worker: Worker,
        model: TaskModel,
        site: SiteContext,
        state: SiteState,
        take: Callable[[SiteAnswer, Source | None], None],
    ) -> None:
        self.kind: str = model.task.kind
        self.site: SiteContext | None = site
        self.received: FLModel | None = None
        self.global_params: Params | None = None
        self.personal_names: frozenset[str] = frozenset()
        self.asks: set[str] = set()
        self.before_keeping: dict[str, Callable[[FLModel], None]] = {}
        self._worker, self._model = worker, model
        self._state = state
        self._take = take
        # Names of the values that the code has read, of those that the workflow has sent.
        self._read: set[str] = set()
        self._was_received = False

    @property
    def layout(self) -> Layout | None:
        """Layout of the received model; None before."""
        return self._model.layout

    def receive(self, into: Into | None = None, place: Place | None = None) -> FLModel:
        """Return the model for the site, and seed the global random generators.

        Args:
            into: Module or state dict that receives the tensors in place; None to allocate memory.
            place: Function that returns the tensors to receive into, given the model's layout, or
                None to allocate memory; in the place of ``into``.

        Raises:
            ClientError: It was received before, or does not fit ``into``.
            StreamingError: It did not arrive.
        """
        site, task = self._current(), self._model.task
        if self._was_received:
            raise ClientError(
                f"the model of round {site.round} was received before; answer it with send() first"
            )
        if self.kind == SUBMIT_MODEL:
            received = received_model(task, site.name, no_params(self.asks))
        else:
            tensors, bodies = self._model.receive(site, into, place)
            received = received_model(task, site.name, tensors, bodies, self._read)
            # By dict's own method, as it is not training code that reads it here.
            if self.kind == "train" and dict.get(received.meta, PROXIMAL_MU):
                is_trained = into is not None or place is not None
                self.global_params = clones(tensors) if is_trained else tensors
            self.received = received
        self._was_received = True
        seed_everything(site.seed)
        return received

    def answer(self, model: FLModel) -> None:
        """Take the site's answer; in a task for a single site, send it at once.

        Args:
            model: The answer.

        Raises:
            ClientError: The answer lacks what the task asks for.
            LayoutError: A tensor cannot be streamed; the message names it.
        """
        site = self._current()
        if self.kind != SUBMIT_MODEL:
            halt_at("training" if self.kind == "train" else "evaluation")
        model.check()
        # Memory that the script frees from here on is kept for the next model.
        self._worker.memory.keep()
        answer = self._reported(model, site)
        for keep in self.before_keeping.values():
            keep(model)
        self._release()
        update: Source | None = None
        if self.kind == EVALUATE or not knows_task(self):
            self._state.keep()
            answer = structs.replace(answer, has_params=answer.has_params and knows_task(self))
        else:
            answer, update = self._with_update(answer, model, site)
        self.site = None
        self._take(answer, update)

    def fail(self, failure: CodeFailure) -> None:
        """Fail the site; the others go on."""
        site = self._current()
        self.site = None
        self._release()
        self._worker.send(Failed(site.name, self._model.task.effect, *failure))
        with suppress(OSError):  # leftovers are removed before the site trains again
            self._state.discard()

    def _release(self) -> None:
        """Let go of the model's memory, and of what helpers of the code hold."""
        self.received = self.global_params = None
        self.before_keeping = {}

    def _reported(self, model: FLModel, site: SiteContext) -> SiteAnswer:
        """The answer without its tensors: weight, metrics and meta."""
        task, joined = self._model.task, self._model.joined
        unread: list[str] = []
        # Before the answer's values are read, which may be those that were received.
        if self.kind == "train" and (task.meta or task.joined):
            other = {} if joined is None else joined.received_as
            unread = [
                name
                for name in sent_names(task.meta, task.joined)
                if self._read.isdisjoint({name, other.get(name, name)})
            ]
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

    def _with_update(
        self, answer: SiteAnswer, model: FLModel, site: SiteContext
    ) -> tuple[SiteAnswer, Source | None]:
        """Take the tensors of an answer, and keep the site's state.

        The steps that can fail come first: a failed site keeps no state. An update is offered only
        once the state that belongs to it is durable.

        Returns:
            The answer with what says how to read its tensors, and these where they are not in it.
        """
        arrived, task, changes = self._model, self._model.task, self._worker.changes
        params, partial = self._sent_tensors(model)
        joint = arrived.joint
        whole = MemoryBody.of(params, tied=None if joint is None else joint.aliases)
        check_kinds(whole.layout, joint)
        update = changes.sent(whole, arrived.kept, model, site)
        partial = partial or len(update.layout.tensors) < len(whole.layout.tensors)
        if self.kind == "train":
            update = changes.encoded(update, arrived.kept, model, site)
        in_answer = None
        if task.inline:
            check_size(whole.layout, joint, task.inline)
            in_answer = inline(update, joint)
        answer = structs.replace(
            answer,
            params_type=ParamsType(model.params_type).value,
            framework=framework_of(model.params or {}),
            partial=partial,
            has_params=True,
            state=self._state.keep(),
            update=in_answer,
        )
        return answer, None if in_answer is not None else update

    def _sent_tensors(self, model: FLModel) -> tuple[Params, bool]:
        """The tensors of an answer, with those of bodies; and whether some are left out."""
        arrived, task = self._model, self._model.task
        selected, layout, joined = arrived.selected, arrived.layout, arrived.joined
        if self.personal_names:
            assert layout is not None  # it was received
            names = layout.by_name.keys() if selected is None else selected
            selected = frozenset(names) - self.personal_names
        params, partial = params_to_send(model, task, layout, selected, arrived.held_back)
        if joined is not None:
            params = joined.put_together(params, model.meta, selected)
        elif task.joined:
            raise ClientError(
                "the answer was sent before the model was received, and the workflow folds "
                f"meta[{task.joined[0]!r}] of it, too; call receive() first"
            )
        return params, partial

    def _current(self) -> SiteContext:
        if self.site is None:
            raise ClientError("there is no task to answer; call receive() first")
        return self.site


class SiteTurns:
    """The turns of a worker's sites, task after task; the answers of a task are sent together.

    Args:
        worker: The worker.
        ranks: Store of the calls of the site's ranks, of which this process is the first; None
            without ``train.command``.

    Attributes:
        worker: The worker.
        place: Which of the site's processes this one is.
        optimizer_state: Value of ``train.optimizer_state``; None where the training code decides.
    """

    def __init__(self, worker: Worker, ranks: RankStore | None = None) -> None:
        self.worker = worker
        self.place = RankPlace() if ranks is None else ranks.place
        self.optimizer_state = worker.info.optimizer_state
        self._ranks = ranks
        self._model: TaskModel | None = None
        self._sites: deque[SiteTask] = deque()
        self._answers: list[SiteAnswer] = []
        self._is_delivered = False
        self._turn: SiteTurn | None = None
        # The site of the last turn, in its task.
        self._site: SiteContext | None = None

    def ready(self) -> None:
        """Report to the server that the training code is ready."""
        self.worker.ready(() if self._ranks is None else self._ranks.other_pids())

    def next(self, call: CallName = "receive", timeout: float | None = None) -> SiteTurn | None:
        """Return the turn that is not over yet, or begin the next one.

        A site whose folder cannot be used has no turn. A task is finished after its last site.

        Args:
            call: The call of the training code that asks for it.
            timeout: Seconds to wait for a task; None to wait without a limit.

        Returns:
            The turn; None if there are no more, or no task came in time.

        Raises:
            ProtocolError: The server sent a site's own process a task of other sites.
        """
        if self._turn is None or self._turn.site is None:
            self._turn = None  # frees what it refers to before the next model arrives
            while self._turn is None and (self._sites or self._has_task(timeout)):
                self._turn = self._begin(self._sites.popleft())
        if self._ranks is not None:
            self._ranks.publish(call, self._turn is not None)
        return self._turn

    def log(self, key: str, value: Any, step: int | None) -> None:
        """Record values in the run's events.

        A training that is repeated for the sake of its update alone records nothing: what it logged
        the first time counts.
        """
        number = 0 if self._site is None else self._site.round
        name = self.constants()["site_name"]
        values, at = list(values_of(key, value)), step_of(key, step)
        task = None if self._model is None else self._model.task
        if task is not None and task.kind == "train" and not task.keeps_state:
            return
        for own_key, plain, text in values:
            self.worker.send(Logged(number, name, own_key, plain, at, text))

    def fail(self, failure: CodeFailure) -> None:
        """Report that the training code failed: the turn under way, or between turns the process.

        Args:
            failure: Why it failed.
        """
        if self._turn is not None and self._turn.site is not None:
            self._turn.fail(failure)
        else:
            self.worker.send(Failed("", 0, *failure))

    def end(self) -> None:
        """Have the other ranks take no more tasks."""
        if self._ranks is not None:
            self._ranks.publish(None)

    def constants(self) -> dict[str, Any]:
        """Return the facts about the run and the site that are the same in every task."""
        return self.worker.info.constants(self._site)

    def _has_task(self, timeout: float | None) -> bool:
        """Finish a task, and wait for the next one; return whether it came."""
        if self._model is not None:
            self.worker.enter(None)
            self._model.kept = None
            if not self._is_delivered:
                self._deliver(None)
        self._model = None
        task = self.worker.next_task(timeout)
        if task is None:
            return False
        own = self.worker.info.site
        if own is not None and [each.site for each in task.sites] != [own]:
            raise ProtocolError(f"the server sent {own} a task of other sites")
        self._model, self._sites = TaskModel(self.worker, task), deque(task.sites)
        self._answers, self._is_delivered = [], False
        return True

    def _begin(self, site: SiteTask) -> SiteTurn | None:
        """Begin a site's part of the task; its folder may be of no use, which fails the site."""
        assert self._model is not None
        worker, task = self.worker, self._model.task
        if len(task.sites) > 1:
            worker.send(Progress(task.effect, "turn", site.site))
        try:
            worker.enter(site.site)
            state = SiteState(
                f"{worker.info.sites_folder}/{site.site}",
                task.effect,
                site.state,
                kept=task.kind == "train" and task.keeps_state,
                oldest=task.oldest,
            )
        except OSError as error:
            reason = f"its folder in the run directory cannot be used: {error}"
            worker.send(Failed(site.site, task.effect, reason))
            return None

        def state_dir() -> Path:
            path = state.path
            if self._ranks is not None:
                self._ranks.publish_state(str(path))
            return path

        self._site = worker.info.context(task, site, state_dir)
        if self._ranks is not None:
            self._ranks.begin(task)
        return SiteTurn(worker, self._model, self._site, state, self._take)

    def _take(self, answer: SiteAnswer, update: Source | None) -> None:
        assert self._model is not None
        self._answers.append(answer)
        if len(self._model.task.sites) == 1:
            self._deliver(update)

    def _deliver(self, update: Source | None) -> None:
        """Send the answers of the task, and wait until the server has used the update.

        Args:
            update: Body of the update of the task's one site; None where the answers have all.
        """
        assert self._model is not None
        model, task, answers = self._model, self._model.task, self._answers
        self._is_delivered, copied, ref = True, model.copied_bytes(), None
        if update is not None:
            place: OfferedUpdate | WrittenUpdate
            if task.folder:
                place = _written(update, Path(task.folder, f"{answers[0].site}.safetensors"))
            else:
                encoder = None
                frames = self.worker.changes.update_codecs.frames
                if frames is not None and task.kind == "train":
                    bases = {} if model.kept is None else {task.model: model.kept}
                    encoder = encoder_for(frames, update.layout, bases)
                ref = self.worker.offer(update, encoder)
                place = OfferedUpdate(ref.token)
            answers = [structs.replace(answers[0], update=place)]
        self.worker.send(Answered(task.effect, answers, copied))
        if ref is not None and not (outcome := ref.wait()).ok:
            print(
                f"flstream: the update of round {task.round} was not used ({answers[0].site}): "
                f"{outcome.reason}",
                file=sys.stderr,
                flush=True,
            )


def serve_turns(worker: Worker, run: Callable[[SiteTurns, SiteTurn], CodeFailure | None]) -> None:
    """Run training code for one turn after another, until the server stops the worker.

    Args:
        worker: The worker.
        run: Function that runs the code for a turn. It returns why the site fails if the code has
            not answered; None if it always has.
    """
    turns = SiteTurns(worker)
    while (turn := turns.next()) is not None:
        failure = run(turns, turn)
        # An answer that the code sent before it failed counts, and may be on its way already.
        if turn.site is not None:
            assert failure is not None
            turn.fail(failure)
        del turn  # frees what it refers to before the next model arrives


def _written(update: Source, path: Path) -> WrittenUpdate:
    """Write the update of the task's one site to the file from which it will be folded."""
    began, digest = time.monotonic(), BodyDigest(update.layout)
    with FileSink(path, update.layout, durable=False) as sink:
        copy(update, sink, digest=digest)
        sink.finish()
    cost = Transfer(bytes=update.layout.nbytes, seconds=time.monotonic() - began)
    return WrittenUpdate(digest.hexdigest(), cost)
