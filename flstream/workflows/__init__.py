"""Workflows: what a job does round by round, as programs over a federation.

A workflow of your own needs no more than ``from flstream.workflows import workflow, Run``.
"""

from __future__ import annotations

from flstream.job.workflow_args import WorkflowArgs
from flstream.server.run import (
    FoldRule,
    Model,
    Run,
    SiteModel,
    SiteModels,
    SiteScores,
    Update,
    Updates,
)
from flstream.workflows.decorator import workflow

__all__ = [
    "FoldRule",
    "Model",
    "Run",
    "SiteModel",
    "SiteModels",
    "SiteScores",
    "Update",
    "Updates",
    "WorkflowArgs",
    "workflow",
]
