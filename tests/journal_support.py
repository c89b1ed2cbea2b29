"""Events of a run's journal, without the run."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from flstream.job import Job
from flstream.model.checkpoint import write_checkpoint
from flstream.model.digests import body_digest
from flstream.model.layout import Layout
from flstream.model.memory import BufferSource
from flstream.runs.model_files import OPTIMIZER, body_file
from flstream.runs.results import FoldResult, StateVersion, TaskCost, TrainResult
from flstream.runs.run_directory import RunDirectory
from flstream.runs.summary import Summary
from flstream.telemetry.event_log import EventLog
from flstream.telemetry.events import (
    SERVER,
    AnyEvent,
    EffectDone,
    Evaluated,
    ModelReady,
    ModelRecord,
    ModelWritten,
    ProcessEnded,
    ProcessReady,
    RoundFinished,
    RoundStarted,
    RunFinished,
    RunStarted,
    SitePhaseChanged,
    Transfer,
    Warned,
)
from flstream.telemetry.exact import encode_record

SITES = ["site-1", "site-2"]
WARNING = "the sites train when they are asked to evaluate"
LAYOUT = Layout.of([("w", "F32", (40,)), ("b", "F32", (3,))])


def model(number: int) -> BufferSource:
    """The model of a round."""
    return BufferSource(LAYOUT, memoryview(bytes([number]) * LAYOUT.nbytes))


def state(number: int) -> BufferSource:
    """State of the server's optimizer after a round."""
    return model(100 + number)


def optimizer_state(run: RunDirectory, number: int) -> Path:
    """File of the optimizer's state beside the last model of a round."""
    return body_file(run.checkpoint(number), OPTIMIZER)


DIGESTS = {number: body_digest(model(number)) for number in range(9)}
STATES = {number: body_digest(state(number)) for number in range(1, 9)}


def a_job(rounds: int = 3, every: int = 1, **overrides: Any) -> Job:
    """A job whose script is never run, and imports no other file that would be looked through."""
    values = {
        "name": "job",
        "rounds": rounds,
        "workflow": {"args": {"evaluate_every": every}},
        "clients": {"count": 2},
        "model": {"factory": "json:loads"},
        "train": {"script": str(Path(__file__).resolve().with_name("common_imports.py"))},
    }
    return Job.model_validate({**values, **overrides})


def record(effect: int, name: str, number: int, result: Any, **more: Any) -> EffectDone:
    """The record of an effect of a round."""
    return EffectDone(
        effect=effect,
        name=name,
        round=number,
        request=f"{name} in round {number}",
        arguments="a" * 32,
        result=encode_record(result),
        **more,
    )


def train_record(
    effect: int,
    number: int,
    states: Mapping[str, StateVersion] | None = None,
    sites: list[str] = SITES,
) -> EffectDone:
    """The record of a training whose updates were read."""
    count = len(sites)
    columns = (sites, [1.0] * count, [{"loss": 1 / number}] * count, [b""], [0] * count)
    result = TrainResult(*columns, TaskCost(), states or {})
    return record(effect, "train", number, result)


def fold_record(
    effect: int,
    model: ModelRecord,
    trained: int,
    sites: list[str] = SITES,
    refused: Mapping[str, str] | None = None,
) -> EffectDone:
    """The record of a fold of a training's updates, those of refused sites among them."""
    refused = refused or {}
    weights = {site: 1.0 for site in sites if site not in refused}
    result = FoldResult(weights, {"loss": 1.0}, refused, 1.0, 2.0, Transfer(), [(trained, sites)])
    return record(effect, "fold", model.round, result, model=model)


def folded(number: int) -> EffectDone:
    """Record of a run that only folds: an effect's number is its round's."""
    model = ModelRecord(number, number, 0, f"digest {number}")
    return record(number, "fold", number, None, model=model)


def run_started(**facts: Any) -> RunStarted:
    """The event of a job of two sites, with other facts where they are given."""
    job = {"job": "job", "seed": 0, "rounds": 3, "clients": 2, "mode": "pull", "chunk_size": 16}
    metric = {"key_metric": "accuracy", "key_metric_mode": "max"}
    return RunStarted(**job | metric | facts)


def round_finished(number: int, **facts: Any) -> RoundFinished:
    """The end of a round of ten seconds, with other facts where they are given."""
    seconds = {"download": 1.0, "train": 2.0, "upload_and_fold": 3.0, "checkpoint": 4.0}
    moved = {"down": Transfer(10, 1, 1), "up": Transfer(20, 1, 1)}
    others = {"digest": f"digest {number}", "weights": {"site-1": 1.0}, "metrics": {"loss": 0.5}}
    return RoundFinished(round=number, **seconds | moved | others | facts)


def evaluated(number: int, accuracy: float | None, **facts: Any) -> Evaluated:
    """The event of a model's evaluation, with other facts where they are given."""
    usual = {"metrics": {"accuracy": accuracy}, "seconds": 0.25, "down": Transfer(7, 1, 1)}
    return Evaluated(round=number, **usual | {"version": number} | facts)


