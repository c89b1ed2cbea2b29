"""The effects that concern sites one by one: collecting their models, and having them scored."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

import xxhash

from flstream.errors import WorkflowError
from flstream.runs.site_scores import by_site
from flstream.server.collecting import ModelCollection
from flstream.server.context import ServerContext
from flstream.server.effects import EffectJournal, result_of
from flstream.server.last_models import LastModels
from flstream.server.model_store import ModelStore
from flstream.server.program_view import Model
from flstream.server.sampling import brief_names
from flstream.server.scoring import Scoring, ScoringTask
from flstream.server.site_results import SiteModel, SiteModels, SiteScores
from flstream.server.site_tasks import SiteTasks
from flstream.server.trainer import Trainer

# Folders of a run that a workflow does not write to.
_TAKEN = frozenset({"checkpoints", "export", "sites", "tensorboard", "updates"})


class SiteEffects:
    """Carries out effects on sites one by one: does each that is new, and replays the others.

    Args:
        context: The server.
        journal: The effects.
        store: The models of the run.
        trainer: Knows which workers still hold updates.
        tasks: Makes the sites' parts of tasks.
        scoring: Has sites score models.

    Attributes:
        last: The last model that each site has sent, where a workflow collects it.
    """

    def __init__(
        self,
        context: ServerContext,
        journal: EffectJournal,
        store: ModelStore,
        trainer: Trainer,
        tasks: SiteTasks,
        scoring: Scoring,
    ) -> None:
        self.last = LastModels(context.run)
        self._context = context
        self._journal = journal
        self._store = store
        self._tasks = tasks
        self._scoring = scoring
        self._collection = ModelCollection(context, store, trainer, self.last)

    def kept_from(self, stage: int) -> LastModels | None:
        """What keeps the models that sites send in a stage; None where no later one needs them."""
        job = self._context.job
        if job.submits_models or not any(each.collects_models for each in job.stages[stage:]):
            return None
        return self.last

    def collect(self, name: str, sites: Sequence[str], seconds: float, number: int) -> SiteModels:
        """Collect the models of sites.

        Args:
            name: Kind of the task.
            sites: The sites that are asked.
            seconds: How long a site may take.
            number: Number of the current round.
        """
        if name != "submit_model":
            raise WorkflowError(
                f"run.collect() was given {name!r}; what it collects is 'submit_model'"
            )
        base = self._store.handle(self._store.newest.record.version)
        arguments = {
            "name": name,
            "base": [base.version, base.digest],
            "sites": sites,
            "timeout": seconds,
        }
        request = f"collect({name}, {brief_names(sites)})"
        effect = self._journal.ask("collect", number, request, arguments)
        tasks = self._tasks.new("submit_model", sites, number)
        record = effect.record
        if record is None:
            plain = self._collection.collect(effect, base, tasks, seconds)
            record = self._journal.record(effect, plain, is_final=True)
        return self._collection.found(result_of(record), effect.number)

    def score(
        self,
        model: Model | SiteModel,
        sites: Sequence[str],
        seconds: float,
        number: int,
        owner: str,
        *,
        counts: bool,
    ) -> tuple[SiteScores, dict[str, float]]:
        """Have sites score a model.

        Args:
            model: The model.
            sites: The sites that are asked.
            seconds: How long a site may take.
            number: Number of the current round.
            owner: Whose model it is.
            counts: Whether the mean is the score of a round of the run.

        Returns:
            What each site has found, and the mean.
        """
        if isinstance(model, SiteModel):
            named, of_round = f"model of {model.site}", number
            identity: list[object] = [model.site, model.effect, model.digest]
        else:
            named, of_round = f"model {model.version}", model.round
            identity = [model.version, model.digest]
        arguments = {
            "model": identity,
            "sites": sites,
            "timeout": seconds,
            "owner": owner,
            "counts": counts,
        }
        request = f"score({named}, {brief_names(sites)})"
        effect = self._journal.ask("score", number, request, arguments)
        tasks = self._tasks.new("evaluate", sites, of_round)
        record = effect.record
        if record is None:
            if isinstance(model, SiteModel):
                source = self._collection.source(model)
            else:
                source = self._store.source(model)
            least = 0
            if counts:
                least = min(self._context.job.clients.min_updates or len(sites), len(sites))
            what = f"score the {named}"
            task = ScoringTask(what, effect.number, of_round, least, seconds)
            plain = self._scoring.score(model, source, tasks, task, owner, counts=counts)
            record = self._journal.record(effect, plain, is_final=True)
        found = result_of(record)
        return SiteScores(by_site(sites, found["sites"]), found["failures"]), found["metrics"]

    def write_json(self, path: str, value: object, number: int) -> None:
        """Write a JSON file into the run directory, or make sure that it is as it was written.

        Args:
            path: Where, relative to the run directory.
            value: What.
            number: Number of the current round.
        """
        place = PurePosixPath(path)
        is_inside = not place.is_absolute() and ".." not in place.parts and len(place.parts) > 1
        if not is_inside or place.parts[0] in _TAKEN or place.suffix != ".json":
            raise WorkflowError(
                f"run.write_json() was given the path {path!r}; give it one with a folder of its "
                "own in the run directory, such as results/scores.json"
            )
        try:
            text = json.dumps(_finite(value), indent=2, allow_nan=False) + "\n"
        except (TypeError, ValueError) as error:
            raise WorkflowError(
                f"run.write_json({path!r}) was given what JSON cannot hold: {error}; give it "
                "numbers, text, lists and dicts with names"
            ) from error
        arguments = {"path": path, "digest": xxhash.xxh3_128_hexdigest(text.encode())}
        effect = self._journal.ask("write_json", number, f"write_json({path})", arguments)
        run = self._context.run
        file = run.path / place
        if effect.record is None or not file.is_file() or file.read_text() != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            run.write(file, text)
        if effect.record is None:
            self._journal.record(effect, None, is_final=True)


def _finite(value: Any) -> Any:
    """A value as JSON has it: null for numbers that are not finite, as in the run's events."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
