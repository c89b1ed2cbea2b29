"""The effect of a training: asking for it, doing it once somebody reads it, and replaying it."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

from msgspec import structs

from flstream.errors import MisfitError, SimulationError, WorkflowError
from flstream.job.device import nanoseconds
from flstream.model.selection import ModelParts, Part
from flstream.runs.results import NextResult, TaskCost, TrainResult
from flstream.server.arguments import (
    WHOLE_MODEL,
    check_idle,
    check_model,
    check_not_private,
    check_sites_and_timeout,
    check_training,
    check_values,
    check_wait,
)
from flstream.server.effects import uncatchable
from flstream.server.fleet import check_states_of, with_states
from flstream.server.program_view import Model, Update, Updates
from flstream.server.task_run import TaskRun
from flstream.server.training import SiteTraining
from flstream.text import brief_names
from flstream.worker.meta import pack_values

if TYPE_CHECKING:
    from flstream.server.run_state import RunState
    from flstream.server.started import StartedTrainings

# Most waits in a row for a device that comes back, with no training in flight, for each site.
_MOST_IDLE_WAITS = 1000
# Trainings in a row after which a workflow that starts others in their place would never end.
_MOST_LOST = 10_000


class TrainingEffects:
    """Asks for trainings, does each that is new, and replays the others."""

    def __init__(self, state: RunState) -> None:
        self._state = state
        # Trainings that were neither read nor folded yet.
        self._pending: list[SiteTraining] = []
        # Waits with nothing in flight since the last start.
        self._idle_waits = 0
        # Trainings in a row that were started and have failed.
        self._lost = 0

    @cached_property
    def started(self) -> StartedTrainings:
        """The trainings of single sites that are in flight."""
        from flstream.server.started import StartedTrainings

        return StartedTrainings(self._state)

    @property
    def has_started(self) -> bool:
        """Whether the workflow has started a training of a single site."""
        return "started" in vars(self)

    def ask(
        self,
        model: Model,
        sites: Sequence[str],
        min_updates: int | None,
        timeout: float | None,
        parts: ModelParts = WHOLE_MODEL,
        *,
        meta: Mapping[str, Any] | None = None,
        optimizer_params: Mapping[str, Any] | None = None,
    ) -> Updates:
        """Ask for a training, which is done once somebody reads its updates or folds them.

        The arguments are those of :meth:`flstream.server.run.Run.train`.
        """
        check_training(sites, min_updates, timeout)
        self._state.check_sites("train", sites)
        state, job = self._state, self._state.context.job
        names = [site for site in sites if state.fleet.may_be_asked(site)]
        least = self._least(min_updates, names)
        if not names and least:
            raise WorkflowError(
                f"run.train() was given no site that is still asked in round {state.round}; "
                "give it at least one of run.sites, or min_updates=0"
            )
        least = min(least, len(names))
        end = job.stragglers.end(job.clients, least, len(names))
        training = self._training(
            "train", model, names, timeout, parts, meta, optimizer_params, min_updates=min_updates
        )
        training.least, training.end = least, end
        self._pending.append(training)
        return Updates(training)

    def ask_each(
        self, model: Model, messages: Mapping[str, Mapping[str, Any]], timeout: float | None
    ) -> Updates:
        """Ask sites for answers; see :meth:`flstream.server.run.Run.ask`."""
        sites, state = list(messages), self._state
        check_sites_and_timeout("ask", sites, timeout)
        state.check_sites("ask", sites)
        check_not_private(state.context.job, "run.ask() sends sites what is theirs", "run.train()")
        names = [site for site in sites if state.fleet.may_be_asked(site)]
        for site in names:
            check_values("ask", f"messages[{site!r}]", messages[site])
        packed = {site: pack_values(messages[site]) for site in names}
        shared = next(iter(packed.values()), b"")
        if any(message != shared for message in packed.values()):
            shared = b""
        training = self._training(
            "ask",
            model,
            names,
            timeout,
            WHOLE_MODEL,
            None,
            None,
            messages=[] if shared else list(packed.values()),
            shared=shared,
        )
        training.is_asked, training.meta = True, shared
        if not shared:
            training.own_meta = packed
        self._pending.append(training)
        return Updates(training)

    def start(
        self,
        site: str,
        model: Model,
        timeout: float | None,
        parts: ModelParts,
        meta: Mapping[str, Any] | None,
        optimizer_params: Mapping[str, Any] | None,
    ) -> None:
        """Start a training at one site; see :meth:`flstream.server.run.Run.start`."""
        state = self._state
        check_sites_and_timeout("start", [site], timeout)
        state.check_sites("start", [site])
        if not state.fleet.may_be_asked(site):
            raise WorkflowError(
                f"run.start() was given {site}, {state.fleet.why_not_asked(site)}; "
                "choose from run.idle"
            )
        check_not_private(state.context.job, "run.start() was called for one site", "run.train()")
        training = self._training("start", model, [site], timeout, parts, meta, optimizer_params)
        self._find_whole(training)
        started = state.journal.once(
            "start",
            training.round,
            training.request,
            training.arguments,
            lambda _: (model.version, None),
            int,
        )
        training.number, self._idle_waits = started.number, 0
        self._begin_clocks(training)
        self.started.add(training)
        if state.journal.is_live:
            self.started.give(at_once=False)

    def next(
        self, *, may_fail: bool, max_wait: float | None = None, since: Update | None = None
    ) -> Update | None:
        """Take the next answer of those in flight; see :meth:`flstream.server.run.Run.next`."""
        state, in_flight = self._state, self._state.in_flight
        state.check_round("next")
        check_wait(max_wait, since)
        limit = self._limit(max_wait, since)
        if not in_flight and max_wait is not None and self._lets_time_pass(limit):
            return None
        if not in_flight:
            hint = "start one with run.start() first"
            if (site := state.fleet.first_not_asked) is not None:
                hint += f", of other sites than {site}, {state.fleet.why_not_asked(site)}"
            raise WorkflowError(
                f"run.next() was called with no training in flight, so no answer can come; {hint}"
            )
        if all(training.is_waiting for training in in_flight.values()):
            raise WorkflowError(
                f"run.next() was called while {brief_names(list(in_flight))} "
                "wait for the late tensors of a model that is not made, so no answer can come; "
                "call run.fold() first"
            )

        def do(_: int) -> tuple[NextResult, None]:
            began = time.monotonic()
            if state.clock is None or max_wait is None:
                first = self.started.first(limit)
            else:
                first = state.clock.wait_until(limit, self.started.first)
            if first is None:
                return NextResult(until=state.now), None
            training, run = first
            ended = time.monotonic()
            arrived = min(max(run.arrived_at, began), ended)
            cost = TaskCost(arrived - began, ended - arrived, down=run.down)
            result = self.end(training, run, cost)
            if result.failures and not may_fail:
                failed, reason = next(iter(result.failures.items()))
                raise SimulationError(
                    f"{failed} failed in round {training.round}, and its answer is needed "
                    f"(clients.min_updates): {reason}; see its log, and go on with --resume"
                )
            (site,) = training.tasks
            return NextResult(training.number, site, result), None

        request, count = "next()", len(in_flight)
        arguments: object = count
        if max_wait is not None:
            source = None if since is None else [since.training.number, since.site]
            request, arguments = f"next(max_wait={max_wait:g})", [count, float(max_wait), source]
        done = state.journal.once("next", state.round, request, arguments, do, NextResult).result
        if state.clock is not None and max_wait is not None:
            # Sites that came or went before the answer had done so by now, also where it is new.
            state.clock.go_on(done.until if done.train is None else done.train.ended - 1)
        if done.train is None:
            return None
        training = self.started.take(done.site)
        self._take(training, done.train)
        state.settle_failures()
        self._lost = 0 if done.train.sites else self._lost + 1
        if self._lost >= _MOST_LOST:
            reason = next(iter(done.train.failures.values()))
            raise SimulationError(
                f"{self._lost:,} trainings in a row have come to nothing, the last one of "
                f"{done.site}: {reason}; change devices, or what sites train"
            )
        if updates := training.updates():
            return updates[0]
        return Update(
            done.site, 0.0, {}, training.base, training, failure=training.failures()[done.site]
        )

    def _limit(self, max_wait: float | None, since: Update | None) -> float:
        """The time up to which to wait for an answer: see :meth:`StartedTrainings.first`."""
        clock = self._state.clock
        if max_wait is None or math.isinf(max_wait):
            return math.inf
        if clock is None:
            return (time.monotonic() if since is None else since.training.taken_at) + max_wait
        began = clock.now if since is None else since.training.settled().ended
        return began + nanoseconds(max_wait)

    def _lets_time_pass(self, limit: float) -> bool:
        """Wait with nothing in flight, on the virtual clock; return whether that is of any use."""
        clock, numbers = self._state.clock, self._state.fleet.numbers
        if clock is None or self._idle_waits > _MOST_IDLE_WAITS * len(numbers):
            return False
        self._idle_waits += math.isinf(limit)
        began = clock.now
        clock.wait_until(limit, lambda _: None)
        return clock.now > began or not math.isinf(limit)

    def _training(
        self,
        method: Literal["train", "ask", "start"],
        model: Model,
        names: Sequence[str],
        timeout: float | None,
        parts: ModelParts,
        meta: Mapping[str, Any] | None,
        optimizer_params: Mapping[str, Any] | None,
        **others: object,
    ) -> SiteTraining:
        """Check what a training is given, and return it; none of its sites has to answer."""
        state = self._state
        check_model(method, model)
        check_values(method, "meta", meta)
        check_values(method, "optimizer_params", optimizer_params)
        state.check_round(method)
        if meta and (both := sorted(meta.keys() & set(state.store.bodies(model)))):
            raise WorkflowError(
                f"run.{method}() was given a value {both[0]!r} in meta, and the model has a body "
                "of that name beside it; give it another name"
            )
        check_idle(method, names, self._state.in_flight)
        self._check_parts(method, parts, model)
        message = pack_values(meta or {}, optimizer_params)
        arguments: dict[str, Any] = {
            "model": [model.version, model.digest],
            "sites": names,
            "timeout": timeout,
            "meta": message,
            **others,
            **parts.by_name,
        }
        seconds = state.context.job.clients.round_timeout if timeout is None else float(timeout)
        # Of which sites have to know what they received last.
        sends_changes = state.context.job.streaming.codecs.of_models.of_changes
        return SiteTraining(
            self,
            arguments,
            f"{method}(model {model.version}, {brief_names(names)})",
            state.round,
            None if method == "start" else state.program_line(),  # one that is started is used
            model,
            state.fleet.tasks("train", names, state.round),
            0,
            None,
            seconds,
            message,
            is_started=method == "start",
            parts=None if parts == WHOLE_MODEL and not sends_changes else parts,
        )

    def _check_parts(self, method: str, parts: ModelParts, model: Model) -> None:
        """Refuse parts of a model where something else takes it whole."""
        if parts == WHOLE_MODEL:
            return
        argument = next(iter(parts.by_name))
        if beside := self._state.store.bodies(model):
            raise WorkflowError(
                f"run.{method}() was given {argument}, and the model has the body {beside[0]!r} "
                f"beside it, which travels whole; leave out {argument}"
            )
        job = self._state.context.job
        for key, is_set in (
            ("filters", bool(job.filters.up or job.filters.down)),
            ("privacy.type", job.privacy.is_on),
        ):
            if is_set:
                raise MisfitError(
                    f"run.{method}() was given {argument}, and {key} is for whole models; leave "
                    f"out {key}"
                )
        rotates = any(isinstance(entry, Part) and entry.count > 1 for entry in parts.send or ())
        if rotates and job.streaming.codecs.of_updates.leaves_out:
            name = job.streaming.codecs.up[0].name
            raise MisfitError(
                f"run.{method}() was given one of several parts as send, and streaming.codecs.up "
                f"has {name}, which adds what it leaves out to the next update of the same "
                "tensors; take cast, int8 or int4"
            )

    def _find_whole(self, training: SiteTraining) -> None:
        """Find the sites that begin anew with the whole model: they lack what others have."""
        is_partial = training.parts is not None and training.parts.receive is not None
        if not is_partial or training.whole is not None:
            return
        received = self._state.received
        training.whole = frozenset(
            site for site in training.tasks if received.begins_anew(site, training.round)
        )
        keeps_files = self._state.context.job.streaming.codecs.keep_models
        staying = [site for site in training.tasks if site not in training.whole]
        if keeps_files and (lacking := [site for site in staying if received.lacks_file(site)]):
            raise WorkflowError(
                f"a training of round {training.round} was given receive, and {lacking[0]} has "
                "received its last model without receive and send, of which it keeps no file for "
                'streaming.codecs to compare with; give send to that training, too: send=[".*"]'
            )
        training.tasks = {
            site: structs.replace(task, state=None) if site in training.whole else task
            for site, task in training.tasks.items()
        }
        if training.whole and not received.is_empty and self._state.journal.is_live:
            names = brief_names(sorted(training.whole))
            print(
                f"flstream: round {training.round}: {names} begin anew with the whole model, for "
                "want of the state that the last training left",
                flush=True,
            )

    def check_done(self) -> None:
        """Refuse to end a workflow with trainings that nobody has read or folded."""
        if not self._pending:
            return
        training = self._pending[0]
        place = "" if training.line is None else f", line {training.line} of the workflow,"
        raise WorkflowError(
            f"{training.request} of round {training.round}{place} was neither read nor folded, so "
            "nobody has trained; pass it to run.fold() or run.adopt(), or leave it out"
        )

    def _least(self, min_updates: int | None, names: Sequence[str]) -> int:
        """How many updates have to come of the sites that are asked."""
        state = self._state
        if min_updates is not None:
            return min_updates
        job = state.context.job
        least = job.stragglers.least(job.clients, len(names)) or 1
        if state.private is not None and state.private.is_draw(names, state.round):
            return min(least, len(names))  # by chance, nobody may be drawn
        return least

    @uncatchable
    def do(self, training: SiteTraining) -> None:
        """Run a training whose updates are read now, as an effect of its own."""
        done = self._state.journal.once(
            "train",
            training.round,
            training.request,
            training.arguments,
            lambda number: (self._run(training, number), None),
            TrainResult,
        )
        self.take(training, done.result, done.number)

    def _run(self, training: SiteTraining, number: int) -> TrainResult:
        """Run a training; its updates are in durable files on return."""
        self.begin(training, number)
        run, _ = self._state.tasks.begin(training, is_read=True)
        run.run()
        return self.end(training, run, run.cost)

    def begin(self, training: SiteTraining, number: int) -> None:
        """Begin a training as a part of an effect, or as one: its sites are given tasks next."""
        state = self._state
        # One of them may have been started since it was asked.
        check_idle("train", training.tasks, state.in_flight)
        training.number = number
        state.retire_models()
        training.tasks = state.fleet.up_to_date(training.tasks)
        self._find_whole(training)
        training.oldest = state.oldest_effect
        self._begin_clocks(training)

    def _begin_clocks(self, training: SiteTraining) -> None:
        """Begin a training now, where its time is simulated."""
        if (clock := self._state.clock) is not None:
            training.clocks = clock.begin(training.tasks, training.seconds)
            training.began = clock.now

    def end(
        self, training: SiteTraining, run: TaskRun, cost: TaskCost, *, is_folded: bool = False
    ) -> TrainResult:
        """Return the result of a training that is over, and keep its updates unless folded now."""
        state, store, tasks = self._state, self._state.update_store, training.tasks
        # A task may have been for others, too, that were started like this one.
        reasons = run.collector.failures
        failures = {site: reasons[site] for site in tasks if site in reasons}
        check_states_of(state.context.run, tasks, failures)
        updates = run.collector.updates
        training.collected |= {site: updates[site] for site in tasks if site in updates}
        waiting = {} if is_folded else store.keep(training)
        answers_by_site = run.collector.answers
        answers = [answers_by_site[site] for site in tasks if site in answers_by_site]
        state.warn_of_late(answers)
        stage = state.context.job.stages[state.stage]
        state.warn(state.site_code.unread(stage, training.round, answers))
        clocks = training.clocks.items()
        ends = {site: clock.end.time for site, clock in clocks if clock.end is not None}
        # None where it was started alone, or nobody was drawn for it.
        ended = max(ends.values(), default=training.began) if run.ended is None else run.ended
        metas: dict[bytes, int] = {}
        places = [metas.setdefault(answer.meta, len(metas)) for answer in answers]
        return TrainResult(
            sites=[answer.site for answer in answers],
            weights=[answer.weight for answer in answers],
            metrics=[answer.metrics for answer in answers],
            metas=list(metas),
            meta_places=places,
            states={answer.site: answer.state for answer in answers if answer.state is not None},
            failures=failures,
            late=sorted(site for site in run.late if site in tasks),
            cost=cost,
            bases={site: task.state for site, task in tasks.items() if task.state is not None},
            asks=state.site_code.first_kinds(answers),
            updates=waiting,
            base=training.trained_from.version,
            began=training.began,
            ended=ended,
            times={site: end - training.began for site, end in ends.items()},
        )

    def take(self, training: SiteTraining, result: TrainResult, number: int) -> None:
        """Continue from the result of a training on record, with the number of its effect."""
        self._pending.remove(training)
        training.number = number
        self._find_whole(training)
        self._take(training, result)

    def _take(self, training: SiteTraining, result: TrainResult) -> None:
        state = self._state
        training.result, training.taken_at = result, time.monotonic()
        if state.clock is not None:
            state.clock.go_on(result.ended)
        state.received.take(training, set(result.sites))
        if state.site_history is not None:
            state.site_history.take(training.round, result)
        if result.sites:
            state.site_code.note_sent(training.meta, state.store.bodies(training.base))
        training.tasks = with_states(training.tasks, result.bases)
        state.fleet.set_states(result.states)
        if result.updates:
            state.update_store.keep_updates(training, state.round)
        state.site_code.record(result.asks)
        if state.totals is not None:  # it may be read after the last round, for its metrics
            state.totals.add_cost(result.cost)
        state.fleet.note_failures(site for site in result.failures if site not in result.late)