class EffectScript:
    """The events of a run of FedAvg: the same for every run of the same job, but for times.

    Args:
        rounds: Rounds of the job.
        every: Rounds between evaluations; 0 is never.
        digests: Digests of the models; made up where it has none.
        states: Digests of what the server's optimizer remembers, if there is one.
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

    def events(self) -> Iterator[AnyEvent]:
        """A run that is not interrupted."""
        yield from self.started()
        is_warned = False
        for number in range(1, self.rounds + 1):
            for event in self.round(number):
                if isinstance(event, Evaluated) and not is_warned:
                    is_warned = True
                    yield Warned(message=WARNING)
                yield event
        yield ProcessEnded(process=SERVER, peak_rss=1)
        yield RunFinished(status="finished")

    def started(self) -> list[AnyEvent]:
        """Until the initial model is there."""
        return [
            ProcessReady(process=SERVER, pid=1, idle_rss=1),
            run_started(rounds=self.rounds),
            ModelReady(bytes=160, tensors=2, digest=self.digest(0)),
        ]

    def opened(self, number: int) -> list[AnyEvent]:
        """A round until its sites train."""
        states = [SitePhaseChanged(round=number, site=site, state="training") for site in SITES]
        return [RoundStarted(round=number, sites=SITES), *states]

    def finished(self, number: int) -> RoundFinished:
        """The end of a round."""
        cost = Transfer(number, 2, 3, number % 2, 0.5)
        return round_finished(
            number,
            digest=self.digest(number),
            weights=dict.fromkeys(SITES, 1.0),
            metrics={"loss": 1 / number} if number != 2 else {},
            down=cost,
            up=cost,
            optimizer_state=self._states.get(number, ""),
        )

    def evaluated(self, number: int) -> Evaluated | None:
        """Event of a round's evaluation; None where none is due."""
        if self._every == 0 or (number % self._every and number != self.rounds):
            return None
        # Up and down, with a tie for the best, and once not a number.
        return evaluated(number, None if number == 3 else float(number * 5 % 7 // 2))

    def evaluation(self, number: int) -> list[AnyEvent]:
        """An evaluation where one is due, if only as the round is the last."""
        evaluated = self.evaluated(number)
        if evaluated is None:
            return []
        result = {"metrics": dict(evaluated.metrics), "failures": {}}
        effect, is_provisional = self.first_effect(number) + 2, number % self._every > 0
        done = record(effect, "evaluate", number, result, is_provisional=is_provisional)
        return [evaluated, done]

    def round(self, number: int) -> list[AnyEvent]:
        """A round, with its evaluation where one is due."""
        train = self.first_effect(number)
        states = self._states
        model = ModelRecord(number, number, 0, self.digest(number), states.get(number, ""))
        return [
            *self.opened(number),
            *([Warned(message=f"round {number} was odd")] if number % 3 == 2 else []),
            train_record(train, number),
            ModelWritten(round=number, step=0),
            fold_record(train + 1, model, train),
            *self.evaluation(number),
            self.finished(number),
        ]

    def first_effect(self, number: int) -> int:
        """Number of the first effect of a round, which is its training."""
        before = number - 1
        return 1 + 2 * before + (before // self._every if self._every else 0)

    def last_effect(self, number: int) -> int:
        """Number of the last effect of a round; that of a longer run is the same."""
        return self.first_effect(number + 1) - 1

    def digest(self, number: int) -> str:
        """Digest of the model that a round ends with."""
        return self._digests.get(number, f"digest-{number}")


def results(summary: Summary) -> dict[str, Any]:
    """Contents of a summary that an interruption must not change."""
    document = msgspec.to_builtins(summary)
    return {key: document[key] for key in document if key not in ("memory", "wall_seconds")}


def a_run(
    folder: Path, rounds: int = 3, completed: int = 3, every: int = 1, optimizer: bool = False
) -> RunDirectory:
    """A run that was killed after its last completed round, whose evaluation it had done.

    It has no job.conf, which would take longer to read than all else: a resume then takes the job.
    """
    script = EffectScript(rounds, every, DIGESTS, STATES if optimizer else None)
    run = RunDirectory.create("job", folder)
    with EventLog(run.events) as log:
        for event in script.started():
            log.write(event)
        for number in range(1, completed + 1):
            for event in script.round(number):
                log.write(event)
    for number in range(completed + 1):
        write_checkpoint(run.checkpoint(number), model(number))
        if optimizer and number:
            write_checkpoint(optimizer_state(run, number), state(number))
    return run


def flip(path: Path) -> None:
    """Damage a file's last byte."""
    with path.open("r+b") as file:
        file.seek(-1, os.SEEK_END)
        (value,) = file.read(1)
        file.seek(-1, os.SEEK_END)
        file.write(bytes([value ^ 1]))
