"""The federation of a run: what carries out the effects that its workflow asks for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from flstream.client.meta import pack_values
from flstream.client.personal_part import part_of
from flstream.errors import WorkflowError
from flstream.server.arguments import (
    check_bodies,
    check_model,
    check_name,
    check_scored,
    check_sites_and_timeout,
    check_training,
    check_values,
)
from flstream.server.collector import ResultCollector
from flstream.server.context import ServerContext
from flstream.server.effects import EffectJournal
from flstream.server.federation_state import FederationState, uncatchable
from flstream.server.model_effects import ModelEffects
from flstream.server.model_store import ModelStore
from flstream.server.program_view import Model, SiteModel, SiteModels, SiteScores, Updates
from flstream.server.sampling import sample_sites
from flstream.server.site_effects import SiteEffects
from flstream.server.stored_model import UnsoundModelError
from flstream.server.training_effects import TrainingEffects, TrainRequest
from flstream.telemetry.events import SiteLog, Warned
from flstream.telemetry.halts import halt_at


class Federation:
    """Carries out effects: does each that is new, and replays each that is on record.

    It checks what a workflow passes, and hands it on to what carries out effects of that kind.
    These share one state, which a replay rebuilds.

    Args:
        context: The server.
        journal: The effects.
        store: The models.

    Attributes:
        state: What its effects have come to.
        models: The effects that make models.
    """

    def __init__(self, context: ServerContext, journal: EffectJournal, store: ModelStore) -> None:
        self._context = context
        self.state = FederationState(context, journal, store)
        self._store = store
        self._trainings = TrainingEffects(self.state)
        self.models = ModelEffects(self.state, self._trainings)
        self._at_sites = SiteEffects(self.state)

    @uncatchable
    def log(self, key: str, value: float) -> None:
        """Record a number of the workflow's own."""
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError) as error:
            raise WorkflowError(
                f"run.log({key!r}) was given a {type(value).__name__} that is no float: {error}; "
                "give it a number"
            ) from error
        check_name("log", key)
        self.state.emit_live(SiteLog(round=self.state.round, site="", key=key, value=number))

    def sample(self, number: int) -> list[str]:
        """Draw the sites of a round; see :meth:`flstream.server.run.Run.sample`."""
        clients, sites = self._context.job.clients, self.state.sites
        least = clients.min_updates or clients.cohort_size
        if self.state.private is not None:
            drawn = self.state.private.sample(sites, number)
            least = min(least, len(drawn))
        else:
            drawn = sample_sites(sites, clients.cohort_size, self._context.job.seed, number)
        ResultCollector[None](f"train round {number}", drawn, least).check_size()
        return drawn

    @uncatchable
    def check_name(self, method: str, name: str) -> None:
        """Refuse what is no name."""
        check_name(method, name)

    @uncatchable
    def check_model(self, method: str, model: Model) -> None:
        """Refuse what is no model of the run."""
        check_model(method, model)

    @uncatchable
    def train(
        self,
        model: Model,
        sites: Sequence[str],
        min_updates: int | None,
        timeout: float | None,
        *,
        meta: Mapping[str, Any] | None,
        optimizer_params: Mapping[str, Any] | None,
        personal: Sequence[str] = (),
        beside: bool = False,
    ) -> Updates:
        """Ask for a training; see :meth:`flstream.server.run.Run.train`."""
        check_model("train", model)
        check_training(sites, min_updates, timeout)
        check_values("meta", meta)
        check_values("optimizer_params", optimizer_params)
        if both := sorted((meta or {}).keys() & set(self._store.bodies(model))):
            raise WorkflowError(
                f"run.train() was given a value {both[0]!r} in meta, and the model has a body of "
                "that name beside it; give it another name"
            )
        part = part_of(personal, is_beside=beside)
        self.state.check_sites("train", sites)
        self.state.check_round("train")
        message = pack_values(meta or {}, optimizer_params)
        request = TrainRequest(model, sites, min_updates, timeout, message, part)
        return self._trainings.ask(request)

    @uncatchable
    def collect(self, name: str, sites: Sequence[str], timeout: float | None) -> SiteModels:
        """Collect models of sites; see :meth:`flstream.server.run.Run.collect`."""
        names, seconds = self._asked("collect", sites, timeout)
        return self._at_sites.collect(name, names, seconds)

    @uncatchable
    def score(
        self,
        model: Model | SiteModel,
        sites: Sequence[str],
        timeout: float | None,
        *,
        owner: str,
        counts: bool,
    ) -> SiteScores:
        """Have sites score a model; see :meth:`flstream.server.run.Run.score`."""
        check_scored(model, counts=counts)
        check_name("score", owner)
        names, seconds = self._asked("score", sites, timeout)
        return self._at_sites.score(model, names, seconds, owner, counts=counts)

    @uncatchable
    def write_json(self, path: str, value: object) -> None:
        """Write a JSON file of the run; see :meth:`flstream.server.run.Run.write_json`."""
        check_name("write_json", path)
        self._at_sites.write_json(path, value)

    def _asked(
        self, method: str, sites: Sequence[str], timeout: float | None
    ) -> tuple[list[str], float]:
        """The sites of an effect that are still asked, and the seconds that each may take."""
        check_sites_and_timeout(method, sites, timeout)
        self.state.check_sites(method, sites)
        asked, default = set(self.state.sites), self._context.job.clients.round_timeout
        names = [site for site in sites if site in asked]
        return names, default if timeout is None else float(timeout)

    @uncatchable
    def evaluate(
        self,
        model: Model,
        *,
        is_provisional: bool,
        personal: Sequence[str] = (),
        beside: bool = False,
    ) -> dict[str, float]:
        """Have all sites score a model.

        Args:
            model: The model.
            is_provisional: Whether the model is scored only because its round is the last: a run
                that is resumed with more rounds does not know of it.
            personal: Patterns of the tensors that are each site's own.
            beside: Whether sites score a whole model of their own, too.
        """
        part = part_of(personal, is_beside=beside)
        return self._at_sites.evaluate(model, part, is_provisional=is_provisional)

    @uncatchable
    def initial_model(self, version: int, bodies: Mapping[str, object]) -> Model:
        """The model that a workflow begins with; see :meth:`flstream.server.run.Run.initial_model`.

        Args:
            version: Its version.
            bodies: What the bodies beside it are to be, by name.
        """
        check_bodies(bodies)
        return self._store.begin(version, list(bodies))

    def end_stage(self, reason: str | None) -> None:
        """End the current workflow, and its last round.

        Args:
            reason: Why it has had fewer rounds than the job; None if it has not.

        Raises:
            WorkflowError: It has asked for a training that nobody has read or folded.
        """
        self._trainings.check_done()
        self.state.end_stage(reason)

    def finish(self, version: int) -> None:
        """End the run with a model: its file gets its second name, and what waits is let go of."""
        path = self._store.source(self._store.handle(version)).path
        halt_at("end")
        run = self._context.run
        run.discard_updates()
        run.publish(path, run.final_model)
        best = self.state.scores.best_version
        in_use = {version}
        if best is not None:
            in_use.add(best)
            try:
                source = self._store.source(self._store.handle(best))
            except UnsoundModelError as error:
                # To do all the rounds since again would change nothing but this name.
                self._context.emit(Warned(message=f"no {run.best_model.name}: {error.flaw}"))
            else:
                run.publish(source.path, run.best_model)
        self._store.retire(self.state.scores.best_versions, in_use)
