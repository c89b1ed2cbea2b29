"""The face of a run that a workflow is written against."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from flstream.errors import WorkflowError
from flstream.server.program_view import BestModel, Model, Update, Updates
from flstream.server.task_waits import TaskWaits

if TYPE_CHECKING:
    from flstream.job.workflow_args import WorkflowArgs
    from flstream.runs.stopping import EarlyStopping
    from flstream.server.federation import Federation

__all__ = ["BestModel", "Model", "Run", "Update", "Updates"]

SiteOrder = Literal["fixed", "random", "random_without_same_in_a_row"]
_ORDERS = ("fixed", "random", "random_without_same_in_a_row")


class Run:
    """A run, as its workflow sees it.

    A workflow is an ordinary function of a run. Each call that does something (an effect:
    :meth:`train`, :meth:`fold`, :meth:`adopt`, :meth:`evaluate`) is numbered and journaled. When
    the run is resumed, the workflow is replayed from its beginning, and the effects that the
    journal knows return what they returned before. So a workflow decides by what effects return,
    and draws from :meth:`random`; the clock and the environment may differ on replay.

    Attributes:
        ended_early: Why there are fewer rounds than the job has; None while there are not.
    """

    def __init__(
        self,
        federation: Federation,
        args: WorkflowArgs,
        stopping: EarlyStopping,
        start: int,
        is_last_stage: bool,
    ) -> None:
        self._federation = federation
        self._args = args
        self._stopping = stopping
        self._start = start
        self._is_last_stage = is_last_stage
        self._last_round = federation.round + federation.context.job.rounds
        self._generators: dict[str, random.Random] = {}
        self._last_ordered: str | None = None
        self._is_counting = False
        self.ended_early: str | None = None

    @property
    def all_sites(self) -> list[str]:
        """The names of all sites of the job, in their fixed order."""
        return list(self._federation.context.job.clients.site_names)

    @property
    def sites(self) -> list[str]:
        """The names of the sites that are still asked, in their fixed order.

        Sites that failed too often in a row (``clients.bench_after``) are not among them.
        """
        return self._federation.sites

    @property
    def best(self) -> BestModel | None:
        """The best evaluation so far by the key metric; None before there is one."""
        found = self._federation.best
        return None if found is None else BestModel(found.round, found.value)

    def initial_model(self) -> Model:
        """The model to begin with: that of the job, or the one that the stage before returned."""
        return self._federation.model(self._start)

    def rounds(self) -> Iterator[int]:
        """The numbers of the rounds to do, from 1; a later stage goes on from the one before.

        It ends after ``rounds``, or once an evaluation meets ``stop_when`` or runs out of
        ``patience``.

        Raises:
            WorkflowError: It was called in a loop over itself.
        """
        if self._is_counting:
            raise WorkflowError(
                "run.rounds() was called in a loop over run.rounds(), and there is one count of "
                "rounds; loop over range() inside of it"
            )
        federation = self._federation
        self._is_counting = True
        try:
            while federation.round < self._last_round:
                if self._stopping.reason is not None:
                    self.ended_early = self._stopping.reason
                    return
                # What is done after the last round belongs to it: so a round ends when the next
                # one begins.
                federation.begin_round()
                yield federation.round
        finally:
            self._is_counting = False

    def sample(self, number: int) -> list[str]:
        """Sites drawn for a round without replacement, ``clients.per_round`` of them.

        Args:
            number: Number of the round; the draw follows from it, the seed and :attr:`sites`.

        Raises:
            SimulationError: Fewer sites are left than have to send an update.
        """
        return self._federation.sample(number)

    def order(self, number: int, order: SiteOrder | Sequence[str]) -> list[str]:
        """The sites in the order in which a round visits them.

        Args:
            number: Number of the round, by which random orders are drawn.
            order: ``"fixed"``; ``"random"``; ``"random_without_same_in_a_row"``, in which the last
                site of a round is not the first of the next; or the sites' names.

        Raises:
            WorkflowError: The order is none of these, or names a site that the job does not have.
        """
        sites = self.sites
        if not isinstance(order, str):
            self._federation.check_sites("order", order)
            found = [site for site in order if site in set(sites)]
        elif order == "fixed":
            found = sites
        elif order in _ORDERS:
            generator = random.Random(f"flstream/order/{self._federation.seed}/{number}")
            found = generator.sample(sites, len(sites))
            repeats = found[:1] == [self._last_ordered] and len(found) > 1
            if order == "random_without_same_in_a_row" and repeats:
                found.insert(generator.randrange(1, len(found)), found.pop(0))
        else:
            raise WorkflowError(
                f"run.order() knows {', '.join(_ORDERS)} and lists of sites, and not {order!r}"
            )
        self._last_ordered = found[-1] if found else None
        return found

    def random(self, name: str) -> random.Random:
        """A generator of random numbers that follow from the job's seed; the same one each time.

        Args:
            name: What it is for; generators of different names have nothing in common.
        """
        self._federation.check_name("random", name)
        generator = self._generators.get(name)
        if generator is None:
            stage = self._federation.stage
            text = f"flstream/workflow/{self._federation.seed}/{stage}/{name}"
            generator = self._generators[name] = random.Random(text)
        return generator

    def train(
        self,
        model: Model,
        sites: Sequence[str],
        min_updates: int | None = None,
        timeout: float | None = None,
        *,
        meta: Mapping[str, Any] | None = None,
        optimizer_params: Mapping[str, Any] | None = None,
    ) -> Updates:
        """Have sites train a model; they begin once the updates are read or folded.

        Args:
            model: What they start from.
            sites: Who trains, in the order in which updates are folded. Sites that are asked no
                more are left out.
            min_updates: How many of them have to send an update, at most as many as there are; None
                takes ``clients.min_updates``.
            timeout: Seconds that a site may take; None takes ``clients.round_timeout``.
            meta: Plain values by name that each site finds in its model's ``meta``.
            optimizer_params: The same, for its model's ``optimizer_params``.

        Raises:
            WorkflowError: A name is none of the job's sites, or there is none.
        """
        return self._federation.train(
            model, sites, min_updates, timeout, meta=meta, optimizer_params=optimizer_params
        )

    def fold(
        self, model: Model, updates: Sequence[Update], *, at: Sequence[str] | None = None
    ) -> Model:
        """Fold updates into the next model: the job's aggregation, then its server optimizer.

        The model is durable when this returns, and the updates are settled.

        Args:
            model: The model that all of them were trained from.
            updates: What :meth:`train` returned, or some of it, of one or several calls.
            at: Sites, in whose order one is chosen to fold: the first that lives, fed by the
                others. The server then reads no tensor of what was passed unread. None folds in the
                server's process. The bits are the same.

        Raises:
            WorkflowError: There are no updates, or one was trained from another model; or ``at``
                names no site.
        """
        return self._federation.fold(model, updates, at)

    def limit_waiting(self, *, start: float | None = None, progress: float | None = None) -> None:
        """Set how long sites may be silent in the tasks and folds of this workflow, from now on.

        It decides no bits, so it is no effect.

        Args:
            start: Seconds in which a site has to acknowledge a task; then it counts as lost. None
                is as long as the task may take.
            progress: Seconds after which the run fails if nothing came of a task or a fold; None is
                without limit.
        """
        self._federation.limit_waiting(TaskWaits(start, progress))

    def adopt(self, updates: Sequence[Update]) -> Model:
        """Make the update of one site the next model, as it is.

        Neither ``aggregation.method`` nor the server optimizer is applied. Tensors that the update
        does not have keep the values of the model that it was trained from.

        Raises:
            WorkflowError: There is not exactly one update.
        """
        return self._federation.adopt(updates)

    def evaluate(self, model: Model) -> dict[str, float] | None:
        """Have all sites score a model, if its round is due for it.

        It is due every ``workflow.args.evaluate_every`` rounds, and after the last one. None is
        due where the metrics that sites send with their updates score the model that they had
        received (``workflow.args.evaluate``): the fold of these updates is what scores it then.

        Returns:
            The mean of each metric, weighted by the sites' own weights; None where none is due.
        """
        self._federation.check_model("evaluate", model)
        every = self._args.evaluate_every
        if not every or not model.round or self._federation.score_source == "received":
            return None
        is_regular = model.round % every == 0
        is_last = self._is_last_stage and model.round == self._last_round
        if not (is_regular or is_last):
            return None
        return self._federation.evaluate(model, is_provisional=not is_regular)

    def log(self, key: str, value: float) -> None:
        """Record a number in the run's events, with the current round.

        Args:
            key: What it is.
            value: The number.
        """
        self._federation.log(key, value)
