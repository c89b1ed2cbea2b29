"""Trainings of a workflow: their tasks, results and updates, and the updates of one fold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from flstream.aggregation.fold_rule import FoldRule
from flstream.aggregation.update import CollectedUpdate
from flstream.errors import WorkflowError
from flstream.job.bodies import MAIN
from flstream.model.selection import ModelParts
from flstream.runs.results import TrainResult
from flstream.server.collector import ResultCollector
from flstream.server.program_view import Model, Update, Updates
from flstream.text import brief_names
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
        collected: Updates at hand, by site.
        result: What came of it; None before its sites have trained.
        is_folded: Whether its updates were folded as they came, so that none is left.
        is_started: Whether one site was started: its answer is synced with the next effect alone.
        is_asked: Whether sites may answer without tensors, where their answers are read first.
        wait: How long its updates have waited; None where they have not.
        parts: The tensors that its sites are sent and send back; None for the whole model.
        late_model: The model of which the sites are sent tensors while they train; None before it
            is made, or where they are sent none.
        whole: The sites that are sent the whole model, since they lack what the others have; None
            before that is known.
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
    collected: dict[str, CollectedUpdate] = field(default_factory=dict)
    result: TrainResult | None = None
    is_folded: bool = False
    is_started: bool = False
    is_asked: bool = False
    wait: UpdateWait | None = None
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
        return not self.is_asked or self.is_folded or site in {*self.collected, *result.updates}

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


@dataclass(frozen=True)
class UpdatesToFold:
    """Updates that become part of one model.

    Attributes:
        trainings: The trainings that they came of, in the order in which they were given.
        chosen: The updates, one by one, in that order; None where a training was passed unread, and
            all of its updates are meant.
        rules: How the workflow has them combined, by name of the body; none for the job's way.
    """

    trainings: Sequence[SiteTraining]
    chosen: Sequence[tuple[SiteTraining, str]] | None
    rules: Mapping[str, FoldRule] = field(default_factory=dict)

    @classmethod
    def of(cls, updates: Sequence[Update], method: str = "fold") -> UpdatesToFold:
        """Check the updates that a workflow passes to ``run.fold``, and return them."""
        # Whether it was read follows from the program, so it is the same on replay.
        if isinstance(updates, Updates) and not updates.is_read:
            _check_is_there(updates.training, method)
            return cls([updates.training], None)
        chosen = []
        for update in updates:
            if not isinstance(update, Update):
                raise WorkflowError(
                    f"run.{method}() was given a {type(update).__name__} among its updates; "
                    "give it what run.train() returned, or some of it"
                )
            if not update.ok:
                raise WorkflowError(
                    f"run.{method}() was given the answer of {update.site}, which failed and has "
                    f"no update: {update.failure}; leave out those that are not ok"
                )
            if not update.has_tensors:
                raise WorkflowError(
                    f"run.{method}() was given the answer of {update.site}, which has sent no "
                    "tensors; leave out those without has_tensors"
                )
            _check_is_there(update.training, method)
            chosen.append((update.training, update.site))
        if not chosen:
            raise WorkflowError(
                "run.fold() was given no update; skip the fold where nobody has trained"
            )
        if len(set(chosen)) < len(chosen):
            twice = next(site for training, site in chosen if chosen.count((training, site)) > 1)
            raise WorkflowError(
                f"run.{method}() was given an update of {twice} twice; give it each one once"
            )
        return cls(list(dict.fromkeys(training for training, _ in chosen)), chosen)

    def under(self, rules: Mapping[str, FoldRule]) -> UpdatesToFold:
        """The same updates under rules of the workflow."""
        if self.chosen is None:
            if any(isinstance(rule.weights, Sequence) for rule in rules.values()):
                raise WorkflowError(
                    "run.fold() was given a list of weights for updates that were not read, of "
                    "which there may be fewer; give it list(updates), or one number for all"
                )
            return replace(self, rules=rules)
        for rule in rules.values():
            rule.check_count(len(self.chosen))
        return replace(self, rules=rules)

    @property
    def unread(self) -> SiteTraining | None:
        """The training that was passed unread, and is done as a part of the fold; None if none."""
        return self.trainings[0] if self.chosen is None else None

    @property
    def members(self) -> Sequence[tuple[SiteTraining, str]]:
        """The updates, one by one, in order; all trainings are done."""
        if self.chosen is not None:
            return self.chosen
        (training,) = self.trainings
        assert training.result is not None
        return [(training, site) for site in training.result.sites]

    def answers(self, refused: Container[str]) -> list[tuple[str, float, Mapping[str, float]]]:
        """Site, weight and metrics of each update, in order, but for those of refused sites."""
        known = {
            (training.number, answer[0]): answer[:3]
            for training in self.trainings
            for answer in training.settled().answers()
        }
        members = [(training.number, site) for training, site in self.members]
        return [known[member] for member in members if member[1] not in refused]

    @property
    def arguments(self) -> list[object]:
        """Identity of the updates in the arguments of an effect."""
        if self.chosen is None:
            return [training.arguments for training in self.trainings]
        return [[training.number, site] for training, site in self.chosen]

    @property
    def request(self) -> str:
        """The updates in words."""
        if self.chosen is None:
            return ", ".join(training.request for training in self.trainings)
        numbers = ", ".join(str(training.number) for training in self.trainings)
        return f"updates of {brief_names([site for _, site in self.chosen])} of effect {numbers}"

    @property
    def used(self) -> list[tuple[int, list[str]]]:
        """The updates as pairs of a training's number and its sites."""
        used: dict[int, list[str]] = {}
        for training, site in self.members:
            used.setdefault(training.number, []).append(site)
        return list(used.items())

    def check_base(self, model: Model) -> None:
        """Refuse updates that were trained from another model, but where each has its own base."""
        if MAIN in self.rules and self.rules[MAIN].base in ("own", "model"):
            return
        for training in self.trainings:
            base = training.trained_from
            if base.version != model.version:
                raise WorkflowError(
                    f"run.fold() was given model {model.version} (round {model.round}), and "
                    f"updates of model {base.version} (round {base.round}); "
                    "fold them into the model that they were trained from, or by a "
                    'FoldRule(base="own")'
                )

    @property
    def twice(self) -> str | None:
        """A site of which there are several updates; None where each has one."""
        counts = Counter(site for _, site in self.chosen or ())
        return next((site for site, count in counts.items() if count > 1), None)

    def trainings_of(self, site: str) -> Sequence[SiteTraining]:
        """The trainings that a site's updates came of."""
        if self.chosen is None:
            return self.trainings
        return [training for training, owner in self.chosen if owner == site]


def _check_is_there(training: SiteTraining, method: str) -> None:
    """Refuse updates that were folded as they came: none is left."""
    if training.is_folded:
        raise WorkflowError(
            f"run.{method}() was given updates of round {training.round} that were folded as they "
            "came, of which none is left; read them first, such as by list(updates), to fold them "
            "more than once"
        )
