"""Collecting: each site's own model, as a file that the server can offer to the others."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import msgspec

from flstream.aggregation.adoption import adopting, write_site_model
from flstream.aggregation.steps import plan_step
from flstream.codecs.update_form import UpdateForm
from flstream.errors import AbortedError, UpdateRefusedError, WorkflowError
from flstream.model.checkpoint import FileSource
from flstream.runs.small_files import temporary_of
from flstream.server.collected_updates import CollectedUpdate
from flstream.server.collector import ResultCollector
from flstream.server.context import ServerContext
from flstream.server.last_models import LastModels
from flstream.server.model_store import ModelStore
from flstream.server.program_view import Model, SiteModel, SiteModels
from flstream.server.stored_model import opened, verify
from flstream.server.task_plan import plan_task
from flstream.server.task_run import TaskRun
from flstream.server.tasks import TaskSpec
from flstream.server.trainer import Trainer
from flstream.server.update_files import UpdateFiles
from flstream.telemetry.events import ModelsCollected
from flstream.worker.messages import SUBMIT_MODEL, SiteTask
from flstream.worker.meta import pack_values

_NONE_SENT = "it has sent no model that became part of another"
# What NVFlare's scripts look at to know which of their models is meant.
_ASKED_FOR = {"submit_model_name": "best_model"}


class CollectResult(msgspec.Struct, frozen=True):
    """What came of a collection, as the journal keeps it.

    Attributes:
        models: By site, the digest of its model.
        failures: By site, the reason why there is none.
        failed: Those of them that failed in the task.
    """

    models: dict[str, str]
    failures: dict[str, str]
    failed: list[str]


class ModelCollection:
    """Collects the models of sites, and finds them again.

    A site's model lies in ``cross_site/models``. Where the training code submits none of its own,
    it is a second name of the last model that the site sent, and takes no disk.

    Args:
        context: The server.
        store: The models of the run.
        trainer: Knows which workers still hold updates.
        last: The last model that each site has sent.
    """

    def __init__(
        self, context: ServerContext, store: ModelStore, trainer: Trainer, last: LastModels
    ) -> None:
        self._context = context
        self._store = store
        self._trainer = trainer
        self._last = last
        # By site: the model that was collected last, and its file once that was verified.
        self._newest: dict[str, SiteModel] = {}
        self._sources: dict[str, FileSource] = {}

    def collect(
        self,
        effect: int,
        round_number: int,
        base: Model,
        sites: Sequence[str],
        tasks: Mapping[str, SiteTask],
        seconds: float,
    ) -> CollectResult:
        """Collect the model of each site.

        Args:
            effect: Number of the effect.
            round_number: The current round.
            base: The newest model of the run, whose layout theirs have.
            sites: The sites, in order.
            tasks: The parts of those that may know of the task.
            seconds: How long a site may take.

        Raises:
            UnsoundModelError: The last model of a site is damaged or gone.
        """
        began = time.monotonic()
        self._sources.clear()
        submitted, failures = self._submitted(effect, round_number, base, tasks, seconds)
        failed, models = list(failures), {}
        for site in sites:
            if site in submitted:
                models[site] = submitted[site]
            elif site in self._last.digests and site not in failures:
                models[site] = self._last_of(site)
            else:
                failures.setdefault(site, _NONE_SENT)
        self._context.emit(
            ModelsCollected(
                round=round_number,
                sites=list(models),
                failures=failures,
                seconds=time.monotonic() - began,
            )
        )
        return CollectResult(models, failures, failed)

    def found(self, result: CollectResult, effect: int) -> SiteModels:
        """The models of an effect on record."""
        models = {site: SiteModel(site, digest, effect) for site, digest in result.models.items()}
        self._newest |= models
        return SiteModels(models, result.failures)

    def source(self, model: SiteModel) -> FileSource:
        """The file of a model, verified once and kept open.

        Raises:
            WorkflowError: Another one of its site was collected since.
            UnsoundModelError: The file is damaged or gone.
        """
        newest = self._newest[model.site]
        if newest.effect != model.effect:
            raise WorkflowError(
                f"run.score() was given the model of {model.site} that effect {model.effect} "
                f"collected, and effect {newest.effect} has collected another one; score it before"
            )
        if model.site not in self._sources:
            path = self._context.run.site_model(model.site)
            self._sources[model.site] = _verified(path, model.digest, model.effect)
        return self._sources[model.site]

    def _last_of(self, site: str) -> str:
        """Give the last model of a site its second name, and return its digest."""
        run, path = self._context.run, self._last.path(site)
        digest = self._last.digests[site]
        temporary_of(path).unlink(missing_ok=True)  # a fold that was cut off has left it
        _verified(path, digest, self._last.effects[site])
        target = run.site_model(site)
        target.parent.mkdir(parents=True, exist_ok=True)
        run.publish(path, target)
        return digest

    def _submitted(
        self,
        effect: int,
        round_number: int,
        base: Model,
        tasks: Mapping[str, SiteTask],
        seconds: float,
    ) -> tuple[dict[str, str], dict[str, str]]:
        """Ask sites for models of their own; return the digests and the failures, by site."""
        if not tasks:
            return {}, {}
        context, source, sites = self._context, self._store.source(base), list(tasks)
        collector: ResultCollector[CollectedUpdate | None] = ResultCollector(
            "submit their models", sites, 0
        )
        step = plan_step(
            source.layout,
            adopting(context.rule),
            updates=1,
            memory_budget=context.job.aggregation.memory_budget,
            buffered=1,
        )
        plan = plan_task(context.job, source.layout, len(sites))
        spec = TaskSpec(
            kind=SUBMIT_MODEL,
            effect=effect,
            round=round_number,
            total_rounds=context.job.planned_rounds,
            model=source,
            sites=tasks,
            form=UpdateForm(source, name=base.digest),
            seconds=seconds,
            keeps_state=False,
            meta=pack_values(_ASKED_FOR, None),
            is_inline=plan.is_inline,
        )
        files = UpdateFiles(context.run.updates(effect), spec.form)
        run = TaskRun(context, spec, plan, collector, files if plan.in_files else None)
        run.run()
        self._trainer.check_states(tasks, collector.failures)
        digests = {}
        for site, update in run.updates.items():
            try:
                digests[site] = self._written(update, source, step)
            except UpdateRefusedError as error:
                run.fail(site, str(error))
                update.release(str(error))
            else:
                update.release()
        context.run.discard_updates(effect)
        return digests, dict(collector.failures)

    def _written(self, update: CollectedUpdate, base: FileSource, step: int) -> str:
        """Write the model that a site has submitted to its file, and return its digest."""
        context, site = self._context, update.answer.site
        # What is aggregated does not matter: the model is the site's own, as it sent it.
        rule = replace(context.rule, include=(".*",), exclude=())

        def check() -> None:
            if context.abort.is_set():
                raise AbortedError("the run was stopped")

        path = context.run.site_model(site)
        return write_site_model(path, base, update.source(step), rule, step, check)


def _verified(path: Path, digest: str, effect: int) -> FileSource:
    """The file of a site's model, which is to have a digest going by the record of an effect."""
    source = opened(effect, path)
    verify(effect, source, digest)
    return source
