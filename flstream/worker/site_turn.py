"""A site's part of a task: received model, and answer or failure."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import structs

from flstream.client.adapters import check_residuals, receive_residuals
from flstream.client.base import check_base, follow_base, restore_base
from flstream.client.fl_model import FLModel, ParamsType, check_kinds
from flstream.client.learner import SiteContext
from flstream.client.received_values import no_params
from flstream.client.seeding import seed_everything
from flstream.client.session import TaskTurn, knows_task
from flstream.errors import ClientError
from flstream.job.bodies import INNER_STEPS, LATE_STEP, PROXIMAL_MU
from flstream.model.composed import part_of
from flstream.model.layout import Layout
from flstream.model.memory import MemoryBody, Params
from flstream.model.source import Source
from flstream.telemetry.events import Transfer
from flstream.telemetry.halts import halt_at
from flstream.worker.answers import (
    check_size,
    clones,
    file_to_send,
    framework_of,
    inline,
    metrics_of,
    names_to_send,
    weight_of,
)
from flstream.worker.messages import EVALUATE, SUBMIT_MODEL, Failed, Progress, SiteAnswer
from flstream.worker.meta import pack_values, sent_names
from flstream.worker.state import SiteState
from flstream.worker.task_model import TaskModel, received_model
from flstream.worker.user_code import CodeFailure
from flstream.worker.worker import Worker

if TYPE_CHECKING:
    from flstream.client.session import Into, Place


class SiteTurn(TaskTurn):
    """A site's part of a task.

    In a task for a single site, the model is received into the tensors that are trained, and the
    update is fetched from where it lies. In a task for several sites, each site gets a copy of the
    model, and the updates are copied. So it does in a task for a single site where filters need the
    model as it was received.
    """

    def __init__(
        self,
        worker: Worker,
        model: TaskModel,
        site: SiteContext,
        state: SiteState,
        take: Callable[[SiteAnswer, Source | None], None],
    ) -> None:
        super().__init__(model.task.kind, site)
        self._worker, self._model = worker, model
        self._state = state
        self._take = take
        # Names of the values that the code has read, of those that the workflow has sent.
        self._read: set[str] = set()
        self._was_received = False
        self._began = time.monotonic()
        self._late: Future[tuple[MemoryBody, Transfer]] | None = None

    @property
    def layout(self) -> Layout | None:
        """Layout of the received model; None before."""
        return self._model.layout

    def receive(
        self, into: Into | None = None, place: Place | None = None, file: Path | None = None
    ) -> FLModel:
        """Return the model, and seed the global random generators."""
        site, task = self._current(), self._model.task
        follow_base(task.base)
        if self._was_received:
            raise ClientError(
                f"the model of round {site.round} was received before; answer it with send() first"
            )
        if self.kind == SUBMIT_MODEL:
            received = received_model(task, site.name, no_params(self.asks))
        elif file is not None:
            self._model.receive_file(file, site)
            received = received_model(task, site.name, None, read=self._read)
            if dict.get(received.meta, PROXIMAL_MU):
                raise ClientError(
                    "workflow.args.fedprox_mu needs the received model in memory; set it to 0, or "
                    "call receive() without file"
                )
            received.file = str(file)
            self.received = received
        else:
            tensors, bodies = self._model.receive(site, into, place)
            received = received_model(task, site.name, tensors, bodies, self._read)
            # By dict's own method, as it is not training code that reads it here.
            if self.kind == "train" and dict.get(received.meta, PROXIMAL_MU):
                is_trained = into is not None or place is not None
                self.global_params = clones(tensors) if is_trained else tensors
            self.received = received
        receive_residuals(received.meta)
        self._was_received, self._began = True, time.monotonic()
        if task.parts is not None and task.parts.is_late:
            self._late = self._model.begin_late(site)
        seed_everything(site.seed)
        return received

    def fetch(self, names: Sequence[str]) -> Params:
        """Return some tensors of the model."""
        return self._model.fetch(names, self._current())

    def _late_body(self) -> MemoryBody | None:
        """Wait for late tensors, and report what they have cost; None where none come, or no more.

        Raises:
            FlstreamError: They did not come.
        """
        if self._late is None:
            return None
        began, late, self._late = time.monotonic(), self._late, None
        body, cost = late.result()
        waited = time.monotonic() - began
        self._worker.send(Progress(self._model.task.effect, "late", cost=cost, waited=waited))
        return body

    def _check_parts(self) -> None:
        """Refuse an answer of code that has not the tensors which its task is about."""
        task = self._model.task
        if (parts := task.parts) is None:
            return
        if parts.is_late and (self._late is not None or not self._was_received):
            raise ClientError(
                "the workflow sends tensors while the site trains, and the code has ended its task "
                "without them; train with flare.outer_steps, at whose inner step "
                f"meta[{LATE_STEP!r}] they come, or take a workflow without late tensors (overlap)"
            )
        is_segment = INNER_STEPS in sent_names(task.meta) and INNER_STEPS not in self._read
        if is_segment and not parts.is_whole:
            raise ClientError(
                "the workflow sends a part of the model to a site that is to have the rest, and "
                "the code has not kept it; train with flare.outer_steps, or exchange whole models "
                "(fragments = 1)"
            )

    def declare(self, units: float) -> None:
        """Tell the server how much work the site's code does in this task."""
        super().declare(units)
        site = self._current()
        self._worker.send(Progress(self._model.task.effect, "declared", site.name, units=units))

    def late(self) -> Params | None:
        """Wait for the tensors that come while the site trains; None where none do, or no more."""
        if (body := self._late_body()) is None:
            return None
        self._model.take_late(body, self._current())
        return body.tensors

    def answer(self, model: FLModel) -> None:
        """Take the site's answer; send it at once if the task is for one site."""
        site = self._current()
        if self.kind != SUBMIT_MODEL:
            halt_at("training" if self.kind == "train" else "evaluation")
        model.check()
        self._check_parts()
        check_base()
        check_residuals()
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
        elif not (answer.has_params or self._model.task.needs_update):
            answer = structs.replace(answer, state=self._state.keep())
        else:
            answer, update = self._with_update(answer, model, site)
        self.site = None
        self._take(answer, update)

    def fail(self, failure: CodeFailure) -> None:
        """Fail the site; the others go on."""
        site = self._current()
        parts = self._model.task.parts
        if parts is not None and parts.is_late and not self._was_received:
            self._late = self._model.begin_late(site)  # which nobody has asked for
        with suppress(Exception):  # the site has failed already
            self._late_body()
        self.site = None
        self._release()
        restore_base()  # for the next site
        self._worker.send(Failed(site.name, self._model.task.effect, *failure))
        with suppress(OSError):  # leftovers are removed before the site trains again
            self._state.discard()

    def _release(self) -> None:
        """Drop the model's memory, and the functions of the code's helpers."""
        self.received = self.global_params = None
        receive_residuals({})
        self.before_keeping = {}

    def _reported(self, model: FLModel, site: SiteContext) -> SiteAnswer:
        """Return the answer without its tensors: weight, metrics and meta."""
        task, joined = self._model.task, self._model.joined
        unread: list[str] = []
        # Before the answer's values are read, which may be those that were received.
        message = task.meta_of(site.name)
        if self.kind == "train" and (message or task.joined):
            other = {} if joined is None else joined.received_as
            unread = [
                name
                for name in (*sent_names(message), *task.joined)
                if self._read.isdisjoint({name, other.get(name, name)})
            ]
        rest = model.meta if joined is None else joined.rest(model.meta)
        # Whether the update is partial stands in a field of its own.
        meta = {key: value for key, value in rest.items() if key != "partial"}
        return SiteAnswer(
            site.name,
            weight_of(model.meta),
            metrics_of(model),
            has_params=model.params is not None or model.file is not None,
            meta=pack_values(meta, model.optimizer_params),
            unread=unread,
            asks=sorted(self.asks),
            units=self.units,
            seconds=time.monotonic() - self._began,
        )

    def _with_update(
        self, answer: SiteAnswer, model: FLModel, site: SiteContext
    ) -> tuple[SiteAnswer, Source | None]:
        """Describe the update's tensors in an answer; return tensors to send apart.

        The steps that can fail come first: a failed site keeps no state. An update is offered only
        once the state that belongs to it is durable.
        """
        arrived, task, changes = self._model, self._model.task, self._worker.changes
        joint, whole, partial = arrived.joint, *self._sent_body(model, site)
        check_kinds(whole.layout, joint)
        compared = arrived.compared(site)
        update = changes.sent(whole, compared, model, site)
        partial = partial or len(update.layout.tensors) < len(whole.layout.tensors)
        if self.kind == "train":
            update = changes.encoded(update, compared, model, site)
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
            nbytes=update.layout.nbytes,
        )
        return answer, None if in_answer is not None else update

    def _sent_body(self, model: FLModel, site: SiteContext) -> tuple[Source, bool]:
        """Return an answer's tensors, with bodies', and whether some are missing."""
        arrived, task = self._model, self._model.task
        selected, layout, joined = arrived.selected, arrived.layout, arrived.joined
        if self.personal_names:
            assert layout is not None  # it was received
            all_names = layout.by_name.keys() if selected is None else selected
            selected = frozenset(all_names) - self.personal_names
        facts = model, task, layout, selected, arrived.held_back
        if model.file is not None:
            source = file_to_send(site.path_of(model.file), site.name, arrived.joint, task.joined)
            names, partial = names_to_send(source.layout.names, *facts)
            return part_of(source, names), partial
        is_part = joined is not None and joined.has_own
        names, partial = names_to_send((model.params or {}).keys(), *facts, is_part=is_part)
        params: Params = {name: (model.params or {})[name] for name in names}
        if joined is not None:
            params = joined.put_together(params, model.meta, selected)
        elif task.joined:
            raise ClientError(
                "the answer was sent before the model was received, and the workflow folds "
                f"meta[{task.joined[0]!r}] of it, too; call receive() first"
            )
        tied = None if arrived.joint is None else arrived.joint.aliases
        if task.parts is not None:
            tied = task.parts.ties
        return MemoryBody.of(params, tied=tied), partial

    def _current(self) -> SiteContext:
        if self.site is None:
            raise ClientError("there is no task to answer; call receive() first")
        return self.site
