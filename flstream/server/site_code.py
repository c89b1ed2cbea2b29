"""Questions and reads of sites' code, by which models are scored and warnings given."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

from flstream.job.bodies import (
    CONTROL,
    DITTO_LAMBDA,
    FEDDYN_ALPHA,
    KEEPS_MOMENTS,
    PERSONAL,
    PROXIMAL_MU,
    RESIDUAL,
)
from flstream.job.stage import Stage
from flstream.worker.messages import EVALUATE, SUBMIT_MODEL, SiteAnswer
from flstream.worker.meta import OPTIMIZER_PARAMS, sent_names

ScoreSource = Literal["auto", "task", "received"]
"""``task``: sites are asked to evaluate a model. ``received``: metrics that come with an update
score the model that the site had received. ``auto``: as their code shows by what it asks."""


class SiteCode:
    """Kinds of task that sites' code asked about in their first tasks, and the values it was sent.

    They follow from the records of effects, so they are the same when a run is replayed. Sites
    that ask whether a task is an evaluation are sent evaluations, and score models by them. Where
    no site asks, the metrics of its update score the model that a site had received. Whether code
    reads a value is judged by the first training that it was sent with.

    Attributes:
        source: What scores the models of the current workflow.
    """

    def __init__(self) -> None:
        self.source: ScoreSource = "auto"
        self._by_site: dict[str, Collection[str]] = {}
        self._evaluating = 0  # of these, how many ask about evaluations
        self._warned: set[str] = set()
        # Names of what was sent to sites that have answered. What reads the moments' reads the
        # inner steps, too, of which there is a warning.
        self._known = {KEEPS_MOMENTS}

    def first_kinds(self, answers: Iterable[SiteAnswer]) -> dict[str, list[str]]:
        """Return the kinds by site, for the sites whose first answers these are."""
        return {answer.site: answer.asks for answer in answers if answer.site not in self._by_site}

    def record(self, recorded: Mapping[str, Sequence[str]]) -> None:
        """Take the kinds by site from the record of an effect; a site's first one counts."""
        for site, kinds in recorded.items():
            if site not in self._by_site:
                self._by_site[site] = kinds
                self._evaluating += EVALUATE in kinds

    def take_late(self, answers: Iterable[SiteAnswer]) -> list[str]:
        """Return the sites that ask about evaluations now, and not in their first tasks, once."""
        asking = [answer.site for answer in answers if EVALUATE in answer.asks]
        late = [site for site in asking if not self._may_evaluate(site)]
        new = [site for site in late if self.source == "auto" and site not in self._warned]
        self._warned.update(new)
        return new

    @property
    def is_received(self) -> bool:
        """Whether the metrics of updates score the models that sites had received."""
        if self.source != "auto":
            return self.source == "received"
        return bool(self._by_site) and not self._evaluating

    def evaluators(self, sites: Iterable[str]) -> list[str]:
        """Return the sites to send an evaluation; none where the metrics of updates are scores."""
        if self.is_received:
            return []
        return [site for site in sites if self.source == "task" or self._may_evaluate(site)]

    def submitters(self, sites: Iterable[str]) -> list[str]:
        """Return the sites that may know of the task to submit a model: they tell tasks apart."""
        return [site for site in sites if self._by_site.get(site, (SUBMIT_MODEL,))]

    def unread(self, stage: Stage, number: int, answers: Sequence[SiteAnswer]) -> list[str]:
        """Return a warning for each value that is new, and that no site's code has read."""
        if not answers or not all(answer.unread for answer in answers):
            return []
        names = set.intersection(*(set(answer.unread) for answer in answers)) - self._known
        return [_warning(stage, number, name) for name in sorted(names)]

    def note_sent(self, meta: bytes, bodies: Sequence[str]) -> None:
        """Note the values and bodies of a training that sites have answered."""
        self._known.update(sent_names(meta), bodies)

    def _may_evaluate(self, site: str) -> bool:
        return EVALUATE in self._by_site.get(site, (EVALUATE,))


_READERS = {
    PERSONAL: "flare.personal(net)",
    DITTO_LAMBDA: "flare.own_model(net), with flare.proximal_term(net) in it,",
    PROXIMAL_MU: "flare.proximal_term(net), or the patch of a trainer,",
    FEDDYN_ALPHA: "flare.DynamicRegulariser(net)",
    RESIDUAL: "flare.base_model()",
    CONTROL: "flare.ScaffoldControl(net, model)",
    OPTIMIZER_PARAMS: "model.optimizer_params",
}


def _warning(stage: Stage, number: int, name: str) -> str:
    reader = _READERS.get(name, f"model.meta[{name!r}]")
    argument = f" (workflow.args.{name})" if name in stage.args.model_dump() else ""
    return (
        f"the workflow {stage.name} sends {name}{argument}, and no training code had read it by "
        f"the end of its first task, in round {number}, so it has no effect; {reader} reads it"
    )
