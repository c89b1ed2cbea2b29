"""A site's update as a model of its own, in a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from flstream.aggregation.adoption import write_site_model
from flstream.aggregation.steps import plan_step
from flstream.model.source import Source
from flstream.server.context import ServerContext
from flstream.server.updates import CollectedUpdate


def write_update(
    context: ServerContext, update: CollectedUpdate, base: Source, step: int, path: Path
) -> str:
    """Write what a site's update makes of the model that it was trained from; return its digest."""
    # What is aggregated does not matter: the model is the site's own, as it sent it.
    rule = replace(context.rule, include=(".*",), exclude=())
    return write_site_model(path, base, update.source(step), rule, step, context.expect_on)


def step_of_one(context: ServerContext, base: Source) -> int:
    """Return the bytes of one update of a model that are read at a time."""
    budget = context.job.aggregation.memory_budget
    rule = context.rule.adopting()
    return plan_step(base.layout, rule, updates=1, memory_budget=budget, buffered=1)
