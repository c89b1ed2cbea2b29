"""How long there may be nothing from the sites of a task."""

from __future__ import annotations

from typing import NamedTuple

START_KEY = "workflow.args.start_task_timeout"
"""The key whose value a site has exceeded that did not acknowledge a task in time."""

PROGRESS_KEY = "workflow.args.progress_timeout"
"""The key whose value was exceeded where nothing came of a task or a fold."""


class TaskWaits(NamedTuple):
    """How long there may be nothing from the sites of a task, beside the time that each may take.

    Attributes:
        start: Seconds in which a site has to acknowledge it; None for as long as it may take.
        progress: Seconds after which the run fails if nothing has come of the task, from no site;
            None is without limit.
    """

    start: float | None = None
    progress: float | None = None


UNLIMITED = TaskWaits()
"""As long as each site may take."""
