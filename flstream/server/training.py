"""Trainings that a workflow has asked for: their tasks, what came of them, and their updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import msgspec

from flstream.runs.state_versions import StateVersion
from flstream.server.collected_updates import CollectedUpdate
from flstream.server.collector import ResultCollector
from flstream.server.program_view import Model, Update
from flstream.telemetry.events import Transfer
from flstream.worker.messages import SiteAnswer, SiteTask

if TYPE_CHECKING:
    from flstream.server.training_effects import TrainingEffects


class TaskCost(NamedTuple):
    """What a task cost.

    Where workers do several sites, seconds are what a worker has spent on average.

    Attributes:
        download: Seconds until the last site had the model.
        work: Seconds from then until the last answer.
        fetch: Seconds of fetching updates, where they are fetched at once.
        down: Transfers of the model to the sites.
    """

    download: float = 0.0
    work: float = 0.0
    fetch: float = 0.0
    down: Transfer = Transfer()


class UpdateRecord(NamedTuple):
    """What the journal says of the file of an update that waits to be folded.

    Attributes:
        digest: Digest of its body, as it was sent.
        params_type: Whether it has the weights or their difference from the model.
        partial: Whether it may lack tensors of the model.
        cost: Cost of fetching it.
    """

    digest: str
    params_type: Literal["FULL", "DIFF"]
    partial: bool
    cost: Transfer


class TrainResult(NamedTuple):
    """What came of a training, as the journal keeps it.

    Attributes:
        answers: By site, in the cohort's order: its weight, metrics and payload message of meta.
        states: Versions of the state that sites have left, where they have left any.
        failures: By site, the reason why it has no update.
        late: Those of them that were merely not waited for.
        cost: What it cost.
        bases: Versions of the state that sites began with, where they had any.
        asks: Kinds of task that their code asked about, of sites that answered for the first time.
        files: By site, what is known of its update's file, of updates that wait in files to be
            folded by a later effect.
    """

    answers: Mapping[str, tuple[float, Mapping[str, float], bytes]]
    states: Mapping[str, StateVersion]
    failures: Mapping[str, str]
    late: Sequence[str]
    cost: TaskCost
    bases: Mapping[str, StateVersion] = {}
    asks: Mapping[str, Sequence[str]] = {}
    files: Mapping[str, UpdateRecord] = {}

    @classmethod
    def of(
        cls,
        answers: Mapping[str, SiteAnswer],
        failures: Mapping[str, str],
        late: Sequence[str],
        cost: TaskCost,
        tasks: Mapping[str, SiteTask],
        asks: Mapping[str, Sequence[str]],
    ) -> TrainResult:
        """The result of a task that is over."""
        return cls(
            {each.site: (each.weight, each.metrics, each.meta) for each in answers.values()},
            {each.site: each.state for each in answers.values() if each.state is not None},
            dict(failures),
            list(late),
            cost,
            {site: task.state for site, task in tasks.items() if task.state is not None},
            asks,
        )

    def plain(self) -> dict[str, Any]:
        """The result as the journal's encoding takes it: a column for each of its parts."""
        columns = list(zip(*self.answers.values(), strict=True)) or [(), (), ()]
        messages = {meta: place for place, meta in enumerate(dict.fromkeys(columns[2]))}
        return {
            "sites": list(self.answers),
            "weights": list(columns[0]),
            "metrics": list(columns[1]),
            "meta": [messages[meta] for meta in columns[2]],  # mostly the same from all sites
            "messages": list(messages),
            "states": _plain_states(self.states),
            "bases": _plain_states(self.bases),
            "failures": dict(self.failures),
            "late": list(self.late),
            "cost": plain_cost(self.cost),
            "asks": dict(self.asks),
            "files": {
                site: [*record[:-1], plain_transfer(record.cost)]
                for site, record in self.files.items()
            },
        }

    @classmethod
    def from_plain(cls, plain: Mapping[str, Any]) -> TrainResult:
        """The result that was encoded."""
        messages = plain["messages"]
        rows = zip(plain["sites"], plain["weights"], plain["metrics"], plain["meta"], strict=True)
        return cls(
            {site: (weight, metrics, messages[meta]) for site, weight, metrics, meta in rows},
            _states_from_plain(plain["states"]),
            plain["failures"],
            plain["late"],
            cost_from_plain(plain["cost"]),
            _states_from_plain(plain["bases"]),
            plain["asks"],
            {
                site: UpdateRecord(digest, kind, partial, Transfer(*cost))
                for site, (digest, kind, partial, cost) in plain["files"].items()
            },
        )


