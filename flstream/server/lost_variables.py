"""Warnings where a script that keeps variables from round to round has lost them."""

from __future__ import annotations

from collections.abc import Sequence

from flstream.job import Job
from flstream.job.kept_variables import kept_variables
from flstream.server.context import Emit
from flstream.server.sampling import brief_names
from flstream.telemetry.events import (
    SERVER,
    AnyEvent,
    ProcessReady,
    RoundStarted,
    RunResumed,
    Warned,
)


def watch_variables(job: Job, emit: Emit, *, is_resumed: bool) -> Emit:
    """Have events of a run followed by warnings of variables that its script has lost.

    What a script needs from task to task belongs into ``get_state_dir()``. One that keeps it in
    variables has it as long as its process lives.

    Args:
        job: The job.
        emit: Takes the events.
        is_resumed: Whether the run goes on after effects that an earlier server has had.
    """
    clients, script = job.clients, job.train.script
    kept = kept_variables(script) if script is not None else []
    if script is None or not kept:
        return emit
    if clients.workers == clients.count:
        return _ProcessWatch(script.name, kept, emit, is_resumed)
    processes = "1 process" if clients.workers == 1 else f"{clients.workers} processes"
    message = (
        f"{script.name} is run anew for each task, since {clients.count} sites share {processes}, "
        f"and it keeps {', '.join(kept)} from round to round; set clients.parallel = "
        f"{clients.count}"
    )
    emit(Warned(message=message))
    return emit


class _ProcessWatch:
    """Passes events on, and warns of sites whose process is not the one that they began with."""

    def __init__(self, script: str, kept: Sequence[str], emit: Emit, is_resumed: bool) -> None:
        self._script = script
        self._kept = ", ".join(kept)
        self._emit = emit
        self._has_trained = is_resumed
        self._round: int | None = None
        self._known: set[str] = set()
        # New ones that no round has asked for yet.
        self._new: list[str] = []

    def __call__(self, *events: AnyEvent) -> None:
        """Take events, in order."""
        self._emit(*events)
        for event in events:
            match event:
                case ProcessReady(process=name) if name != SERVER:
                    self._ready(name)
                case RoundStarted():
                    self._has_trained, self._round = True, event.round
                    self._warn(event.round)
                case RunResumed(effect=0):
                    self._has_trained, self._round = False, None
                    self._known.clear()

    def _ready(self, name: str) -> None:
        if self._has_trained and (name in self._known or self._round is None):
            self._new.append(name)
        self._known.add(name)
        if self._round is not None:
            self._warn(self._round)

    def _warn(self, number: int) -> None:
        if not self._new:
            return
        names, self._new = sorted(self._new), []
        have = "has a new process" if len(names) == 1 else "have new processes"
        message = (
            f"{brief_names(names)} {have} in round {number}, so variables that {self._script} "
            f"keeps from round to round are those of its beginning: {self._kept}"
        )
        self._emit(Warned(message=message))
