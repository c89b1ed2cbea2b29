"""The context that all parts of a server share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from flstream.aggregation.rules import AggregationRule
from flstream.codecs.chain import CodecChain, chain_of
from flstream.errors import AbortedError, MisfitError
from flstream.job import Job
from flstream.runs.run_directory import RunDirectory
from flstream.server.live_picture import LivePicture
from flstream.server.program_view import ProgramOutline
from flstream.server.worker_pool import WorkerPool
from flstream.streaming.service import DownloadService
from flstream.telemetry.events import Emit
from flstream.transport.channel import AbortSignal

if TYPE_CHECKING:
    from flstream.engines.processes import ProcessHost


@dataclass(frozen=True)
class ServerContext:
    """A running server: its job, its files, its workers, and where its events go.

    Attributes:
        job: The job.
        run: Its run directory.
        pool: The workers.
        service: Offers models to them.
        rule: How updates are folded.
        emit: Takes every event.
        abort: Set once the run is to stop.
        picture: The picture of the run for its live view.
        programs: What each of the job's workflows does in its first round, as a dry run shows.
        evaluator: The same server for the evaluator, with its job and pool (``evaluate.at =
            server``); None where sites score models.
        host: Starts processes on this machine; None in a dry run.
    """

    job: Job
    run: RunDirectory
    pool: WorkerPool
    service: DownloadService
    rule: AggregationRule
    emit: Emit
    abort: AbortSignal
    picture: LivePicture
    programs: Sequence[ProgramOutline]
    evaluator: ServerContext | None = None
    host: ProcessHost | None = None

    def expect_on(self, _: object = None) -> None:
        """Raise an AbortedError once the run is to stop."""
        if self.abort.is_set():
            raise AbortedError("the run was stopped")

    def worker_of(self, site: str) -> str:
        """Name of the worker that does what is not a task on behalf of a site.

        It is the site's own, or one of those that sites share, always the same.
        """
        workers = self.job.clients.worker_names
        return workers[self.job.clients.site_names.index(site) % len(workers)]

    @property
    def job_base(self) -> Path:
        """File of the base of ``model.base``, which the sites share."""
        from flstream.model.shared_base import base_file

        if self.job.base is None:
            raise MisfitError(
                "run.merge() adds to a base, and the job has none; set model.base, or workflow."
                "args.into = factors"
            )
        return base_file(self.job.base.digest)

    @cached_property
    def base_bytes(self) -> int:
        """Size in bytes of the file of the job's base; 0 for a job without one."""
        return 0 if self.job.base is None else self.job_base.stat().st_size

    @cached_property
    def update_codecs(self) -> CodecChain:
        """Codecs of updates."""
        return chain_of(self.job.streaming.codecs.of_updates)

    @cached_property
    def model_codecs(self) -> CodecChain:
        """Codecs of models on their way to sites."""
        return chain_of(self.job.streaming.codecs.of_models)