def _plain_states(states: Mapping[str, StateVersion]) -> dict[str, list[Any]]:
    return {site: [each.effect, each.digest] for site, each in states.items()}


def _states_from_plain(plain: Mapping[str, Sequence[Any]]) -> dict[str, StateVersion]:
    return {site: StateVersion(*state) for site, state in plain.items()}


def plain_cost(cost: TaskCost) -> list[Any]:
    """A cost as the journal's encoding takes it."""
    return [cost.download, cost.work, cost.fetch, plain_transfer(cost.down)]


def cost_from_plain(plain: Sequence[Any]) -> TaskCost:
    """The cost that was encoded."""
    download, work, fetch, down = plain
    return TaskCost(download, work, fetch, Transfer(*down))


def plain_transfer(transfer: Transfer) -> list[float]:
    """A transfer as the journal's encoding takes it."""
    return list(msgspec.structs.astuple(transfer))


@dataclass
class UpdateWait:
    """The waiting of a training's updates in files.

    Attributes:
        training: Number of its effect.
        since: Round in which they came.
        until: Last round in which one was folded; 0 before.
    """

    training: int
    since: int
    until: int = 0


@dataclass(eq=False)
class SiteTraining:
    """A task that a workflow has asked for with ``run.train``.

    It is done once its updates are read, as an effect of its own, or folded, as a part of the fold.

    Attributes:
        effects: Does it once its updates are read.
        arguments: All that decides what comes of it, as an effect's arguments.
        request: Description of the request, for messages.
        round: Round in which it was asked for.
        line: Line of the workflow's file that asked for it; None where that is not known.
        base: The model that the sites start from.
        tasks: Each site's own part, in the cohort's order.
        collector: Takes the sites' results, and knows how many have to come.
        seconds: How long a site may take.
        meta: Payload message of the values sent along.
        number: Number of the effect that did it; 0 before.
        oldest: Number of the earliest effect that the run may go back to.
        bodies: Updates at hand, by site.
        result: What came of it; None before its sites have trained.
        is_folded: Whether its updates were folded as they came, so that none is left.
        wait: How long its updates have waited in files; None where they have not.
        at: Sites of which one folds its updates; none for the server, or where nobody knows yet.
    """

    effects: TrainingEffects
    arguments: Mapping[str, Any]
    request: str
    round: int
    line: int | None
    base: Model
    tasks: Mapping[str, SiteTask]
    collector: ResultCollector[CollectedUpdate | None]
    seconds: float
    meta: bytes
    number: int = 0
    oldest: int = 0
    bodies: dict[str, CollectedUpdate] = field(default_factory=dict)
    result: TrainResult | None = None
    is_folded: bool = False
    wait: UpdateWait | None = None
    at: Sequence[str] = ()

    @property
    def is_done(self) -> bool:
        """Whether its sites have trained."""
        return self.result is not None

    def settled(self) -> TrainResult:
        """The result; the sites train now if they have not."""
        if self.result is None:
            self.effects.do(self)
        assert self.result is not None
        return self.result

    def updates(self) -> Sequence[Update]:
        """The updates, in the cohort's order; the sites train now if they have not."""
        # Each refers to this object, which does not keep them: a model's file stays as long as one
        # of them refers to it, and not until a collector comes.
        return [
            Update(site, weight, metrics, self.base, self, meta)
            for site, (weight, metrics, meta) in self.settled().answers.items()
        ]

    def failures(self) -> Mapping[str, str]:
        """Why each site that has no update has none; the sites train now if they have not."""
        return self.settled().failures
