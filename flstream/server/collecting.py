"""The effect that collects models: of each site its own, as a file that the server can offer."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from flstream.codecs.chain import UpdateForm
from flstream.errors import MisfitError, UpdateRefusedError, WorkflowError
from flstream.model.checkpoint import FileSource
from flstream.runs.results import CollectResult
from flstream.runs.small_files import temporary_of
from flstream.server.arguments import check_not_private
from flstream.server.collector import ResultCollector
from flstream.server.fleet import check_states_of
from flstream.server.program_view import Model, SiteModel, SiteModels
from flstream.server.stored_model import opened
from flstream.server.task_plan import plan_task
from flstream.server.task_run import TaskRun
from flstream.server.tasks import TaskSpec
from flstream.server.updates import UpdateFiles
from flstream.telemetry.events import ModelsCollected
from flstream.text import brief_names
from flstream.worker.messages import SUBMIT_MODEL, SiteTask, Task
from flstream.worker.meta import pack_values

if TYPE_CHECKING:
    from flstream.server.run_state import RunState

_NONE_SENT = "it has sent no model that became part of another"
_NONE_KEPT = (
    "its code submits none, and the last ones were not kept, since the workflow does not say that "
    "it collects them (collects_models in its section)"
)
# What NVFlare's scripts look at to know which of their models is meant.
_ASKED_FOR = {"submit_model_name": "best_model"}


class ModelCollection:
    """Collects the models of sites, which may be replayed, and finds them again.

    A site's model lies in ``cross_site/models``. Where the training code submits none of its own,
    it is a second name of the last model that the site sent, and takes no disk. That is written as
    it is folded, and not by the site to its own state, which is copied for each training and made
    durable after it: with 512 MiB and two sites a round would take 2.4 s or more instead of 1.2 s.
    """

    def __init__(self, state: RunState) -> None:
        self._state = state
        self._context = state.context
        # By site: the model that was collected last, and its file once that was verified.
        self._newest: dict[str, SiteModel] = {}
        self._sources: dict[str, FileSource] = {}

    def collect(self, name: str, sites: Sequence[str], timeout: float | None) -> SiteModels:
        """Collect the models of sites; see :meth:`flstream.server.run.Run.collect`."""
        state = self._state
        sites, seconds = state.asked_sites("collect", sites, timeout)
        if name != "submit_model":
            raise WorkflowError(
                f"run.collect() was given {name!r}; what it collects is 'submit_model'"
            )
        check_not_private(self._context.job, "run.collect() takes models of single sites", "")
        base = state.store.handle(state.store.newest.record.version)
        if own := state.store.own_bodies(base):
            raise MisfitError(
                f"run.collect() takes models of sites, and the body {own[0]!r} lies beside the "
                "run's model, without which a site's is none; leave out the workflow that collects"
            )
        arguments = {
            "name": name,
            "base": [base.version, base.digest],
            "sites": sites,
            "timeout": seconds,
        }
        request = f"collect({name}, {brief_names(sites)})"
        tasks = state.fleet.tasks("submit_model", sites, state.round)

        def do(number: int) -> tuple[CollectResult, None]:
            submitters = (
                state.site_code.submitters(sites) if not self._context.job.filters.up else []
            )
            of_asked = {site: tasks[site] for site in submitters}
            return self._collected(number, base, sites, of_asked, seconds), None

        done = state.journal.once("collect", state.round, request, arguments, do, CollectResult)
        result = done.result
        state.fleet.note_failures(result.failed)
        state.settle_failures()
        models = {
            site: SiteModel(site, digest, done.number) for site, digest in result.models.items()
        }
        self._newest |= models
        return SiteModels(models, result.failures)

    def _collected(
        self,
        effect: int,
        base: Model,
        sites: Sequence[str],
        tasks: Mapping[str, SiteTask],
        seconds: float,
    ) -> CollectResult:
        """Collect the model of each site."""
        began, last = time.monotonic(), self._state.last_models
        self._sources.clear()
        submitted, failures = self._submitted(effect, base, tasks, seconds)
        failed, models = list(failures), {}
        none = _NONE_SENT if self._state.keeps_last_models else _NONE_KEPT
        for site in sites:
            if site in submitted:
                models[site] = submitted[site]
            elif site in last and site not in failures:
                models[site] = self._name_last(site, *last[site])
            else:
                failures.setdefault(site, none)
        self._context.emit(
            ModelsCollected(
                round=self._state.round,
                sites=list(models),
                failures=failures,
                seconds=time.monotonic() - began,
            )
        )
        return CollectResult(models, failures, failed)

    def source(self, model: SiteModel) -> FileSource:
        """The file of a model, verified once and kept open."""
        newest = self._newest[model.site]
        if newest.effect != model.effect:
            raise WorkflowError(
                f"run.score() was given the model of {model.site} that effect {model.effect} "
                f"collected, and effect {newest.effect} has collected another one; score it before"
            )
        if model.site not in self._sources:
            path = self._context.run.site_model(model.site)
            self._sources[model.site] = opened(model.effect, path, model.digest)
        return self._sources[model.site]

    def _name_last(self, site: str, digest: str, effect: int) -> str:
        """Give the last model of a site its second name, and return its digest."""
        run = self._context.run
        path, target = run.last_model(site), run.site_model(site)
        temporary_of(path).unlink(missing_ok=True)  # a fold that was cut off has left it
        opened(effect, path, digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        run.publish(path, target)
        return digest

    def _submitted(
        self,
        effect: int,
        base: Model,
        tasks: Mapping[str, SiteTask],
        seconds: float,
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Ask sites for models of their own; return the digests and the failures, by site."""
        if not tasks:
            return {}, {}
        context, source, sites = self._context, self._state.store.source(base), list(tasks)
        collector = ResultCollector("submit their models", sites, 0)
        plan = plan_task(context.job, source.layout, len(sites))
        task = Task(
            SUBMIT_MODEL,
            effect,
            self._state.round,
            context.job.planned_rounds,
            keeps_state=False,
            meta=pack_values(_ASKED_FOR, None),
            inline=plan.inline_bytes(source.layout),
        )
        form = UpdateForm(source, name=base.digest)
        spec = TaskSpec(task, source, tasks, seconds, lambda _: form, name=base.digest)
        files = UpdateFiles(context.run.updates(effect), lambda _: form)
        run = TaskRun(context, spec, plan, collector, files if plan.in_files else None)
        run.run()
        check_states_of(context.run, tasks, collector.failures)
        digests = {}
        for site in sites:
            if (update := collector.updates.get(site)) is None:
                continue
            try:
                path = context.run.site_model(site)
                digests[site] = self._state.update_store.write_model(update, source, path)
            except UpdateRefusedError as error:
                run.fail(site, str(error))
                update.body.release(str(error))
            else:
                update.body.release()
        context.run.discard_updates(effect)
        return digests, dict(collector.failures)
