"""Scores of a run's models, and the best of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flstream.job import Job
from flstream.runs.best import BestEvaluation, BestRound
from flstream.runs.site_scores import Columns, columns_of
from flstream.runs.stopping import EarlyStopping
from flstream.server.program_view import Model
from flstream.telemetry.events import Evaluated, Metrics, Transfer


def site_columns(
    numbers: Mapping[str, int], metrics: Mapping[str, Mapping[str, float]]
) -> tuple[Columns, Sequence[int] | None]:
    """Return the columns of the sites that have metrics, and their numbers; None for all sites.

    Args:
        numbers: The number of each site in their fixed order, from 0, by its name.
        metrics: Metrics of sites that have any.
    """
    sites = sorted(metrics, key=numbers.__getitem__)
    is_some = 0 < len(sites) < len(numbers)
    return columns_of(sites, metrics), [numbers[site] for site in sites] if is_some else None


def received_score(
    model: Model,
    metrics: Metrics,
    numbers: Mapping[str, int],
    by_site: Mapping[str, Mapping[str, float]],
    *,
    has_evaluator: bool,
) -> Evaluated:
    """The event of a score that came with updates."""
    sites, scored = site_columns(numbers, by_site)
    return Evaluated(
        round=model.round,
        metrics={} if has_evaluator else metrics,
        site_metrics=metrics if has_evaluator else None,
        seconds=0.0,
        down=Transfer(),
        version=model.version,
        received=True,
        sites=sites,
        scored=scored,
    )


class Scores:
    """The scores of models, on which the best one and the end of the run depend.

    Args:
        job: The job.

    Attributes:
        best_version: Version of the best model so far; None before there is one.
    """

    def __init__(self, job: Job) -> None:
        self.best_version: int | None = None
        # Version of the best model for a run with more rounds, which knows no provisional score.
        self._earlier_best: int | None = None
        self._best = BestRound(job.key_metric, job.key_metric_mode)
        self._stopping = EarlyStopping(job)
        self._has_evaluator = job.is_scored_centrally
        # Version of the newest model that was scored by those who received it.
        self._newest_received = -1

    def begin_stage(self, stopping: EarlyStopping) -> None:
        """Begin with the models of the next workflow.

        Args:
            stopping: Judges whether the workflow goes on.
        """
        self._stopping = stopping

    @property
    def best(self) -> BestEvaluation | None:
        """The best evaluation so far; None before there is one."""
        return self._best.best

    @property
    def best_versions(self) -> set[int]:
        """Versions of the best model, now and if the run is given more rounds."""
        return {
            version for version in (self.best_version, self._earlier_best) if version is not None
        }

    def is_received(self, model: Model, number: int) -> bool:
        """Whether metrics that come with updates may be the score of the model.

        They are for the model that a round began with, and once; not for those in between, which
        sites hand on to each other within a round.

        Args:
            model: What the sites had received.
            number: Number of the current round.
        """
        is_new = model.version > self._newest_received
        return model.round < number and is_new

    def add_received(self, model: Model, metrics: Metrics) -> Sequence[str]:
        """Add metrics that came with the updates of a model; return warnings, a sentence each.

        Beside an evaluator, they are no score.
        """
        self._newest_received = model.version
        return () if self._has_evaluator else self.add(model, metrics)

    def add(self, model: Model, metrics: Metrics, *, is_provisional: bool = False) -> Sequence[str]:
        """Add the score of a model; return warnings, a sentence each."""
        if self._best.compare(model.round, metrics):
            self._earlier_best = self.best_version if is_provisional else None
            self.best_version = model.version
        return self._stopping.evaluated(model.round, metrics)
