"""Trainings of a workflow: their tasks, results and updates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from flstream.model.selection import ModelParts
from flstream.runs.results import TrainResult
from flstream.server.collected_updates import CollectedUpdate
from flstream.server.collector import ResultCollector
from flstream.server.program_view import Model, Update
from flstream.worker.messages import SiteTask

if TYPE_CHECKING:
    from flstream.job.time_section import RoundEnd
    from flstream.server.simulated_clock import SiteClock
    from flstream.server.training_effects import TrainingEffects


# Seconds on the wall after which a site counts as lost whose time is simulated.
_MOST_REAL_SECONDS = 3600.0


@dataclass
class UpdateWait:
    """The waiting of a training's updates until they are folded.

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
        least: Number of updates that it needs.
        end: When it stops waiting for further sites; None to wait for all.
        seconds: How long a site may take.
        meta: Payload message of the values sent along.
        own_meta: By site, such a message in its place, where each site is sent its own.
        number: Number of the effect that did it; 0 before.
        oldest: Number of the earliest effect that the run may go back to.
        bodies: Updates at hand, by site.
        result: What came of it; None before its sites have trained.
        is_folded: Whether its updates were folded as they came, so that none is left.
        is_started: Whether one site was started: its answer is synced with the next effect alone.
        is_asked: Whether sites may answer without tensors, where their answers are read first.
        wait: How long its updates have waited; None where they have not.
        at: Sites of which one folds its updates; none for the server, or where nobody knows yet.
        parts: The tensors that its sites are sent and send back; None for the whole model.
        late_model: The model of which the sites are sent tensors while they train; None before it
            is made, or where they are sent none.
        whole: The sites that are sent the whole model, since they lack what the others have; None
            before that is known.
        combines: Whether its fold combines groups of whole tensors.
        clocks: Simulated clocks of its sites, by name; none on the wall clock.
        began: When it began by the virtual clock; 0 on the wall clock.
        taken_at: When its result was taken, by the machine's monotonic clock, in seconds.
    """

    effects: TrainingEffects
    arguments: Mapping[str, Any]
    request: str
    round: int
    line: int | None
    base: Model
    tasks: Mapping[str, SiteTask]
    least: int
    end: RoundEnd | None
    seconds: float
    meta: bytes
    number: int = 0
    oldest: int = 0
    bodies: dict[str, CollectedUpdate] = field(default_factory=dict)
    result: TrainResult | None = None
    is_folded: bool = False
    is_started: bool = False
    is_asked: bool = False
    wait: UpdateWait | None = None
    at: Sequence[str] = ()
    combines: bool = False
    parts: ModelParts | None = None
    late_model: Model | None = None
    whole: frozenset[str] | None = None
    own_meta: Mapping[str, bytes] = field(default_factory=dict)
    clocks: Mapping[str, SiteClock] = field(default_factory=dict)
    began: int = 0
    taken_at: float = 0.0

    @property
    def trained_from(self) -> Model:
        """The newest model of which the sites were sent tensors."""
        return self.base if self.late_model is None else self.late_model

    @property
    def real_seconds(self) -> float:
        """Seconds on the wall that a site may take: more where its time is simulated."""
        return max(self.seconds, _MOST_REAL_SECONDS) if self.clocks else self.seconds

    @property
    def is_waiting(self) -> bool:
        """Whether the sites are to be sent tensors of a model that is not made yet."""
        return self.parts is not None and self.parts.late is not None and self.late_model is None

    def collector(self) -> ResultCollector:
        """Return a new collector of its sites' answers."""
        return ResultCollector(f"train round {self.round}", list(self.tasks), self.least, self.end)

    def check_left(self, refused: Mapping[str, str]) -> None:
        """Check that enough updates are left without those that turned out to be of no use.

        Args:
            refused: Reasons of these, by site.

        Raises:
            SimulationError: There are not; the message names each site that has none, and why.
        """
        collector, result = self.collector(), self.settled()
        collector.failures = dict(result.failures)
        collector.spare(self.tasks.keys() - result.failures.keys() - set(result.sites))
        for site in self.tasks:
            if site in refused:
                collector.fail(site, refused[site])

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

    def has_tensors(self, site: str) -> bool:
        """Return whether a site that has answered has sent tensors."""
        result = self.settled()
        kept = self.bodies.keys() | result.files.keys() | result.small.keys()
        return not self.is_asked or self.is_folded or site in kept

    def updates(self) -> Sequence[Update]:
        """The updates, in the cohort's order; the sites train now if they have not."""
        # Each refers to this object, which does not keep them: a model's file stays as long as one
        # of them refers to it, and not until a collector comes.
        result, base = self.settled(), self.trained_from
        return [
            Update(site, weight, metrics, base, self, meta)
            for site, weight, metrics, meta in result.answers()
        ]

    def failures(self) -> Mapping[str, str]:
        """Reason of each site without an update; the sites train now if they have not."""
        return self.settled().failures
