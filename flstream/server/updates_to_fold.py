"""The updates of one fold, by training and site."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from flstream.aggregation.fold_rule import FoldRule
from flstream.errors import WorkflowError
from flstream.job.bodies import MAIN
from flstream.server.program_view import Model, Update, Updates
from flstream.text import brief_names

if TYPE_CHECKING:
    from flstream.server.training import SiteTraining


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
