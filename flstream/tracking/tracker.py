"""Protocol of trackers, also of a user's own."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple, Protocol

from flstream.job.sections import RUN

GLOBAL = RUN
"""Source of what is true of the whole run; every other source is the name of a site."""


class TrackedRun(NamedTuple):
    """Run to track.

    Attributes:
        job: Name of the job.
        folder: Folder of the run, absolute.
        began: When the run began, in seconds since the epoch; the same after every resume.
    """

    job: str
    folder: Path
    began: float


class Tracker(Protocol):
    """Receiver of a run's points, on a thread of its own.

    It is made as ``Class(run, **args)`` with a :class:`TrackedRun` and ``tracking.args``. Whenever
    part of what it was given is void, as the run goes on after an interruption or a worker was
    lost, another one is made, which is given all points that count from the run's beginning. So it
    has to replace what an earlier one has written.
    """

    def scalars(self, source: str, step: int, values: Mapping[str, float], time: float) -> None:
        """Take numbers.

        Args:
            source: Name of the site, or :data:`GLOBAL`.
            step: The round, or a step of the site's own.
            values: Numbers by name; NaN for one that is not finite.
            time: When it was, in seconds since the epoch.
        """

    def text(self, source: str, step: int, key: str, text: str, time: float) -> None:
        """Take text; see :meth:`scalars`."""

    def flush(self) -> None:
        """Make all points so far visible to others."""

    def close(self) -> None:
        """Take no more; called once, unless another method has raised."""
