"""The effects that make no model: having sites score models, and collecting those of sites."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from types import NoneType
from typing import Any

import xxhash

from flstream.errors import WorkflowError
from flstream.runs.site_scores import by_site
from flstream.server.arguments import (
    check_name,
    check_not_private,
    check_scored,
    check_sites_and_timeout,
    check_values,
)
from flstream.server.collecting import CollectResult, ModelCollection
from flstream.server.program_view import Model, SiteModel, SiteModels, SiteScores
from flstream.server.run_state import RunState
from flstream.server.scoring import ScoreResult, Scoring, ScoringTask
from flstream.text import brief_names
from flstream.worker.meta import pack_values

# Folders of a run that a workflow does not write to.
_TAKEN = frozenset({"checkpoints", "export", "sites", "tensorboard", "updates"})


class SiteEffects:
    """Has sites score and submit models: does each effect that is new, and replays the others.

    Args:
        state: The state of the run.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._scoring = Scoring(state)
        self._collection = ModelCollection(state.context, state.store, state.trainer, state.last)

    def evaluate(
        self, model: Model, meta: Mapping[str, Any] | None, *, is_provisional: bool
    ) -> dict[str, float]:
        """Have all sites score a model; see :meth:`flstream.server.run.Run.evaluate`.

        Args:
            model: The model.
            meta: Plain values that are sent along, by name.
            is_provisional: Whether it is scored only because its round is the last: a run that is
                resumed with more rounds does not know of it.
        """
        check_values("evaluate", "meta", meta)
        state, message = self._state, pack_values(meta, None) if meta else b""
        request = f"evaluate(model {model.version})"
        sites = state.evaluators
        arguments = {
            "model": [model.version, model.digest],
            "sites": sites,
            "meta": message,
        }
        tasks = state.tasks.new("evaluate", sites, model.round)
        result = state.journal.once(
            "evaluate",
            state.round,
            request,
            arguments,
            lambda number: (self._scoring.evaluate(model, tasks, number, message), None),
            ScoreResult,
            is_provisional=is_provisional,
        ).result
        self._note(result)
        state.warn(state.scores.add(model, result.metrics, is_provisional=is_provisional))
        if state.journal.is_live:
            state.retire_models()
        return result.metrics

    def collect(self, name: str, sites: Sequence[str], timeout: float | None) -> SiteModels:
        """Collect the models of sites; see :meth:`flstream.server.run.Run.collect`."""
        sites, seconds = self._asked("collect", sites, timeout)
        if name != "submit_model":
            raise WorkflowError(
                f"run.collect() was given {name!r}; what it collects is 'submit_model'"
            )
        state = self._state
        check_not_private(state.context.job, "run.collect() takes models of single sites", "")
        base = state.store.handle(state.store.newest.record.version)
        arguments = {
            "name": name,
            "base": [base.version, base.digest],
            "sites": sites,
            "timeout": seconds,
        }
        request = f"collect({name}, {brief_names(sites)})"
        tasks = state.tasks.new("submit_model", sites, state.round)

        def do(number: int) -> tuple[CollectResult, None]:
            asked = state.asked.submitters(sites) if not state.context.job.filters.up else []
            of_asked = {site: tasks[site] for site in asked}
            found = self._collection.collect(number, state.round, base, sites, of_asked, seconds)
            return found, None

        done = state.journal.once("collect", state.round, request, arguments, do, CollectResult)
        state.note_failures(done.result.failed)
        state.settle_failures()
        return self._collection.found(done.result, done.number)

    def score(
        self,
        model: Model | SiteModel,
        sites: Sequence[str],
        timeout: float | None,
        owner: str,
        *,
        counts: bool,
    ) -> SiteScores:
        """Have sites score a model; see :meth:`flstream.server.run.Run.score`."""
        check_scored(model, counts=counts)
        check_name("score", owner)
        sites, seconds = self._asked("score", sites, timeout)
        state = self._state
        if isinstance(model, SiteModel):
            named, of_round = f"model of {model.site}", state.round
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
        tasks = state.tasks.new("evaluate", sites, of_round)

        def do(number: int) -> tuple[ScoreResult, None]:
            if isinstance(model, SiteModel):
                source = self._collection.source(model)
            else:
                source = state.store.source(model)
            least = 0
            if counts:
                least = min(state.context.job.clients.min_updates or len(sites), len(sites))
            task = ScoringTask(f"score the {named}", number, of_round, least, seconds)
            return self._scoring.score(model, source, tasks, task, owner, counts=counts), None

        result = state.journal.once(
            "score", state.round, request, arguments, do, ScoreResult
        ).result
        self._note(result)
        if counts and isinstance(model, Model):
            state.warn(state.scores.add(model, result.metrics))
        return SiteScores(by_site(sites, result.sites), result.failures)

    def write_json(self, path: str, value: object) -> None:
        """Write a JSON file, or make sure that it is as it was written; see ``Run.write_json``."""
        check_name("write_json", path)
        place = PurePosixPath(path)
        is_inside = not place.is_absolute() and ".." not in place.parts and len(place.parts) > 1
        if not is_inside or place.parts[0] in _TAKEN or place.suffix != ".json":
            raise WorkflowError(
                f"run.write_json() was given the path {path!r}; give it one with a folder of its "
                "own in the run directory, such as results/scores.json"
            )
        try:
            text = json.dumps(_finite(value), indent=2, allow_nan=False) + "\n"
        except (TypeError, ValueError, RecursionError) as error:
            raise WorkflowError(
                f"run.write_json({path!r}) was given what JSON cannot hold: {error}; give it "
                "numbers, text, lists and dicts with names"
            ) from error
        arguments = {"path": path, "digest": xxhash.xxh3_128_hexdigest(text.encode())}
        run = self._state.context.run
        file = run.path / place

        def write(_: int = 0) -> tuple[None, None]:
            try:
                file.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise WorkflowError(
                    f"run.write_json() was given the path {path!r}, whose folder cannot be made: "
                    f"{error.strerror}; give it another one"
                ) from error
            run.write(file, text)
            return None, None

        self._state.journal.once(
            "write_json", self._state.round, f"write_json({path})", arguments, write, NoneType
        )
        if not file.is_file() or file.read_text() != text:  # somebody has changed it since
            write()

    def _asked(
        self, method: str, sites: Sequence[str], timeout: float | None
    ) -> tuple[list[str], float]:
        """The sites of an effect that are still asked, and the seconds that each may take."""
        check_sites_and_timeout(method, sites, timeout)
        self._state.check_sites(method, sites)
        asked, default = set(self._state.sites), self._state.context.job.clients.round_timeout
        names = [site for site in sites if site in asked]
        return names, default if timeout is None else float(timeout)

    def _note(self, result: ScoreResult) -> None:
        """Take in who failed in scoring a model, and what sites' code asked about."""
        state = self._state
        state.asked.record(result.asks)
        state.note_failures(result.failures)
        state.settle_failures()


def _finite(value: Any) -> Any:
    """A value as JSON has it: null for numbers that are not finite, as in the run's events."""
    if isinstance(value, float) and not math.isfinite(value):
        return None
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
