"""Warnings of what a workflow sends for training code to use, and no code reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from flstream.job.bodies import CONTROL, DITTO_LAMBDA, FEDDYN_ALPHA, PERSONAL, PROXIMAL_MU
from flstream.job.stage import Stage
from flstream.worker.messages import SiteAnswer
from flstream.worker.meta import OPTIMIZER_PARAMS, sent_names

_READERS = {
    PERSONAL: "flare.personal(net)",
    DITTO_LAMBDA: "flare.own_model(net), with flare.proximal_term(net) in it,",
    PROXIMAL_MU: "flare.proximal_term(net), or the patch of a trainer,",
    FEDDYN_ALPHA: "flare.DynamicRegulariser(net)",
    CONTROL: "flare.ScaffoldControl(net, model)",
    OPTIMIZER_PARAMS: "model.optimizer_params",
}


class SentValues:
    """Names of what the workflows of a run have sent to sites that have answered.

    Whether code reads a value is judged by the first training that it was sent with.
    """

    def __init__(self) -> None:
        self._known: set[str] = set()

    def unread(self, stage: Stage, number: int, answers: Iterable[SiteAnswer]) -> list[str]:
        """Return a warning for each value that is new, and that no site's code has read."""
        by_site = [set(answer.unread) for answer in answers]
        names = set.intersection(*by_site) - self._known if by_site else set[str]()
        return [_warning(stage, number, name) for name in sorted(names)]

    def note(self, meta: bytes, bodies: Sequence[str]) -> None:
        """Note the values and bodies of a training that sites have answered."""
        self._known.update(sent_names(meta), bodies)


def _warning(stage: Stage, number: int, name: str) -> str:
    reader = _READERS.get(name, f"model.meta[{name!r}]")
    argument = f" (workflow.args.{name})" if name in stage.args.model_dump() else ""
    return (
        f"the workflow {stage.name} sends {name}{argument}, and no training code had read it by "
        f"the end of its first task, in round {number}, so it has no effect; {reader} reads it"
    )
