"""DiLoCo (Douillard et al. 2023, arXiv:2311.08105), streaming and overlapped (arXiv:2501.18512)."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, model_validator

from flstream.job.bodies import INNER_STEPS, LATE_ALPHA, LATE_STEP
from flstream.job.fields import Real, Whole
from flstream.job.problems import Problem, RefusedValueError
from flstream.workflows import FoldRule, Model, Run, Update, WorkflowArgs, nesterov, workflow


class DiLoCoArgs(WorkflowArgs):
    """Arguments of diloco. A round is a segment: the inner steps between two exchanges."""

    inner_steps: Annotated[Whole, Field(ge=1)] = 30
    """Inner steps after which each tensor is exchanged (H), for scripts with `outer_steps`."""

    learning_rate: Annotated[Real, Field(gt=0)] = 0.7
    """Learning rate of the outer optimizer, which is SGD with Nesterov momentum."""

    momentum: Annotated[Real, Field(ge=0, lt=1)] = 0.9
    """Its momentum. With learning_rate = 1 and momentum = 0 the aggregate is the next model."""

    fragments: Annotated[Whole, Field(ge=1)] = 1
    """Parts of nearly equal bytes, of whole layers, that are exchanged in turn (P)."""

    order: Literal["strided", "in_order"] = "strided"
    """Layers of a fragment: every P-th one, or some that follow each other."""

    overlap: Annotated[Whole, Field(ge=0)] = 0
    """Inner steps that sites go on for while a fragment travels (tau); 0: they wait for it."""

    alpha: Annotated[Real, Field(ge=0, le=1)] = 0.5
    """Share of a site's own values that stays when a fragment comes late."""

    weights: Literal["examples", "equal"] = "examples"
    """Weights of the sites in the outer gradient; the paper's are equal."""

    @model_validator(mode="after")
    def _fits_a_segment(self) -> Self:
        segment = self.inner_steps // self.fragments
        for key, value, most in (
            ("fragments", self.fragments, self.inner_steps),
            ("overlap", self.overlap, segment),
        ):
            if value > most:
                allowed = f"at most {most}, the inner steps of a segment (inner_steps / fragments)"
                raise RefusedValueError(Problem(key, str(value), allowed))
        return self

    def meta(self, segment: int, *, is_late: bool) -> dict[str, Any]:
        """Return what sites are told of a segment, by its number from 0."""
        place, steps = segment % self.fragments, self.inner_steps
        meta: dict[str, Any] = {
            INNER_STEPS: (place + 1) * steps // self.fragments - place * steps // self.fragments
        }
        return {**meta, LATE_STEP: self.overlap, LATE_ALPHA: self.alpha} if is_late else meta


@workflow("diloco", DiLoCoArgs)
def diloco(run: Run, args: DiLoCoArgs) -> Model:
    """Step along the mean of what sites have learned in many inner steps of their own.

    Algorithm 1 of DiLoCo; with fragments and overlap, algorithm 2 of Streaming DiLoCo.
    """
    model, fragments = run.initial_model(), run.partition(args.fragments, args.order)
    outer = nesterov(args.learning_rate, args.momentum)  # OuterOpt of equation 2
    rule = None if args.weights == "examples" else FoldRule(1.0, normalise=True)
    receive = None
    for segment, number in enumerate(run.rounds()):
        fragment, following = (fragments[(segment + n) % args.fragments] for n in (0, 1))
        if not args.overlap:
            # A single fragment is the whole model, which passes filters, too.
            send = [fragment] if args.fragments > 1 else None
            meta = args.meta(segment, is_late=False)
            updates = run.train(model, run.sample(number), receive=receive, send=send, meta=meta)
            model = run.fold(model, updates, rule, step=outer)
            receive = send
        else:
            if segment == 0:
                for site in run.sample(number):
                    run.start(site, model, send=[fragment], meta=args.meta(0, is_late=False))
            answers = _answers(run)
            # The next segment begins before this one's fragment is folded, and blends it in at
            # its step tau (equation 3).
            meta = args.meta(segment + 1, is_late=True)
            for site in run.sample(number + 1):
                run.start(site, model, receive=[], send=[following], late=[fragment], meta=meta)
            model = run.fold(model, answers, rule, step=outer)
        run.evaluate(model)
    return model


def _answers(run: Run) -> list[Update]:
    """Wait for the sites in flight, and return their updates in the order of the sites."""
    order, spare = run.all_sites, len(run.in_flight) - run.min_updates
    updates: list[Update] = []
    for _ in run.in_flight:
        answer = run.next(may_fail=spare > 0)
        spare -= not answer.ok
        updates += [answer] if answer.ok else []
    return sorted(updates, key=lambda update: order.index(update.site))
