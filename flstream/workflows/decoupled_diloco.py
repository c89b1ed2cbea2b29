"""Decoupled DiLoCo: outer steps that wait for no learner in particular (arXiv:2604.21428)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from flstream.job.bodies import INNER_STEPS, KEEPS_MOMENTS
from flstream.job.fields import Count, Real, Whole, in_unit
from flstream.job.problems import Problem, given_clause
from flstream.units import format_seconds_exact, parse_seconds
from flstream.workflows import FoldRule, Model, Run, Update, WorkflowArgs, nesterov, workflow

if TYPE_CHECKING:
    from flstream.job import ClientsSection


class DecoupledDiLoCoArgs(WorkflowArgs):
    """Arguments of decoupled_diloco. A round is an outer step; each site is a learner."""

    quorum: Count | None = None
    """How many learners an outer step waits for; null is half of them, all is synchronous."""

    grace: Annotated[
        float,
        Field(ge=0, le=1e10),
        *in_unit(parse_seconds, format_seconds_exact, "a duration, such as 2 s"),
    ] = 0.0
    """How long it waits for further learners after the quorum (duration), by `time.clock`."""

    inner_steps: Annotated[Whole, Field(ge=1)] = 30
    """Inner steps of a learner between two exchanges (H), for scripts with `outer_steps`."""

    learning_rate: Annotated[Real, Field(gt=0)] = 0.7
    """Learning rate of the outer optimizer, which is SGD with Nesterov momentum."""

    momentum: Annotated[Real, Field(ge=0, lt=1)] = 0.9
    """Its momentum."""

    weights: Literal["examples", "equal"] = "examples"
    """Weights of the learners in the outer gradient: their examples, such as tokens, or equal."""

    def check_clients(self, clients: ClientsSection) -> Iterator[Problem]:
        """Yield the problem of a quorum of more learners than there are."""
        if self.quorum is not None and self.quorum > clients.count:
            allowed = f"at most clients.count, which is {clients.count}"
            yield Problem("quorum", given_clause(self.quorum), allowed)


@workflow("decoupled_diloco", DecoupledDiLoCoArgs)
def decoupled_diloco(run: Run, args: DecoupledDiLoCoArgs) -> Model:
    """Step along what a quorum of learners has learned, while the others train on.

    An update counts by its difference from the model that its learner received.
    """
    model = run.initial_model()
    outer = nesterov(args.learning_rate, args.momentum)
    rule = FoldRule(1.0 if args.weights == "equal" else None, normalise=True, base="own")
    for _ in run.rounds():
        model = run.fold(model, _quorum(run, args, model), rule, step=outer)
        run.evaluate(model)
    return model


def _quorum(run: Run, args: DecoupledDiLoCoArgs, model: Model) -> list[Update]:
    """Keep learners training until enough have answered; return updates in the order of sites."""
    order = {site: place for place, site in enumerate(run.all_sites)}
    quorum = args.quorum or -(-len(order) // 2)
    meta = {INNER_STEPS: args.inner_steps, KEEPS_MOMENTS: True}
    updates: list[Update] = []
    ready: set[str] = set()  # learners that have answered, and wait for the next model
    last: Update | None = None  # the answer that completed the quorum
    while True:
        for site in run.idle:
            if site not in ready:
                run.start(site, model, meta=meta)
        if last is not None and not run.in_flight:
            break
        # Without a quorum, the wait ends once a learner has come back, too, which starts then.
        answer = run.next(max_wait=math.inf if last is None else args.grace, since=last)
        if answer is None and last is not None:
            break
        if answer is not None and answer.ok:
            updates.append(answer)
            if answer.base.version == model.version:
                ready.add(answer.site)
            if last is None and len({update.site for update in updates}) >= quorum:
                last = answer
    return sorted(updates, key=lambda update: order[update.site])
