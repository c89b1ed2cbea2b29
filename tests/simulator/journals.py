"""What a run would write into its journal, without the run."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from flstream.job import Job, render_job
from flstream.model.checkpoint import write_checkpoint
from flstream.model.digests import body_digest
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource
from flstream.simulator.files.run_directory import RunDirectory
from flstream.simulator.files.summary import Summary
from flstream.telemetry.event_log import EventLog
from flstream.telemetry.events import (
    SERVER,
    AnyEvent,
    Evaluated,
    ModelReady,
    ProcessEnded,
    ProcessReady,
    RoundFinished,
    RoundStarted,
    RunFinished,
    RunStarted,
    SiteState,
    Transfer,
    Warned,
)

SITES = ["site-1", "site-2"]
LAYOUT = Layout.of([("w", "F32", (40,)), ("b", "F32", (3,))])


def model(number: int) -> BufferSource:
    """The model of a round."""
    return BufferSource(LAYOUT, memoryview(bytes([number]) * LAYOUT.nbytes))


def state(number: int) -> BufferSource:
    """What the server's optimizer remembers after it."""
    return model(100 + number)


DIGESTS = {number: body_digest(model(number)) for number in range(9)}
STATES = {number: body_digest(state(number)) for number in range(1, 9)}


def a_job(rounds: int = 3, every: int = 1, **overrides: Any) -> Job:
    """A job that names this file as its script: it is never run."""
    values = {
        "name": "job",
        "rounds": rounds,
        "workflow": {"args": {"evaluate_every": every}},
        "clients": {"count": 2},
        "model": {"factory": "json:loads"},
        "train": {"script": str(Path(__file__).resolve())},
    }
    return Job.model_validate({**values, **overrides})


class Script:
    """The events of a run: the same for every run of the same job, but for times.

    Args:
        rounds: of the job.
        every: rounds between evaluations; 0 is never.
        digests: of the models; made up where it has none.
        states: digests of what the server's optimizer remembers, if there is one.
    """

    def __init__(
        self,
        rounds: int,
        every: int,
        digests: dict[int, str] | None = None,
        states: dict[int, str] | None = None,
    ) -> None:
        self.rounds = rounds
        self._every = every
        self._digests = digests or {}
        self._states = states or {}
        self._warned = False

    def events(self) -> Iterator[AnyEvent]:
        """A run that is not interrupted."""
        return self.events_from(None, evaluated=False)

    def events_from(self, number: int | None, evaluated: bool) -> Iterator[AnyEvent]:
        """What a run does that goes on from a round's model, evaluated or not."""
        self._warned = False
        started = self.started()
        # The model is not built again where it is there.
        yield from started if number is None else started[:-1]
        if number and not evaluated:
            yield from self.evaluation(number)
        for each in range((number or 0) + 1, self.rounds + 1):
            yield from self.round(each)
        yield ProcessEnded(process=SERVER, peak_rss=1)
        yield RunFinished(status="finished")

    def started(self) -> list[AnyEvent]:
        """Until the initial model is there."""
        return [
            ProcessReady(process=SERVER, pid=1, idle_rss=1),
            RunStarted(
                job="job", seed=0, rounds=self.rounds, clients=2, mode="push", chunk_size=16
            ),
            ModelReady(bytes=160, tensors=2, digest=self.digest(0)),
        ]

    def opened(self, number: int) -> list[AnyEvent]:
        """A round until it is folded."""
        states = [SiteState(round=number, site=site, state="training") for site in SITES]
        return [RoundStarted(round=number, sites=SITES), *states]

    def round(self, number: int) -> list[AnyEvent]:
        """A round, and its evaluation where one is due."""
        cost = Transfer(number, 2, 3, number % 2, 0.5)
        finished = RoundFinished(
            round=number,
            digest=self.digest(number),
            download=number / 8,
            train=1.0,
            upload_and_fold=2.0,
            checkpoint=3.0,
            weights=dict.fromkeys(SITES, 1.0),
            metrics={"loss": 1 / number} if number != 2 else {},
            down=cost,
            up=cost,
            optimizer_state=self._states.get(number, ""),
        )
        noted = [Warned(message=f"round {number} was odd")] if number % 3 == 2 else []
        return [*self.opened(number), *noted, finished, *self.evaluation(number)]

    def evaluation(self, number: int) -> list[AnyEvent]:
        """An evaluation where one is due, with a warning that each server gives once."""
        if self._every == 0 or (number % self._every and number != self.rounds):
            return []
        # Up and down, with a tie for the best, and once not a number.
        metrics = {"accuracy": None if number == 3 else float(number * 5 % 7 // 2)}
        evaluated = Evaluated(round=number, metrics=metrics, seconds=0.25, down=Transfer(7, 1, 1))
        if self._warned:
            return [evaluated]
        self._warned = True
        return [Warned(message="the sites train when they are asked to evaluate"), evaluated]

    def digest(self, number: int) -> str:
        """Of the model that a round ends with."""
        return self._digests.get(number, f"digest-{number}")


def results(summary: Summary) -> dict[str, Any]:
    """What an interruption must not change in a summary."""
    document = msgspec.to_builtins(summary)
    return {key: document[key] for key in document if key not in ("memory", "wall_seconds")}


def a_run(
    folder: Path, rounds: int = 3, completed: int = 3, every: int = 1, optimizer: bool = False
) -> RunDirectory:
    """A run that was killed after its last completed round, whose evaluation it had done."""
    run = RunDirectory.create("job", folder)
    run.write(run.job_file, render_job(a_job(rounds, every)))
    script = Script(rounds, every, DIGESTS, STATES if optimizer else None)
    with EventLog(run.events) as log:
        for event in script.started():
            log.write(event)
        for number in range(1, completed + 1):
            for event in script.round(number):
                log.write(event)
    for number in range(completed + 1):
        write_checkpoint(run.checkpoint(number), model(number))
        if optimizer and number:
            write_checkpoint(run.optimizer_state(number), state(number))
    return run


def flip(path: Path) -> None:
    """Damage a file's last byte."""
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        (value,) = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([value ^ 1]))
