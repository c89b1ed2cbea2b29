"""Waiting for what sites say: answers to tasks, and whatever else comes meanwhile."""

from __future__ import annotations

import selectors
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Literal, TypeVar

from flstream.client.messages import (
    Evaluation,
    Failed,
    FromSite,
    Goodbye,
    Logged,
    Ready,
    Received,
    Stop,
    TaskKind,
    ToSite,
    Trained,
)
from flstream.errors import AbortedError, ChannelClosedError, FlstreamError, SimulationError
from flstream.simulator.initial_model import BuildReport
from flstream.simulator.site import Site
from flstream.telemetry.events import (
    AnyEvent,
    ProcessEnded,
    ProcessReady,
    SiteFailed,
    SiteLog,
    SiteState,
    SiteUpdate,
)
from flstream.transport.channel import AbortSignal
from flstream.transport.messages import PATIENCE, MessageChannel

AnswerT = TypeVar("AnswerT", Trained, Evaluation)


REPORT_SECONDS = 0.1
"""How often progress is reported while something is waited for."""

_AT_WORK: Mapping[TaskKind, Literal["training", "evaluating"]] = {
    "train": "training",
    "evaluate": "evaluating",
}


class Answers:
    """Listens to all sites at once.

    Args:
        sites: the sites by name.
        emit: takes an event for everything that they say.
        abort: raised to give up.
        round_timeout: seconds that a task may take.
    """

    def __init__(
        self,
        sites: Mapping[str, Site],
        emit: Callable[[AnyEvent], None],
        abort: AbortSignal,
        round_timeout: float,
    ) -> None:
        self._sites = sites
        self._emit = emit
        self._abort = abort
        self._round_timeout = round_timeout
        self._ready: set[str] = set()
        self._dismissed = False
        self._selector = selectors.DefaultSelector()
        self._selector.register(abort, selectors.EVENT_READ)
        for site in sites.values():
            self._selector.register(site.control, selectors.EVENT_READ, site)

    def send(self, name: str, message: ToSite) -> None:
        """Send a message to a site."""
        # What a site said before it died is still to be read, and tells why; then comes the end of
        # its channel. So a death is noticed where sites are listened to, and only there.
        with suppress(ChannelClosedError):
            self._sites[name].control.send(message)

    def await_ready(self, cohort: Sequence[str]) -> None:
        """Wait until the scripts of a cohort have called ``init()``.

        So the seconds of a first round are those of its work, not of its sites' imports.

        Raises:
            SimulationError: a site failed, died, or did not get there in time; it is named.
            AbortedError: the run is being stopped.
        """
        deadline = time.monotonic() + self._round_timeout
        while missing := [name for name in cohort if name not in self._ready]:
            speaking = self._speaking(REPORT_SECONDS)
            for site in speaking:
                self._listen(site, 0)
            if not speaking:
                self._check_time(deadline, missing, "call init()")

    def await_report(self, builder: MessageChannel[BuildReport]) -> BuildReport:
        """Wait for the process that builds the initial model, and listen to the sites meanwhile.

        Raises:
            SimulationError: a site failed or died.
            StreamingError: the builder did.
            AbortedError: the run is being stopped.
        """
        self._selector.register(builder, selectors.EVENT_READ)
        try:
            while True:
                for site in self._speaking(None):
                    self._listen(site, 0)
                if builder.has_input():
                    return builder.receive(PATIENCE, self._abort)
        finally:
            self._selector.unregister(builder)

    def gather(
        self,
        answer_type: type[AnswerT],
        cohort: Sequence[str],
        round_number: int,
        kind: TaskKind,
        report: Callable[[], None],
    ) -> tuple[dict[str, AnswerT], float, int]:
        """Wait until every site of a cohort has answered its task.

        Args:
            answer_type: what answers it.
            cohort: the sites that were asked.
            round_number: of the task.
            kind: of the task.
            report: called now and then while waiting.

        Returns:
            The answers in the order of the cohort, the ``time.monotonic()`` at which the last site
            had received the model, and the repairs that took.

        Raises:
            SimulationError: a site failed, died, or did not answer in time; it is named.
            AbortedError: the run is being stopped.
        """
        answers: dict[str, AnswerT] = {}
        received_at, retries = time.monotonic(), 0
        deadline = received_at + self._round_timeout
        while len(answers) < len(cohort):
            speaking = self._speaking(REPORT_SECONDS)
            for site in speaking:
                message = self._listen(site, round_number)
                if isinstance(message, Received):
                    received_at, retries = time.monotonic(), retries + message.retries
                    self._emit(SiteState(round=round_number, site=site.name, state=_AT_WORK[kind]))
                elif isinstance(message, answer_type):
                    if site.name not in cohort or message.round != round_number:
                        reason = f"it answered round {message.round}, which it was not asked for"
                        raise self._failed(site.name, round_number, reason)
                    answers[site.name] = message
                    self._note_answer(site.name, message)
            # What has arrived is heard before anyone is called late: this process may itself have
            # been held up, as it is while its launcher is suspended.
            if not speaking:
                silent = [name for name in cohort if name not in answers]
                self._check_time(deadline, silent, f"answer round {round_number}'s {kind} task")
            report()
        return {name: answers[name] for name in cohort}, received_at, retries

    def say_goodbye(self, seconds: float) -> None:
        """Tell every site that the run is over, and wait until their scripts have ended.

        Sites that take longer than ``seconds`` are left to the launcher. The model is final by
        now, so a script that fails after its last task does not fail the run.
        """
        self._dismissed = True
        deadline = time.monotonic() + seconds
        living = [site for site in self._sites.values() if not site.ended]
        for site in living:
            self.send(site.name, Stop())
        while not all(site.ended for site in living) and time.monotonic() < deadline:
            for site in self._speaking(REPORT_SECONDS):
                with suppress(SimulationError):  # its event has been written
                    self._listen(site, 0)

    def _note_answer(self, name: str, message: Trained | Evaluation) -> None:
        if isinstance(message, Trained):
            self._emit(
                SiteUpdate(
                    round=message.round,
                    site=name,
                    weight=message.weight,
                    metrics=message.metrics,
                )
            )
        self._emit(SiteState(round=message.round, site=name, state="ready"))

    def _speaking(self, seconds: float | None) -> list[Site]:
        ready = self._selector.select(seconds)
        if self._abort.is_set():
            raise AbortedError("the run was stopped")
        return [key.data for key, _ in ready if isinstance(key.data, Site)]

    def _listen(self, site: Site, round_number: int) -> FromSite:
        """Take one message of a site, and deal with those that can come at any time."""
        try:
            message = site.control.receive(PATIENCE, self._abort)
        except AbortedError:
            raise
        except FlstreamError as error:
            site.ended = True
            self._selector.unregister(site.control)
            raise self._failed(site.name, round_number, str(error)) from error
        match message:
            case Ready(pid, idle_rss):
                self._ready.add(site.name)
                self._emit(ProcessReady(process=site.name, pid=pid, idle_rss=idle_rss))
            case Logged(number, key, value):
                self._emit(SiteLog(round=number, site=site.name, key=key, value=value))
            case Failed(reason):
                raise self._failed(site.name, round_number, reason)
            case Goodbye(peak_rss):
                site.ended = True
                self._selector.unregister(site.control)
                self._emit(ProcessEnded(process=site.name, peak_rss=peak_rss))
                if not self._dismissed:
                    reason = "its script ended before the run did; loop while is_running() is true"
                    raise self._failed(site.name, round_number, reason)
        return message

    def _check_time(self, deadline: float, late: Sequence[str], task: str) -> None:
        if time.monotonic() > deadline:
            raise SimulationError(
                f"{', '.join(late)} did not {task} within {self._round_timeout:g} s "
                "(clients.round_timeout); their logs are sites/<name>/log.txt"
            )

    def _failed(self, name: str, round_number: int, reason: str) -> SimulationError:
        self._emit(SiteFailed(round=round_number, site=name, reason=reason))
        return SimulationError(f"{name}: {reason}; its log is sites/{name}/log.txt")
