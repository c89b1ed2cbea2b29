"""The face of a run that a workflow is written against."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload

from flstream.aggregation.fold_rule import (
    CombinesGroups,
    CombineTensor,
    FoldRule,
    GroupUpdate,
    ServerStep,
    TensorGroup,
)
from flstream.errors import WorkflowError
from flstream.model.selection import PART_ORDERS, Part, PartOrder
from flstream.server.arguments import check_bodies, check_model, check_name, parts_of
from flstream.server.collector import ResultCollector, TaskWaits
from flstream.server.effects import uncatchable
from flstream.server.program_view import (
    Model,
    SiteModel,
    SiteModels,
    SiteScores,
    Update,
    Updates,
)
from flstream.server.sampling import sample_sites
from flstream.telemetry.events import SiteLog

if TYPE_CHECKING:
    from flstream.engines.child_process import ChildProcess
    from flstream.job.stage import WorkflowArgs
    from flstream.runs.best import BestEvaluation
    from flstream.server.run_state import RunState
    from flstream.server.stored_model import ShapesOf

__all__ = [
    "FoldRule",
    "GroupUpdate",
    "Model",
    "Run",
    "SiteModel",
    "SiteModels",
    "SiteScores",
    "TensorGroup",
    "Update",
    "Updates",
]

SiteOrder = Literal["fixed", "random", "random_without_same_in_a_row"]
_ORDERS = ("fixed", "random", "random_without_same_in_a_row")
# Bytes that a run remembers for a workflow at most, at a time.
_MOST_REMEMBERED = 1 << 20


class Run:
    """A run, as its workflow sees it.

    A workflow is an ordinary function of a run. Each call that does something (an effect:
    :meth:`train`, :meth:`fold`, :meth:`adopt`, :meth:`evaluate`) is numbered and journaled. When
    the run is resumed, the workflow is replayed from its beginning, and the effects that the
    journal knows return what they returned before. So a workflow decides by what effects return,
    and draws from :meth:`random`; the clock and the environment may differ on replay.

    Attributes:
        ended_early: Why there are fewer rounds than the job has; None while there are not.
        has_sampled: Whether the workflow has drawn sites by the sampler.
    """

    def __init__(
        self,
        state: RunState,
        args: WorkflowArgs,
        start: int,
        is_last_stage: bool,
    ) -> None:
        self._state = state
        self._args = args
        self._start = start
        self._is_last_stage = is_last_stage
        self._last_round = self._state.round + self._state.context.job.rounds
        self._generators: dict[str, random.Random] = {}
        self._last_ordered: str | None = None
        self._is_counting = False
        self.ended_early: str | None = None
        self.has_sampled = False

    @property
    def all_sites(self) -> list[str]:
        """The names of all sites of the job, in their fixed order."""
        return list(self._state.context.job.clients.site_names)

    @property
    def sites(self) -> list[str]:
        """The names of the sites that are still asked, in their fixed order.

        Sites that failed too often in a row (``clients.suspend_after``) are not among them.
        """
        return self._state.sites

    @property
    def idle(self) -> Sequence[str]:
        """Sites of :attr:`sites` without a training in flight, in an order that answers decide.

        It changes as the workflow starts trainings and takes answers. On the virtual clock, where
        nothing is in flight and nobody is there, time goes on until somebody is.
        """
        state = self._state
        if state.clock is not None and not state.fleet.idle and not state.in_flight:
            state.clock.wait_for(1)
        return state.fleet.idle

    @property
    def in_flight(self) -> Sequence[str]:
        """Sites with a training in flight, whose answer :meth:`next` has yet to return."""
        return self._state.fleet.in_flight

    @property
    def cohort_size(self) -> int:
        """How many sites a round needs, or train at a time: ``clients.per_round``, or all."""
        return self._state.context.job.clients.cohort_size

    @property
    def best(self) -> BestEvaluation | None:
        """The best evaluation so far by the key metric; None before there is one."""
        return self._state.scoring.best

    @property
    def best_model(self) -> Model | None:
        """The model of the best evaluation so far; None before there is one."""
        version = self._state.scoring.best_version
        return None if version is None else self._state.store.handle(version)

    @uncatchable
    def initial_model(self, /, **bodies: Literal["zeros"] | ShapesOf) -> Model:
        """The model to begin with: that of the job, or the one that the stage before returned.

        Args:
            bodies: Bodies that it is to have beside it, by name, such as ``control="zeros"`` for
                SCAFFOLD's control variates: a number for each float of the model. Sites find their
                tensors in ``meta[name]`` of the model that they train, and send what is to be
                folded in ``meta[name]`` of their answers. Each model made of it has them, too. A
                function of the shapes of the model's tensors, by name, that returns shapes by other
                names makes a body of the server's own: float32 zeros of these shapes, which sites
                receive and do not send, and which ``run.fold(tensors=...)`` changes.

        Raises:
            WorkflowError: A body has another value than these, or a name that no file of the run
                may have.
        """
        check_bodies(self._state.context.job, bodies)
        return self._state.store.begin(self._start, bodies)

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
        state = self._state
        self._is_counting = True
        try:
            while state.round < self._last_round:
                if state.stopping.reason is not None:
                    self.ended_early = state.stopping.reason
                    return
                # What is done after the last round belongs to it: so a round ends when the next
                # one begins.
                state.begin_round()
                yield state.round
        finally:
            state.hold_models()
            self._is_counting = False

    def sample(self, number: int) -> list[str]:
        """Sites that ``clients.sampler`` chooses for a round, ``clients.per_round`` of them.

        Args:
            number: Number of the round; the choice follows from it, the seed, :attr:`sites` and,
                unless the sampler is ``uniform``, the answers of trainings up to now.

        Raises:
            SimulationError: Fewer sites are left than have to send an update.
            WorkflowError: A sampler of the user's own failed or returned other than so many of
                :attr:`sites`; or the sampler needs a loss, and no site has reported one.
        """
        state, job = self._state, self._state.context.job
        self.has_sampled = True
        count = job.sample_size
        least = job.stragglers.least(job.clients, count)
        if state.clock is not None:
            state.clock.wait_for(least)
        if state.private is not None:
            drawn = state.private.sample(state.sites, number)
            least = min(least, len(drawn))
        elif state.site_history is not None:
            from flstream.server.samplers import sampled

            history = state.site_history.before(number)
            drawn = sampled(job.clients.sampler, state.sites, count, history)
        else:
            drawn = sample_sites(state.sites, count, job.seed, number)
        ResultCollector(f"train round {number}", drawn, least).check_size()
        return drawn

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
            self._state.check_sites("order", order)
            names = [site for site in order if site in set(sites)]
        elif order == "fixed":
            names = sites
        elif order in _ORDERS:
            generator = random.Random(f"flstream/order/{self._state.context.job.seed}/{number}")
            names = generator.sample(sites, len(sites))
            repeats = names[:1] == [self._last_ordered] and len(names) > 1
            if order == "random_without_same_in_a_row" and repeats:
                names.insert(generator.randrange(1, len(names)), names.pop(0))
        else:
            raise WorkflowError(
                f"run.order() knows {', '.join(_ORDERS)} and lists of sites, and not {order!r}"
            )
        self._last_ordered = names[-1] if names else None
        return names

    @uncatchable
    def random(self, name: str) -> random.Random:
        """A generator of random numbers that follow from the job's seed; the same one each time.

        Args:
            name: What it is for; generators of different names have nothing in common.
        """
        check_name("random", name)
        generator = self._generators.get(name)
        if generator is None:
            stage, seed = self._state.stage, self._state.context.job.seed
            text = f"flstream/workflow/{seed}/{stage}/{name}"
            generator = self._generators[name] = random.Random(text)
        return generator

    @property
    def min_updates(self) -> int:
        """How many sites of a round have to send an update: ``clients.min_updates``, or all."""
        job = self._state.context.job
        return job.stragglers.least(job.clients, job.sample_size)

    def partition(self, count: int, order: PartOrder = "strided") -> list[Part]:
        """The model's tensors in parts of nearly equal bytes, for :meth:`train`.

        A layer, such as ``blocks.3``, is never divided; embeddings and heads are layers, too.

        Args:
            count: Number of parts.
            order: ``"strided"``: layer after layer goes to the next part, so that each has shallow
                and deep ones; ``"in_order"``: each part has layers that follow each other.

        Raises:
            WorkflowError: The count is no whole number above 0, or the order is another one. A
                model of fewer layers than parts is refused where a part is used.
        """
        if not isinstance(count, int) or isinstance(count, bool) or count < 1:
            raise WorkflowError(
                f"run.partition() was given {count!r} as its count; give it a number of parts"
            )
        if order not in PART_ORDERS:
            raise WorkflowError(
                f"run.partition() knows the orders {' and '.join(PART_ORDERS)}, and not {order!r}"
            )
        return [Part(index, count, order) for index in range(count)]

    @uncatchable
    def train(
        self,
        model: Model,
        sites: Sequence[str],
        min_updates: int | None = None,
        timeout: float | None = None,
        *,
        receive: Sequence[str | Part] | None = None,
        send: Sequence[str | Part] | None = None,
        meta: Mapping[str, Any] | None = None,
        optimizer_params: Mapping[str, Any] | None = None,
    ) -> Updates:
        """Train a model at sites, which begin once the updates are read or folded.

        Sites may be sent a part of the model's tensors, and send back another part: the rest stays
        at the site, in its state. A fold leaves tensors as they are that nobody has sent. A site
        that has no part in the last training (it is new, was left out, or failed) receives the
        whole model, and begins with an empty state.

        Args:
            model: What they start from.
            sites: Who trains, in the order in which updates are folded. Sites that are asked no
                more are left out.
            min_updates: How many of them have to send an update, at most as many as there are; None
                takes ``clients.min_updates``.
            timeout: Seconds that a site may take; None takes ``clients.round_timeout``.
            receive: The tensors that sites are sent: regular expressions that match whole names,
                and parts of :meth:`partition`; an empty list for none, None for all.
            send: The tensors that they send back, in the same form; None for all.
            meta: Plain values by name that each site finds in its model's ``meta``.
            optimizer_params: The same, for its model's ``optimizer_params``.

        Raises:
            WorkflowError: A name is none of the job's sites, or there is none; or a pattern matches
                no tensor, once the sites train.
        """
        return self._state.trainings.ask(
            model,
            sites,
            min_updates,
            timeout,
            parts_of("train", receive, send),
            meta=meta,
            optimizer_params=optimizer_params,
        )

    @uncatchable
    def start(
        self,
        site: str,
        model: Model,
        timeout: float | None = None,
        *,
        receive: Sequence[str | Part] | None = None,
        send: Sequence[str | Part] | None = None,
        late: Sequence[str | Part] | None = None,
        meta: Mapping[str, Any] | None = None,
        optimizer_params: Mapping[str, Any] | None = None,
    ) -> None:
        """Start a training at one site, and go on at once; :meth:`next` returns its answer.

        Answers come in whatever order sites are done. That order is journaled: a run that is
        resumed takes them in the same order, repeats the trainings that were in flight, and goes
        on by arrival. A training that is in flight when the workflow returns is cancelled. What
        sites do for other methods waits until they have answered.

        Args:
            site: Name of the site, one of :attr:`idle`.
            model: What it starts from.
            timeout: Seconds that it may take; None takes ``clients.round_timeout``.
            receive: The tensors that it is sent, as for :meth:`train`.
            send: The tensors that it sends back, likewise.
            late: The tensors that it is sent while it trains: those of the model that the next
                :meth:`fold` makes. Its update is compared with them. Training code that uses
                ``flare.outer_steps`` takes them at a step that the workflow names.
            meta: Plain values by name that it finds in its model's ``meta``.
            optimizer_params: The same, for its model's ``optimizer_params``.

        Raises:
            WorkflowError: The name is none of the job's sites, or the site is not idle.
        """
        parts = parts_of("start", receive, send, late)
        self._state.trainings.start(site, model, timeout, parts, meta, optimizer_params)

    @overload
    def next(self, /, *, may_fail: bool = True) -> Update: ...

    @overload
    def next(
        self, /, *, may_fail: bool = True, max_wait: float, since: Update | None = None
    ) -> Update | None: ...

    @uncatchable
    def next(
        self, *, may_fail: bool = True, max_wait: float | None = None, since: Update | None = None
    ) -> Update | None:
        """Wait for the next answer of those in flight; its site is idle again.

        Args:
            may_fail: Whether the workflow goes on without the site where its training has failed.
                If not, that ends the run without a record, and a resume trains the site again.
            max_wait: Most seconds to wait, by ``time.clock``; ``math.inf`` to wait until a device
                comes back, if that is before an answer; None for an answer alone. Simulated time
                passes with nothing in flight, too. On the wall clock, inline sites wait for each
                other, and the limit does not count.
            since: An update, from whose answer on these seconds count; None for now.

        Returns:
            The site's update, in a durable file, to be folded with others as
            ``FoldRule(base="own")`` does; or, where its training has failed, an update that is not
            ``ok``, and whose ``failure`` says why. None where the wait ended without an answer.

        Raises:
            WorkflowError: No training is in flight, and nothing else to wait for; or ``max_wait``
                is no number from 0, or ``since`` no update.
        """
        return self._state.trainings.next(may_fail=may_fail, max_wait=max_wait, since=since)

    @uncatchable
    def fold(
        self,
        /,
        model: Model,
        updates: Sequence[Update],
        rule: FoldRule | None = None,
        *,
        at: Sequence[str] | None = None,
        step: ServerStep | None = None,
        tensors: CombinesGroups | CombineTensor | None = None,
        **bodies: FoldRule,
    ) -> Model:
        """Fold updates into the next model: the job's aggregation, then its server optimizer.

        The model is durable when this returns, and the updates are settled.

        Args:
            model: The model that all of them were trained from; under a rule whose base is
                ``"own"``, any model.
            updates: What :meth:`train` returned, or some of it, of one or several calls; or what
                :meth:`next` did.
            rule: How the model's floats are combined; None for the job's ``aggregation``.
            at: Sites, in whose order one is chosen to fold: the first that lives, fed by the
                others. The server then reads no tensor of what was passed unread. None folds in the
                server's process. The bits are the same.
            step: A step of the server's from the mean of the updates, in place of the job's server
                optimizer; None for that.
            tensors: Code that combines whole tensors, one group of them at a time: an object of a
                frozen dataclass with the methods ``groups(names)`` and ``combine(group, updates)``
                (see :class:`CombinesGroups`), or a function of the latter's arguments, for which
                each tensor is a group. Other tensors take the mean. None for none.
            bodies: Rules of the bodies beside the model, by name.

        Raises:
            WorkflowError: There are no updates, one has failed or was trained from another model, a
                body beside the model has no rule, or ``aggregation.method`` is not the mean, which
                rules and a step need; or ``at`` names no site, or stands beside rules or a step.
            AggregationError: Code of ``tensors`` failed, its groups overlap, or it returned other
                shapes or what is not finite; the message has the line or the tensor.
            MisfitError: A group takes more than ``aggregation.memory_budget``.
        """
        from flstream.server import model_effects  # imports NumPy

        return model_effects.fold(self._state, model, updates, rule, bodies, at, step, tensors)

    def limit_waiting(self, *, start: float | None = None, progress: float | None = None) -> None:
        """Set how long sites may be silent in the tasks and folds of this workflow, from now on.

        It decides no bits, so it is no effect.

        Args:
            start: Seconds in which a site has to acknowledge a task; then it counts as lost. None
                is as long as the task may take.
            progress: Seconds after which the run fails if nothing came of a task or a fold; None is
                without limit.
        """
        if not self._state.context.job.engine.is_inline:  # where sites wait for each other
            self._state.tasks.waits = TaskWaits(start, progress)

    @uncatchable
    def adopt(self, updates: Sequence[Update]) -> Model:
        """Make the update of one site the next model, as it is.

        Neither ``aggregation.method`` nor the server optimizer is applied. Tensors that the update
        does not have keep the values of the model that it was trained from.

        Raises:
            WorkflowError: There is not exactly one update.
        """
        from flstream.server import model_effects  # imports NumPy

        return model_effects.adopt(self._state, updates)

    @uncatchable
    def evaluate(
        self, model: Model, *, meta: Mapping[str, Any] | None = None
    ) -> dict[str, float] | None:
        """Ask sites, or the evaluator, to score a model, if its round is due for it.

        It is due every ``workflow.args.evaluate_every`` rounds, and after the last one. Where
        ``evaluate.at`` is ``server``, the evaluator scores it. Else the sites do: they
        are those whose code asks which task it has, and those of which nobody knows yet. None is
        due where no site's code asks (``workflow.args.evaluate``): then the metrics of updates
        score the model that their sites had received, once they are folded.

        Args:
            model: The model.
            meta: Plain values by name that each site finds in its model's ``meta``.

        Returns:
            The mean of each metric, weighted by the sites' own weights; None where none is due.
        """
        check_model("evaluate", model)
        every, state = self._args.evaluate_every, self._state
        if not every or not model.round:
            return None
        is_regular = model.round % every == 0
        is_last = self._is_last_stage and model.round == self._last_round
        if not (is_regular or is_last):
            return None
        if not (state.context.job.is_scored_centrally or state.evaluators):
            return None
        return self._state.scoring.evaluate(model, meta, is_provisional=not is_regular)

    @uncatchable
    def collect(self, name: str, sites: Sequence[str], timeout: float | None = None) -> SiteModels:
        """Collect a model of each site: one that its code submits, or the last one that it sent.

        Sites whose code tells tasks apart are asked for it. Where that answers without asking
        ``is_submit_model``, or is a learner without a method ``submit_model``, it is what the
        site's last update, of those that were folded or adopted, makes of the model that it was
        trained from; so it is where updates pass filters, which a submitted model would not.

        Args:
            name: Kind of the task: ``"submit_model"``.
            sites: Names of the sites. Those that are asked no more are left out.
            timeout: Seconds that a site may take; None takes ``clients.round_timeout``.

        Returns:
            The models by site, in the order given; ``failures`` says why others have none.

        Raises:
            WorkflowError: A name is none of the job's sites, or the kind is another one.
        """
        return self._state.collection.collect(name, sites, timeout)

    @uncatchable
    def score(
        self,
        model: Model | SiteModel,
        sites: Sequence[str],
        timeout: float | None = None,
        *,
        owner: str = "",
        counts: bool = False,
    ) -> SiteScores:
        """Score a model at sites, each by itself.

        Args:
            model: A model of the run, or one of :meth:`collect`.
            sites: Names of the sites. Those that are asked no more are left out.
            timeout: Seconds that a site may take; None takes ``clients.round_timeout``.
            owner: Whose model it is, which sites find in its ``meta["model_owner"]``.
            counts: Whether the mean is the score of the model's round, as of :meth:`evaluate`:
                then ``clients.min_updates`` of the sites have to answer.

        Returns:
            Metrics by site, in the order given; ``failures`` says why others have none.

        Raises:
            WorkflowError: A name is none of the job's sites, or the model is none of the run.
        """
        return self._state.scoring.score(model, sites, timeout, owner, counts=counts)

    @uncatchable
    def ask(
        self,
        model: Model,
        messages: Mapping[str, Mapping[str, Any]],
        timeout: float | None = None,
    ) -> Updates:
        """Send each site values of its own beside a model, and take its answer.

        It is a training whose answers may lack tensors where they are read, and of which none has
        to come; see :meth:`train`. Passed unread to :meth:`fold`, answers without tensors fail.

        Args:
            model: What the sites receive.
            messages: Plain values by name that a site finds in its model's ``meta``, by site.
            timeout: Seconds that a site may take; None takes ``clients.round_timeout``.

        Returns:
            The answers; ``has_tensors`` tells those that can be folded.

        Raises:
            WorkflowError: A name is none of the job's sites.
        """
        return self._state.trainings.ask_each(model, messages, timeout)

    @uncatchable
    def store(self, model: Model, path: str | Path) -> Model:
        """Make the tensors of a file the next model of the run.

        Args:
            model: A model of the run, with tensors of the same names, dtypes and shapes.
            path: A safetensors file, which is copied.

        Raises:
            WorkflowError: The file is no such model.
        """
        from flstream.server import model_effects  # imports NumPy

        return model_effects.store(self._state, model, Path(path))

    @uncatchable
    def merge(self, model: Model) -> Model:
        """Add the residual beside an adapter to its base, and begin with none again.

        The base is a new file beside the model, of the size of the base. Sites get the adapter
        around it from ``flare.base_model()``, whose modules follow as they receive a model.

        Args:
            model: A model with a body ``residual``, as ``run.initial_model(residual=...)`` makes
                it; its factors are of an adapter of PEFT around ``model.base``.

        Raises:
            WorkflowError: The model has no residual.
            LayoutError: The adapter is none of PEFT, or not around the base.
            CheckpointError: The disk has no room for the base.
        """
        from flstream.server import model_effects  # imports NumPy

        return model_effects.merge(self._state, model)

    def save(self, update: Update, path: str | Path) -> None:
        """Write what an update makes of the model that it was trained from to a file.

        It decides no bits, so it is no effect: on replay it is done again, unless the update has
        gone by then. The file is there whole, or not at all.

        Args:
            update: An update with tensors that were not folded yet.
            path: Path of the safetensors file.
        """
        if self._state.context.host is None:
            raise WorkflowError("an update has no file in a dry run")
        from flstream.server.stored_model import UnsoundModelError  # imports NumPy

        # On replay it was written before, and the update may be folded and gone.
        with suppress(*(() if self._state.journal.is_live else (UnsoundModelError,))):
            self._state.update_store.write(update.training, update.site, Path(path))

    @uncatchable
    def remember(self, name: str, compute: Callable[[], bytes]) -> bytes:
        """Compute bytes once, and return on replay what they were.

        Args:
            name: What they are.
            compute: Function that returns them, at most 1 MiB; on replay it is not called.

        Raises:
            WorkflowError: They are more, or no bytes.
        """
        check_name("remember", name)
        state = self._state

        def do(_: int) -> tuple[bytes, None]:
            value = compute()
            if not isinstance(value, bytes) or len(value) > _MOST_REMEMBERED:
                raise WorkflowError(
                    f"run.remember({name!r}) computed what is no bytes, or more than "
                    f"{_MOST_REMEMBERED:,} of them; return fewer, and keep the rest in a file"
                )
            return value, None

        request = f"remember({name})"
        return state.journal.once("remember", state.round, request, name, do, bytes).result

    @uncatchable
    def report(self, model: Model, metrics: Mapping[str, float]) -> None:
        """Report the score of a model that the workflow has found by itself.

        ``stop_when``, ``patience`` and the best model follow, as after :meth:`evaluate`.

        Args:
            model: The model.
            metrics: Its metrics by name.
        """
        self._state.scoring.report(model, metrics)

    def start_process(self, name: str, kinds: Any, target: str, *args: Any) -> ChildProcess[Any]:
        """Start a process of the workflow's own, which ends when the returned object is closed.

        Args:
            name: Name of the process in the run's memory samples, and of its log.
            kinds: Union of the types of messages (``msgspec.Struct``) that it sends.
            target: Function that it runs, ``package.module:name``, of a socket, the number of the
                job's rounds, and ``args``.
            args: Further arguments of the function; must be picklable.

        Raises:
            WorkflowError: This is a dry run, which starts no process.
        """
        from flstream.engines.child_process import ChildProcess  # imports NumPy

        context = self._state.context
        if context.host is None:
            raise WorkflowError(f"the process {name} is started when the job is run")
        call, log, abort = (target, context.job.rounds, *args), context.run.log(name), context.abort
        return ChildProcess[Any](context.host, name, kinds, *call, log=log, abort=abort)

    def path_of(self, model: Model) -> Path:
        """Return the path of a model's file, which is not to be changed.

        Raises:
            WorkflowError: This is a dry run, in which models have no files.
        """
        check_model("path_of", model)
        if self._state.context.host is None:
            raise WorkflowError("a model has no file in a dry run")
        store = self._state.store
        return store.path(store.record(model))

    @uncatchable
    def write_json(self, path: str, value: object) -> None:
        """Write a JSON file into the run directory, whole or not at all.

        Numbers that are not finite become null.

        Args:
            path: Where, relative to the run directory, in a folder of its own.
            value: Numbers, text, lists, and dicts by name.

        Raises:
            WorkflowError: JSON cannot hold the value, or the path is another one.
        """
        from flstream.server.json_files import write_json

        write_json(self._state, path, value)

    @uncatchable
    def log(self, key: str, value: float) -> None:
        """Record a number in the run's events, with the current round.

        Args:
            key: What it is.
            value: The number.
        """
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise WorkflowError(
                f"run.log({key!r}) was given a {type(value).__name__} that is no float: {error}; "
                "give it a number"
            ) from error
        check_name("log", key)
        self._state.emit_live(SiteLog(round=self._state.round, site="", key=key, value=number))
